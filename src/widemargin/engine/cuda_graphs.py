"""CUDA graphs: a function of tensors is captured after a few calls with a shape, and replayed from then on.

The kernels are those of the ordinary call, so the numbers are too; only the time between launches is gone. Outside
CUDA, and where a capture fails, the function is simply called.

Launching a captured step takes microseconds, so a program would queue seconds of work, and whatever waits for the GPU
would wait for all of it: a checkpoint at a signal or at the end of the time, for one. ``Pace`` says how far a program
may run ahead of its GPU.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor


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


Function = Callable[..., Tensor]
CALLS = 10
"""Calls with a shape before one is captured: a capture makes the GPU wait, and must be worth it."""


class GraphedFunction:
    """Calls ``function``, which must do the same work on every call: no random numbers, no decisions by value."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._captured: dict[Any, tuple[Any, tuple[Tensor, ...], Tensor] | None] = {}
        self._calls: Counter[Any] = Counter()
        self._captures = True

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The function's result."""
        if not (self._captures and inputs[0].is_cuda):
            return self._function(*inputs)
        key = tuple((tensor.shape, tensor.dtype, tensor.stride()) for tensor in inputs)
        if self._calls[key] < CALLS:
            self._calls[key] += 1
            return self._function(*inputs)
        if key not in self._captured:
            self._captured[key] = self._capture(inputs)
        found = self._captured[key]
        if found is None:
            return self._function(*inputs)
        graph, static_inputs, result = found
        for static, tensor in zip(static_inputs, inputs, strict=True):
            static.copy_(tensor)
        graph.replay()
        return result.clone()

    def _capture(self, inputs: tuple[Tensor, ...]) -> tuple[Any, tuple[Tensor, ...], Tensor] | None:
        static_inputs = tuple(tensor.clone() for tensor in inputs)
        graph = torch.cuda.CUDAGraph()
        try:
            with capturing(graph, inputs[0].device):
                result = self._function(*static_inputs)
        except RuntimeError:
            self._captures = False
            torch.cuda.synchronize(inputs[0].device)
            return None
        return graph, static_inputs, result


AHEAD = 16
"""Steps: enough that the GPU never waits for the program."""


class Pace:
    """Call it after each step; now and then it waits until the GPU has caught up."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._steps = device, 0
        self._before: torch.cuda.Event | None = None

    def __call__(self) -> None:
        """One more step is queued on the current stream; at most twice ``AHEAD`` are."""
        self._steps += 1
        if self._device.type != "cuda" or self._steps % AHEAD:
            return
        if self._before is not None:
            self._before.synchronize()
        self._before = torch.cuda.Event(blocking=True)
        self._before.record(torch.cuda.current_stream(self._device))
