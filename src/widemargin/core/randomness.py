"""Random numbers that leave the global state as it was.

In training every draw comes from ``derived(seed, purpose, ...)``: the same (seed, epoch, step, purpose) gives the same
numbers in a resumed run, and in two processes in place of one: numbers for a batch (``uniform``, ``normal``) are drawn
for the whole of it, and a process that shares it takes its rows.

PyTorch's layers draw their first weights from the global CPU generator. ``initialized_from`` lends them that generator,
seeded, and puts the old state back. The seed goes to the CPU generator alone: ``torch.manual_seed`` would reset CUDA's
as well. The model is made on the CPU whatever the default device, so that every machine starts from the same weights.
"""

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from widemargin.core import batch_share
from widemargin.errors import InputError

_BITS = 63


def derived_seed(seed: int, purpose: str, *coordinates: int) -> int:
    """One integer from a seed, a purpose ("order", "augment", "attack", ...) and coordinates (epoch, step, ...)."""
    text = "/".join([str(seed), purpose, *map(str, coordinates)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _BITS)


def derived(seed: int, purpose: str, *coordinates: int) -> torch.Generator:
    """A CPU generator for (seed, purpose, coordinates). CPU, so that every device draws the same numbers."""
    return torch.Generator().manual_seed(derived_seed(seed, purpose, *coordinates))


def uniform(shape: Sequence[int], *, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Numbers in [0, 1) for a batch, whose samples are the first axis; on the generator's device."""
    whole = batch_share.full_batch_shape(shape)
    return batch_share.local_rows(torch.rand(whole, generator=generator, dtype=dtype, device=generator.device))


def normal(shape: Sequence[int], *, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers for a batch, whose samples are the first axis; on the generator's device."""
    whole = batch_share.full_batch_shape(shape)
    return batch_share.local_rows(torch.randn(whole, generator=generator, dtype=dtype, device=generator.device))


def fresh() -> torch.Generator:
    """A CPU generator nobody can predict, for calls that were given none."""
    return torch.Generator().manual_seed(secrets.randbits(_BITS))


@contextmanager
def initialized_from(seed: int | None) -> Iterator[None]:
    """Modules made inside draw their weights from ``seed``; ``None`` takes a seed nobody can predict."""
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
        raise InputError(f"build_model.seed must be an integer in [0, 2^63) or None, got {seed!r}; try 0")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(fresh().initial_seed() if seed is None else seed)
        yield
