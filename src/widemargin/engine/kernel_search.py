"""cuDNN's search for the fastest kernel of each convolution: on while steps are prepared, and for nobody else."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def searching_kernels(wanted: bool) -> Iterator[None]:
    """Inside, cuDNN tries its kernels and takes the fastest; not where a deterministic run was asked for."""
    if not wanted or torch.are_deterministic_algorithms_enabled():
        yield
        return
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.benchmark_limit
    cudnn.benchmark, cudnn.benchmark_limit = True, 0  # all kernels, not the first ten
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.benchmark_limit = before
