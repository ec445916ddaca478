"""A network read as affine steps and bends, the two things that can be bounded without a guess.

The network's own forward runs once, in float64, and every operator on the way from the images to the logits is seen. An
affine step (linear layer, convolution, batch norm in evaluation mode, residual sum, average, change of shape,
arithmetic with constants) takes linear functions of its result back to its inputs; a bend is an activation of one
variable made of straight pieces (ReLU, LeakyReLU, ReLU6, hardtanh). Whatever is neither is refused by its name.

Linear functions of a feature map are non-zero in a small box of it, since a convolution sees a neighborhood. They are
kept as that box (``Rows``), so that going back through a convolution costs what the neighborhood costs, not the map.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.errors import InputError
from widemargin.gradients.sweeps.calls import ARITHMETIC, AVERAGES, SHAPES, Call, NotSweepable
from widemargin.gradients.sweeps.layers import Affine, BatchNorm, Convolution, Sum
from widemargin.gradients.sweeps.operators import Operator, tensors_in
from widemargin.gradients.sweeps.rules import affine_layer_of
from widemargin.gradients.sweeps.tape import record_calls

Shape = tuple[int, ...]
_ONE_TO_ONE = {*ARITHMETIC, *SHAPES} - {"getitem", "pad"}
"""If they keep the count of numbers; the two may show one twice and leave out another."""


@dataclass(frozen=True)
class Rows:
    """M linear functions of one value, for each of B samples: (M, B, C, *box), zero outside the box at ``start``.

    A value without spatial axes is held whole, (M, B, n), or in some of its ``columns``.
    """

    values: Tensor
    start: Shape = ()
    columns: Tensor | None = None

    def part_of(self, value: Tensor) -> Tensor:
        """What the box sees of a value (B, C, ...)."""
        if self.columns is not None:
            return value.index_select(1, self.columns)
        for axis, (first, size) in enumerate(zip(self.start, self.values.shape[3:], strict=True), start=2):
            value = value.narrow(axis, first, size)
        return value

    def inner(self, value: Tensor) -> Tensor:
        """(M, B): the functions at a value (B, C, ...)."""
        return _inner(self.values, self.part_of(value))

    def inner_absolute(self, value: Tensor) -> Tensor:
        """The same with absolute coefficients."""
        return _inner(self.values.abs(), self.part_of(value))

    def whole(self, shape: Shape) -> Tensor:
        """(M, B, *shape), with the zeros."""
        if self.values.shape[2:] == shape and self.columns is None:
            return self.values
        full = self.values.new_zeros((*self.values.shape[:2], *shape))
        if self.columns is not None:
            return full.index_copy_(2, self.columns, self.values)
        self.part_of(full.flatten(0, 1)).copy_(self.values.flatten(0, 1))
        return full

    def plus(self, other: "Rows", shape: Shape) -> "Rows":
        """The sum, both being functions of a value of that shape, in a box that holds both."""
        if self.start == other.start and self.values.shape == other.values.shape and self.columns is other.columns:
            return Rows(self.values + other.values, self.start, self.columns)
        if len(shape) == 1:
            return Rows(self.whole(shape) + other.whole(shape))
        pairs = list(zip(self.start, self.values.shape[3:], other.start, other.values.shape[3:], strict=True))
        start = tuple(min(one, two) for one, _, two, _ in pairs)
        end = tuple(max(one + long, two + wide) for one, long, two, wide in pairs)
        total = self.values.new_zeros((*self.values.shape[:3], *map(int.__sub__, end, start)))
        for rows in (self, other):
            inside = Rows(rows.values, tuple(map(int.__sub__, rows.start, start)))
            inside.part_of(total.flatten(0, 1)).add_(rows.values.flatten(0, 1))
        return Rows(total, start)

    @staticmethod
    def cropped(values: Tensor) -> "Rows":
        """Of whole coefficients, without the margins that are zero."""
        start = []
        for axis in range(3, values.dim()):
            seen = values.ne(0).any(dim=[other for other in range(values.dim()) if other != axis]).nonzero()[:, 0]
            first, last = (int(seen[0]), int(seen[-1])) if len(seen) else (0, 0)
            values = values.narrow(axis, first, last - first + 1)
            start.append(first)
        return Rows(values, tuple(start))


def _inner(values: Tensor, value: Tensor) -> Tensor:
    flat, other = values.flatten(2), value.flatten(1)
    if flat.shape[1] == 1:
        return flat[:, 0] @ other.T
    result: Tensor = torch.einsum("mbn,bn->mb", flat, other.expand(flat.shape[1], -1))
    return result


@dataclass(frozen=True, kw_only=True)
class Step:
    """An operator: the numbers of the values it reads, of the one it makes, and the shape of that for one sample."""

    inputs: Shape
    output: int
    name: str
    shape: Shape


@dataclass(frozen=True, kw_only=True)
class Bend(Step):
    """y = c + slope (x - c) with c = x clamped to [low, high]: ReLU has slope 0 below 0 and no upper end."""

    low: float
    high: float
    slope: float
    center: Tensor
    """x (B, *shape) at the images themselves."""

    def of(self, x: Tensor) -> Tensor:
        """The activation itself."""
        middle = x.clamp(self.low, self.high)
        return middle + self.slope * (x - middle) if self.slope else middle


@dataclass(frozen=True, kw_only=True)
class AffineStep(Step):
    """y = J x + offset. ``layer`` knows J in both directions."""

    layer: Affine | Convolution | BatchNorm | Sum | Operator
    input_shapes: tuple[Shape, ...]
    offset: Tensor
    """(1 or B, *shape)."""
    offset_size: Tensor
    """What the offset was computed of, in absolute value: a bound of its rounding error rests on it."""
    terms: int
    """At most so many products are summed up for one number of J x or A J."""

    @property
    def is_one_to_one(self) -> bool:
        """Whether each number of y depends on one number of x, and no other does."""
        alike = len(self.inputs) == 1 and math.prod(self.input_shapes[0]) == math.prod(self.shape)
        return alike and (isinstance(self.layer, BatchNorm) or self.name in _ONE_TO_ONE)

    def back(self, rows: Rows) -> list[Rows]:
        """A J for each input, the rows A being functions of y."""
        layer = self.layer
        if isinstance(layer, Sum):
            return [rows, rows]
        if isinstance(layer, BatchNorm):
            return [replace(rows, values=rows.values * layer.scale)]
        if isinstance(layer, Convolution):
            return [_through_convolution(layer, rows)]
        if isinstance(layer, Affine) and len(self.shape) == 1:
            weight = layer.weight if rows.columns is None else layer.weight.index_select(0, rows.columns)
            return [Rows(rows.values @ weight)]
        return [Rows.cropped(a) for a in layer.adjoint(rows.whole(self.shape))]

    def push(self, inputs: Sequence[Tensor]) -> Tensor:
        """J x, without the offset."""
        return self.layer.tangent([x.unsqueeze(0) for x in inputs]).squeeze(0)

    def push_sizes(self, inputs: Sequence[Tensor]) -> Tensor:
        """|J| x for x >= 0."""
        layer = self.layer
        if isinstance(layer, Affine | Convolution):
            layer = replace(layer, weight=layer.weight.abs())
        if isinstance(layer, BatchNorm):
            layer = replace(layer, scale=layer.scale.abs())
        if not isinstance(layer, Operator):
            return layer.tangent([x.unsqueeze(0) for x in inputs]).squeeze(0)
        # averages and changes of shape have no negative coefficient; arithmetic has one coefficient for each input
        each = torch.eye(len(inputs), dtype=inputs[0].dtype, device=inputs[0].device)
        parts = [
            layer.tangent([(weight * x).unsqueeze(0) for weight, x in zip(weights, inputs, strict=True)])
            for weights in each
        ]
        return torch.stack(parts).abs().sum(0).squeeze(0)


def _through_convolution(layer: Convolution, rows: Rows) -> Rows:
    """The transposed convolution of the box; what would lie in the padding is cut off."""
    stride, padding, dilation, groups = layer.geometry
    transpose: Any = (nn.functional.conv_transpose1d, nn.functional.conv_transpose2d, nn.functional.conv_transpose3d)
    values = transpose[len(stride) - 1](
        rows.values.flatten(0, 1), layer.weight, stride=stride, dilation=dilation, groups=groups
    ).unflatten(0, rows.values.shape[:2])
    start = []
    for axis, size in enumerate(layer.input_shape[2:]):
        first = rows.start[axis] * stride[axis] - padding[axis]
        inside = max(0, first), min(size, first + values.shape[axis + 3])
        if inside[0] >= inside[1]:  # it saw padding alone
            return Rows(values.new_zeros((*values.shape[:3], *(1 for _ in stride))), tuple(0 for _ in stride))
        values = values.narrow(axis + 3, inside[0] - first, inside[1] - inside[0])
        start.append(inside[0])
    return Rows(values, tuple(start))


@dataclass(frozen=True)
class Network:
    """The steps from the images (value 0) to the logits, for the B images x that it was read with."""

    x: Tensor
    steps: list[AffineStep | Bend]
    output: int
    logits: Tensor

    @property
    def bends(self) -> list[Bend]:
        """The activations, in order."""
        return [step for step in self.steps if isinstance(step, Bend)]

    @property
    def effort(self) -> int:
        """Activations of one sample, each counted with the number of layers before it: what CROWN's time grows with."""
        return sum(before * math.prod(bend.shape) for before, bend in enumerate(self.bends))

    def differences(self, y: Tensor, classes: slice = slice(None)) -> Tensor:
        """(M, B, K): z_y - z_j as functions of the logits, for every class j or some; 0 for the label itself."""
        others = torch.arange(self.logits.shape[1], device=self.logits.device)[classes]
        rows = self.logits.new_zeros(len(others), *self.logits.shape)
        rows.scatter_(2, y.view(1, -1, 1).expand(len(others), -1, 1), 1.0)
        return rows.scatter_add_(2, others.view(-1, 1, 1).expand(-1, len(y), 1), -rows.new_ones(*rows.shape[:2], 1))


