"""Which layer a call of a torch operator is.

Operators are known by the function itself, not by name: ``torch.batch_norm`` takes the arguments of
``torch.nn.functional.batch_norm`` in another order. A rule reads the arguments first and ``call.result``, which runs
the operator, when it has accepted them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from widemargin.gradients.double_backward import refuse_coupling_batch_norm
from widemargin.gradients.sweeps.layers import Affine, BatchNorm, Convolution, Slopes, Sum, folded_batch_norm
from widemargin.gradients.sweeps.operators import Operator, mapped, tensors_in

Function = Callable[..., Any]

BY_HAND = ["conv1d", "conv2d", "conv3d", "linear", "batch_norm"]
BY_HAND += ["relu", "leaky_relu", "relu6", "hardtanh", "dropout", "dropout2d"]
ARITHMETIC = ["add", "sub", "rsub", "neg", "positive", "mul", "multiply", "div", "divide", "rdiv"]
SHAPES = ["flatten", "unflatten", "view", "view_as", "reshape", "reshape_as", "permute", "transpose", "swapaxes"]
SHAPES += ["movedim", "unsqueeze", "squeeze", "expand", "getitem", "cat", "concat", "stack", "pad", "flip", "roll"]
SHAPES += ["pixel_shuffle", "pixel_unshuffle", "contiguous", "clone", "to", "float", "double", "bfloat16", "type_as"]
AVERAGES = ["mean", "sum", "avg_pool1d", "avg_pool2d", "avg_pool3d"]
AVERAGES += ["adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"]
PIECEWISE = ["max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d"]
PIECEWISE += ["abs", "maximum", "minimum", "hardsigmoid"]
CURVED = ["sigmoid", "tanh", "silu", "gelu", "softplus", "elu", "celu", "selu", "mish", "hardswish", "logsigmoid"]
CURVED += ["exp", "square", "sqrt", "rsqrt", "softmax", "normalize", "layer_norm", "group_norm"]

_QUOTIENTS = ("div", "divide", "rdiv")
PRODUCTS = ("mul", "multiply", *_QUOTIENTS)
_DUNDERS = {"__getitem__": "getitem", "__rsub__": "rsub", "__rdiv__": "rdiv"}
_OTHER_ARGUMENTS: set[Any] = {torch.batch_norm, F.elu_}


def _functions() -> dict[Function, str]:
    names = [*BY_HAND, *ARITHMETIC, *SHAPES, *AVERAGES, *PIECEWISE, *CURVED]
    found = {getattr(space, name, None): name for name in names for space in (torch, Tensor, F)}
    found |= {getattr(Tensor, dunder): name for dunder, name in _DUNDERS.items()}
    found[folded_batch_norm] = "folded_batch_norm"
    return {f: name for f, name in found.items() if callable(f) and f not in _OTHER_ARGUMENTS}


def _in_place() -> dict[Function, Function]:
    pairs = [(space, name) for name in NAMES.values() for space in (torch, Tensor, F)]
    found = {getattr(space, f"{name}_", None): getattr(space, name, None) for space, name in pairs}
    return {f: other for f, other in found.items() if callable(f) and other in NAMES and f not in _OTHER_ARGUMENTS}


NAMES = _functions()
"""The name of every known operator."""
OUT_OF_PLACE = _in_place()
"""The operator without side effects, for every one that works in place."""


Layer = Convolution | Affine | BatchNorm | Slopes | Sum | Operator


class NotSweepable(Exception):  # noqa: N818 - not an error: double backward is taken
    """Something the sweeps cannot account for."""


@dataclass(frozen=True)
class Call:
    """One call: operator, arguments, and which tensors are what."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    depends: Callable[[Any], bool]
    """Whether a tensor depends on the images."""
    parameter: Callable[[Any], str | None]
    """The name of a parameter that is trained."""
    snapshot: Callable[[Tensor], Tensor]
    """A constant that will be read later, as it is now."""

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        return self.args[position] if len(self.args) > position else self.options.get(name, default)

    @property
    def x(self) -> Any:
        """The first argument."""
        return self.argument(0, "input")

    @cached_property
    def result(self) -> Tensor:
        """What the operator gives."""
        result = self.function(*self.args, **self.options)
        if not isinstance(result, Tensor) or not result.is_floating_point():
            raise NotSweepable(f"{self.name} does not give one tensor of real numbers")
        return result


def layer_of(call: Call) -> Layer:
    """The layer a call is."""
    return _BY_HAND.get(call.name, _operator)(call)


def _convolution(call: Call) -> Layer:
    weight, bias = call.argument(1, "weight"), call.argument(2, "bias")
    _only_input(call, weight, bias)
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(call.x.dim())
    return Convolution(
        weight=call.snapshot(weight),
        weight_name=call.parameter(weight),
        bias_name=call.parameter(bias),
        geometry=_geometry(call, spatial=weight.dim() - 2),
        input_shape=call.x.shape,
        input_dtype=call.x.dtype,
        dtype=call.result.dtype,
        channels_last=layout is not None and call.result.is_contiguous(memory_format=layout),
        x=call.x,
    )


def _geometry(call: Call, *, spatial: int) -> tuple[Any, ...]:
    counts = call.argument(3, "stride", 1), call.argument(4, "padding", 0), call.argument(5, "dilation", 1)
    if isinstance(counts[1], str) or call.x.dim() != spatial + 2:
        raise NotSweepable(f"{call.name} with padding {counts[1]!r} of an input of {call.x.dim()} axes")
    lists = ([n] if isinstance(n, int) else list(n) for n in counts)
    return *(n * spatial if len(n) == 1 else n for n in lists), call.argument(6, "groups", 1)


