"""Capturing a CUDA graph."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def capturing(graph: Any, device: torch.device, pool: Any = None) -> Iterator[None]:
    """What this thread launches inside becomes the graph's."""
    back = torch.cuda.stream(torch.cuda.current_stream(device))  # a capture that fails does not go back by itself
    with back, torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        yield