def read_network(model: nn.Module, x: Tensor, *, owner: str) -> Network:
    """Of a model in evaluation mode whose weights are of the type of the images, which all it computes must be."""
    try:
        with torch.no_grad():
            logits, calls, output = record_calls(model, x)
        steps: list[AffineStep | Bend] = []
        wanted = {output}
        for inputs, number, call in reversed(calls):
            if number in wanted:
                wanted |= set(inputs)
                with torch.no_grad():
                    if call.result.dtype != x.dtype:
                        raise NotSweepable(f"{call.name} gives {call.result.dtype} in a copy of the model in {x.dtype}")
                    if call.result.shape[:1] != x.shape[:1]:
                        raise NotSweepable(f"{call.name} makes {tuple(call.result.shape)} of {len(x)} images")
                    steps.append(_step(inputs, number, call))
    except InputError:
        raise
    except (NotSweepable, ValueError) as reason:  # a ValueError is torch's, of batch norm without statistics
        raise InputError(
            f"{owner}: cannot bound this model: {reason}; its forward must be made of linear and convolutional layers, "
            "batch norm, ReLU or LeakyReLU, sums, averages and changes of shape"
        ) from None
    return Network(x, steps[::-1], output, logits.detach())


def _step(inputs: Shape, output: int, call: Call) -> AffineStep | Bend:
    shape = tuple(call.result.shape[1:])
    ends = _ends(call)
    if ends is not None:
        low, high, slope = ends
        center = call.x.detach()
        return Bend(
            inputs=inputs, output=output, name=call.name, shape=shape, low=low, high=high, slope=slope, center=center
        )
    layer: Any = affine_layer_of(call)
    if isinstance(layer, Operator) and (
        layer.kind != "linear" or call.name not in (*ARITHMETIC, *SHAPES, *AVERAGES, "dropout", "dropout2d")
    ):
        raise NotSweepable(f"it has no bounds for {call.name}")
    offset, size = _offset(layer, call, shape)
    return AffineStep(
        inputs=inputs,
        output=output,
        name=call.name,
        shape=shape,
        layer=layer,
        input_shapes=tuple(tuple(value.shape[1:]) for value in _inputs(call)),
        offset=offset,
        offset_size=size,
        terms=_terms(layer, call),
    )


