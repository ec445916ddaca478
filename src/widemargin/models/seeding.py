"""Initialization from a seed, leaving the global random state as it was.

PyTorch's layers draw their first weights from the global CPU generator. So we lend them that generator,
seeded, and put the old state back. The seed goes to the CPU generator alone: ``torch.manual_seed`` would
reset CUDA's as well. The model is made on the CPU whatever the default device, so that every machine starts
from the same weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from widemargin.errors import InputError
from widemargin.randomness import fresh


@contextmanager
def initialized_from(seed: int | None) -> Iterator[None]:
    """Modules made inside draw their weights from ``seed``; ``None`` takes a seed nobody can predict."""
    if seed is not None and (type(seed) is not int or not 0 <= seed < 2**63):
        raise InputError(f"build_model.seed must be an integer in [0, 2^63) or None, got {seed!r}; try 0")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(fresh().initial_seed() if seed is None else seed)
        yield
