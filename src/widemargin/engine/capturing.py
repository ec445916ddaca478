"""One capture of a CUDA graph at a time, whatever other threads of the process do on the GPU meanwhile.

Torch hands out its streams in rotation, so a new stream may be one that somebody uses. Captures therefore have a stream
of another priority, from a pool that nothing else here draws from: no launch of another thread gets into a graph.

Whoever takes several of the process's locks takes them in this order: TF32 switches, global generator, captures.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

CAPTURES = threading.Lock()
"""Held during a capture, and by whoever does what no capture bears: setting the GPU's global generator, waiting for
the whole device."""


@contextmanager
def capturing(graph: Any, device: torch.device, pool: Any = None) -> Iterator[None]:
    """What is launched inside becomes the graph's."""
    with CAPTURES, torch.cuda.graph(graph, pool=pool, stream=_stream(device), capture_error_mode="thread_local"):
        yield


def wait_for_device(device: torch.device) -> None:
    """After a capture that failed."""
    with CAPTURES:
        torch.cuda.synchronize(device)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)
