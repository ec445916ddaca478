"""One capture of a CUDA graph at a time, whatever other threads of the process do on the GPU meanwhile.

Torch hands out its streams in rotation, so a new stream may be one that somebody uses. Captures therefore have streams
of another priority, from a pool that nothing else here draws from: no launch of another thread gets into a graph.
Each thread has its own. cuBLAS has one workspace for a stream and a handle, every backward pass of the process has the
same handle, and a graph keeps the workspace it was captured with: graphs that are replayed at once must not share it.

Whoever takes several of the process's locks takes them in this order: turns, TF32 switches, global
generator, captures.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

CAPTURES = threading.Lock()
"""Held during a capture, and by whoever does what no capture bears: setting the GPU's global generator, waiting for
the whole device."""


@contextmanager
def capturing(graph: Any, device: torch.device, pool: Any = None) -> Iterator[None]:
    """What is launched inside becomes the graph's."""
    back = torch.cuda.stream(torch.cuda.current_stream(device))  # a capture that fails does not go back by itself
    own = _stream(device)
    with CAPTURES, back, torch.cuda.graph(graph, pool=pool, stream=own, capture_error_mode="thread_local"):
        yield


def wait_for_device(device: torch.device) -> None:
    """After a capture that failed."""
    with CAPTURES:
        torch.cuda.synchronize(device)


class _Own(threading.local):
    """What a thread has for itself: the stream of its captures, on each device."""

    def __init__(self) -> None:
        self.streams: dict[torch.device, torch.cuda.Stream] = {}


_own = _Own()


def _stream(device: torch.device) -> torch.cuda.Stream:
    if device not in _own.streams:
        _own.streams[device] = torch.cuda.Stream(device, priority=-1)
    return _own.streams[device]
