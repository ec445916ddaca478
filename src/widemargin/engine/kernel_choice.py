"""Which kernels a step gets: with TF32 or without, and the fastest that cuDNN finds; for nobody else in the process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from widemargin.engine.plan import Plan
from widemargin.precision import allowing_tf32, as_the_user_has_it

_lock = threading.Lock()
_searching: list[tuple[bool, int]] = []
"""The user's settings, once for each block that is open."""


@contextmanager
def choosing_kernels(plan: Plan, device: torch.device) -> Iterator[None]:
    """Inside, kernels are chosen as the plan says. A replayed graph has made its choice, and a CPU has none."""
    if device.type != "cuda":
        yield
        return
    with allowing_tf32() if plan.tf32 else as_the_user_has_it(), searching_kernels(plan.tuned):
        yield


@contextmanager
def searching_kernels(wanted: bool) -> Iterator[None]:
    """Inside, cuDNN tries its kernels and takes the fastest; not where a deterministic run was asked for."""
    if not wanted or torch.are_deterministic_algorithms_enabled():
        yield
        return
    cudnn = torch.backends.cudnn
    with _lock:
        _searching.append(_searching[0] if _searching else (cudnn.benchmark, cudnn.benchmark_limit))
        cudnn.benchmark, cudnn.benchmark_limit = True, 0  # all kernels, not the first ten
    try:
        yield
    finally:
        with _lock:
            before = _searching.pop()
            if not _searching:
                cudnn.benchmark, cudnn.benchmark_limit = before