def _affine(call: Call) -> Layer:
    weight, bias = call.argument(1, "weight"), call.argument(2, "bias")
    _only_input(call, weight, bias)
    if call.x.dim() < 2 or weight.dim() != 2:
        raise NotSweepable("linear without a batch")
    return Affine(
        weight=call.snapshot(weight),
        weight_name=call.parameter(weight),
        bias_name=call.parameter(bias),
        input_dtype=call.x.dtype,
        dtype=call.result.dtype,
        x=call.x,
    )


def _batch_norm(call: Call) -> Layer:
    mean, variance = call.argument(1, "running_mean"), call.argument(2, "running_var")
    weight, bias = call.argument(3, "weight"), call.argument(4, "bias")
    refuse_coupling_batch_norm(call.argument(5, "training", False), mean, variance)
    _only_input(call, mean, variance, weight, bias)
    inverse = torch.rsqrt(variance + call.argument(7, "eps", 1e-5))
    return _normalization(call, inverse if weight is None else inverse * weight, mean, inverse, weight, bias)


def _folded_batch_norm(call: Call) -> Layer:
    _, scale, _, mean, inverse, weight, bias = call.args
    _only_input(call, scale, mean, inverse, weight, bias)
    return _normalization(call, scale.clone(), mean, inverse.clone(), weight, bias)  # the next refresh overwrites them


def _normalization(
    call: Call, scale: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Layer:
    shape = (-1, *[1] * (call.x.dim() - 2))
    return BatchNorm(
        scale=scale.view(shape),
        inverse_deviation=inverse.view(shape),
        mean=mean.clone().view(shape),
        weight_name=call.parameter(weight),
        bias_name=call.parameter(bias),
        x=call.x,
    )


def _between(x: Tensor, low: float, high: float) -> Slopes:
    return Slopes(passes=(x > low) & (x < high), elsewhere=0.0)


def _dropout(call: Call) -> Layer:
    if call.argument(2, "training", True) and call.argument(1, "p", 0.5) > 0:
        raise NotSweepable("dropout is active")
    return Slopes(passes=torch.ones((), dtype=torch.bool, device=call.x.device), elsewhere=0.0)


def _sum(call: Call) -> Layer:
    first, second = call.x, call.argument(1, "other")
    if not (call.depends(first) and call.depends(second)) or call.options.get("alpha", 1) != 1:
        return _operator(call)
    return Sum() if first.shape == second.shape and first.dtype == second.dtype else _operator(call)


def _only_input(call: Call, *others: Tensor | None) -> None:
    if not call.depends(call.x) or any(call.depends(other) for other in others):
        raise NotSweepable(f"{call.name} with a weight that depends on the images")


_BY_HAND: dict[str, Callable[[Call], Layer]] = {
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
    "linear": _affine,
    "batch_norm": _batch_norm,
    "folded_batch_norm": _folded_batch_norm,
    "relu": lambda call: Slopes(passes=call.x > 0, elsewhere=0.0),
    "leaky_relu": lambda call: Slopes(passes=call.x > 0, elsewhere=float(call.argument(1, "negative_slope", 0.01))),
    "relu6": lambda call: _between(call.x, 0.0, 6.0),
    "hardtanh": lambda call: _between(call.x, call.argument(1, "min_val", -1.0), call.argument(2, "max_val", 1.0)),
    "dropout": _dropout,
    "dropout2d": _dropout,
    "add": _sum,
}


def _operator(call: Call) -> Layer:
    tensors = tensors_in((call.args, call.options))
    inputs = [tensor for tensor in tensors if call.depends(tensor)]
    trained = {name: tensor for tensor in tensors if (name := call.parameter(tensor)) is not None}
    others = [tensor for tensor in tensors if not call.depends(tensor) and call.parameter(tensor) is None]
    divisor = call.x if call.name == "rdiv" else call.argument(1, "other")
    divides = call.name in _QUOTIENTS and call.depends(divisor)
    product = call.name in PRODUCTS and len(inputs) > 1
    curved = call.name in CURVED or product or divides
    return Operator(
        call=_again(call, [*map(id, inputs)], [*trained]),
        constants=[call.snapshot(tensor) for tensor in others],
        kind="piecewise" if call.name in PIECEWISE else "curved" if curved else "linear",
        inputs=[*inputs, *trained.values()],
        names=[*trained],
        multiplies=call.name in PRODUCTS,
    )


@dataclass(frozen=True)
class _Place:
    """Where a tensor of the arguments is found: among the constants or among the inputs."""

    constant: bool
    index: int


def _again(call: Call, inputs: list[int], names: list[str]) -> Callable[..., Tensor]:
    """The operator as a function of (constants, *inputs), under the autocast it ran in."""
    numbers = iter(range(len(tensors_in((call.args, call.options)))))

    def place(tensor: Tensor) -> _Place:
        name = call.parameter(tensor)
        if call.depends(tensor):
            return _Place(constant=False, index=inputs.index(id(tensor)))
        if name is not None:
            return _Place(constant=False, index=len(inputs) + names.index(name))
        return _Place(constant=True, index=next(numbers))

    template = mapped((call.args, call.options), place)
    function, device = call.function, call.result.device.type
    autocast, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    def again(constants: list[Tensor], *values: Tensor) -> Tensor:
        args, options = mapped(template, lambda at: (constants if at.constant else values)[at.index], of=_Place)
        with torch.autocast(device, dtype=dtype, enabled=autocast, cache_enabled=False):
            result: Tensor = function(*args, **options)
        return result

    return again
