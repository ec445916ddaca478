"""What the machine can do at best, measured in the same run: a large matrix product, and the model's own convolutions.

The convolution ceiling is the rate of a step that consists of nothing but the model's dominant convolutions, back to
back, in the mix of forward, backward and weight gradients that the step has: FLOPs over the sum of their times.
"""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.timing import Clock, Step
from widemargin.core.modes import evaluating
from widemargin.engine.plan import Plan
from widemargin.jobs.cost import Passes

MOST_SHAPES = 6
COVERED = 0.9
"""The dominant shapes are those that together make this much of the convolutions' FLOPs, at most ``MOST_SHAPES``."""


@dataclass(frozen=True)
class Convolution:
    """The shape of a convolution of one image."""

    weight: tuple[int, ...]
    size: tuple[int, int]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def flops(self) -> float:
        """FLOPs of one image; the same in each kind of pass."""
        sides = zip(self.size, self.weight[2:], self.stride, self.padding, self.dilation, strict=True)
        out = [
            (size + 2 * pad - dilate * (kernel - 1) - 1) // stride + 1 for size, kernel, stride, pad, dilate in sides
        ]
        return 2.0 * math.prod(self.weight) * math.prod(out)


def matrix_ceiling(plan: Plan, clock: Clock) -> float:
    """FLOPs a second of a square matrix product in the plan's precision."""
    gpu = clock.device.type == "cuda"
    side = 8192 if gpu else 1024
    a, b = (torch.randn(side, side, device=clock.device, dtype=plan.reduced or torch.float32) for _ in range(2))
    return 2.0 * side**3 / clock.median(lambda: _discard(a @ b), rounds=5, steps=10 if gpu else 1)


def dominant_convolutions(model: nn.Module, image_shape: tuple[int, ...]) -> dict[Convolution, float]:
    """The model's largest convolutions, each with its share of FLOPs among them; empty where there are none."""
    found: Counter[Convolution] = Counter()
    total = 0.0
    for convolution, count in _convolutions(model, image_shape).items():
        found[convolution] = int(count * convolution.flops)
        total += found[convolution]
    chosen: dict[Convolution, float] = {}
    for convolution, flops in found.most_common(MOST_SHAPES):
        if sum(chosen.values()) < COVERED * total:
            chosen[convolution] = flops
    return {convolution: flops / sum(chosen.values()) for convolution, flops in chosen.items()}


def convolution_ceiling(
    shapes: dict[Convolution, float], passes: Passes, batch_size: int, plan: Plan, clock: Clock
) -> float | None:
    """FLOPs a second of these convolutions in the step's mix of passes, or None without convolutions."""
    if not shapes:
        return None
    kinds = passes.kinds()
    seconds_a_flop = 0.0
    for convolution, share in shapes.items():
        steps = _passes_of(convolution, batch_size, plan, clock.device)
        repeats = 20 if clock.device.type == "cuda" else 1
        for kind, count in kinds.items():
            if count:
                seconds = clock.median(steps[kind], rounds=3, steps=repeats)
                weight = share * count / sum(kinds.values())
                seconds_a_flop += weight * seconds / (batch_size * convolution.flops)
    return 1.0 / seconds_a_flop


def _convolutions(model: nn.Module, image_shape: tuple[int, ...]) -> Counter[Convolution]:
    found: Counter[Convolution] = Counter()

    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        del output
        assert isinstance(module, nn.Conv2d)
        if isinstance(module.padding, str):
            return
        size = (inputs[0].shape[-2], inputs[0].shape[-1])
        shape = tuple(module.weight.shape)
        found[Convolution(shape, size, module.stride, module.padding, module.dilation, module.groups)] += 1

    handles = [m.register_forward_hook(note) for m in model.modules() if isinstance(m, nn.Conv2d)]
    with torch.no_grad(), evaluating(model):
        model(torch.zeros(1, *image_shape, device=next(model.parameters()).device))
    for handle in handles:
        handle.remove()
    return found


def _passes_of(convolution: Convolution, batch_size: int, plan: Plan, device: torch.device) -> dict[str, Step]:
    """The three passes of one convolution, as the plan lays out its tensors."""
    layout = torch.channels_last if plan.channels_last else torch.contiguous_format

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=plan.reduced or torch.float32).contiguous(memory_format=layout)

    weight = noise(*convolution.weight)
    x = noise(batch_size, convolution.weight[1] * convolution.groups, *convolution.size)
    places = (convolution.stride, convolution.padding, convolution.dilation, False, [0, 0], convolution.groups)

    def forward() -> Tensor:
        y: Tensor = torch.ops.aten.convolution(x, weight, None, *places)
        return y

    vectors = torch.randn_like(forward())

    def backward(mask: list[bool]) -> None:
        torch.ops.aten.convolution_backward(vectors, x, weight, None, *places, mask)

    return {
        "forward": lambda: _discard(forward()),
        "backward": lambda: backward([True, False, False]),
        "weights": lambda: backward([False, True, False]),
    }


def _discard(tensor: Tensor) -> None:
    del tensor