def _terms(layer: Any, call: Call) -> int:
    if isinstance(layer, Affine | Convolution):
        return layer.weight.numel() // min(layer.weight.shape[:2])
    if isinstance(layer, BatchNorm | Sum):
        return 8  # of the scale, too
    return max(call.result[0].numel(), *(value[0].numel() for value in _inputs(call)))


def _inputs(call: Call) -> list[Tensor]:
    return [value for value in tensors_in((call.args, call.options)) if call.depends(value)]


def _ends(call: Call) -> tuple[float, float, float] | None:
    """(low, high, slope elsewhere) of an activation made of straight pieces; None for another operator."""
    endless = float("inf")
    if call.name == "relu":
        return 0.0, endless, 0.0
    if call.name == "leaky_relu":
        return 0.0, endless, float(call.argument(1, "negative_slope", 0.01))
    if call.name == "relu6":
        return 0.0, 6.0, 0.0
    if call.name == "hardtanh":
        return float(call.argument(1, "min_val", -1.0)), float(call.argument(2, "max_val", 1.0)), 0.0
    if call.name in ("dropout", "dropout2d"):
        affine_layer_of(call)  # refuses one that is active
        return -endless, endless, 0.0
    return None


def _offset(layer: Any, call: Call, shape: Shape) -> tuple[Tensor, Tensor]:
    """(what the step gives for zeros, that in absolute value before anything cancelled), (1 or B, *shape)."""
    zero = call.result.new_zeros((1, *shape))
    if isinstance(layer, Affine | Convolution):
        bias = call.argument(2, "bias")
        if bias is None:
            return zero, zero
        axes = (-1, *[1] * (len(shape) - 1)) if isinstance(layer, Convolution) else (-1,)
        offset = zero + bias.detach().view(axes)
        return offset, offset.abs()
    if isinstance(layer, BatchNorm):
        moved = zero + layer.mean * layer.scale
        bias = call.argument(4, "bias")
        offset = -moved if bias is None else bias.detach().view_as(layer.mean) - moved
        return offset, offset.abs() + moved.abs()
    if isinstance(layer, Sum):
        return zero, zero
    offset = layer.call(layer.constants, *(torch.zeros_like(value) for value in layer.inputs))
    return offset, offset.abs()
