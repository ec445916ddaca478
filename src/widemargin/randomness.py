"""Random numbers that never touch the global state.

In training every draw comes from ``derived(seed, purpose, ...)``: the same (seed, epoch, step, purpose) gives the same
numbers in a resumed run, and in two processes in place of one: numbers for a batch (``uniform``, ``normal``) are drawn
for the whole of it, and a process that shares it takes its rows.
"""

import hashlib
import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

from widemargin import shares

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
    whole = shares.whole_shape(shape)
    return shares.own_rows(torch.rand(whole, generator=generator, dtype=dtype, device=generator.device))


def normal(shape: Sequence[int], *, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers for a batch, whose samples are the first axis; on the generator's device."""
    whole = shares.whole_shape(shape)
    return shares.own_rows(torch.randn(whole, generator=generator, dtype=dtype, device=generator.device))


def fresh() -> torch.Generator:
    """A CPU generator nobody can predict, for calls that were given none."""
    return torch.Generator().manual_seed(secrets.randbits(_BITS))
