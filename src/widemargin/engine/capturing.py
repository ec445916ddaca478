"""Capturing a CUDA graph."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


@contextmanager
def capturing(graph: Any, device: torch.device, pool: Any = None) -> Iterator[None]:
    """What this thread launches inside becomes the graph's."""
    back = torch.cuda.stream(torch.cuda.current_stream(device))  # a capture that fails does not go back by itself
    with back, torch.cuda.graph(graph, pool=pool, stream=_stream(device), capture_error_mode="thread_local"):
        yield


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Torch's own default is on the device that was current when somebody first captured."""
    return torch.cuda.Stream(device)
