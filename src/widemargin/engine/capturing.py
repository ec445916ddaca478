"""One capture of a CUDA graph at a time, whatever other threads of the process do on the GPU meanwhile."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

CAPTURES = threading.Lock()
"""Held during a capture, and by whoever does what no capture bears, such as setting the GPU's global generator."""


@contextmanager
def capturing(graph: Any, pool: Any = None) -> Iterator[None]:
    """What is launched inside becomes the graph's. Whoever also holds the TF32 switches takes them before."""
    with CAPTURES, torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        yield
