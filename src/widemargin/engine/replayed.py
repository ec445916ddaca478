"""A function of tensors as a CUDA graph: captured after a few calls with a shape, replayed from then on.

The kernels are those of the ordinary call, so the numbers are too; only the time between launches is gone. Outside
CUDA, and where a capture fails, the function is simply called.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from widemargin.engine.capturing import capturing

Function = Callable[..., Tensor]
CALLS = 10
"""Calls with a shape before one is captured: a capture makes the GPU wait, and must be worth it."""


class Replayed:
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
        graph, places, result = found
        for place, tensor in zip(places, inputs, strict=True):
            place.copy_(tensor)
        graph.replay()
        return result.clone()

    def _capture(self, inputs: tuple[Tensor, ...]) -> tuple[Any, tuple[Tensor, ...], Tensor] | None:
        places = tuple(tensor.clone() for tensor in inputs)
        graph = torch.cuda.CUDAGraph()
        try:
            with capturing(graph, inputs[0].device):
                result = self._function(*places)
        except RuntimeError:
            self._captures = False
            torch.cuda.synchronize(inputs[0].device)
            return None
        return graph, places, result
