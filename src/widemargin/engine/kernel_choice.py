"""Which kernels a step gets: with TF32 or without, and the fastest that cuDNN finds; the user's settings come back."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from widemargin.engine.plan import Plan
from widemargin.precision import allowing_tf32


@contextmanager
def choosing_kernels(plan: Plan, device: torch.device) -> Iterator[None]:
    """Inside, kernels are chosen as the plan says. A replayed graph has made its choice, and a CPU has none."""
    if device.type != "cuda":
        yield
        return
    with allowing_tf32() if plan.tf32 else nullcontext(), searching_kernels(plan.tuned):
        yield


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
