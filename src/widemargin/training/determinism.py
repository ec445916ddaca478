"""Runs whose bits repeat on a GPU: torch's deterministic algorithms, and no choice of kernels by their times.

A CPU with a fixed number of threads repeats its bits without it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""What torch asks for: cuBLAS then works in memory of a fixed size. It is read when the first product is computed."""


@contextmanager
def repeating(wanted: bool) -> Iterator[None]:
    """Inside, an operator that has no deterministic form is refused by torch; the user's settings are restored."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    os.environ.setdefault(WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        torch.backends.cudnn.benchmark = benchmark
