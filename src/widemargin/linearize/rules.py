"""From a call of an operator to the layer it is: ``layer_of`` reads the arguments, before the operator runs.

Only operators named here are accepted; for any other the answer is :class:`NotLinear`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from widemargin.double_backward import refuse_coupling_batch_norm
from widemargin.linearize.layers import Affine, BatchNorm, Convolution, Slopes, Sum
from widemargin.linearize.operators import Operator, kind_of

Layer = Convolution | Affine | BatchNorm | Slopes | Sum | Operator


class NotLinear(Exception):  # noqa: N818 - not an error: the other way is taken
    """Something the sweeps cannot account for."""


@dataclass(frozen=True)
class Call:
    """One call: operator, arguments, and which tensors are what."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    depends: Callable[[Tensor], bool]
    """Whether a tensor depends on the images."""
    parameter: Callable[[Tensor | None], str | None]
    """The name of a parameter that is trained."""
    result: Tensor

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        return self.args[position] if len(self.args) > position else self.options.get(name, default)


def layer_of(call: Call) -> Layer:
    """The layer a call is."""
    by_hand = _BY_HAND.get(call.name)
    if by_hand is not None:
        return by_hand(call)
    return _operator(call)


def _convolution(call: Call) -> Layer:
    x, weight, bias = call.args[0], call.argument(1, "weight"), call.argument(2, "bias")
    spatial = weight.dim() - 2
    _only_input(call, x, weight, bias)
    padding = call.argument(4, "padding", 0)
    if isinstance(padding, str) or x.dim() != weight.dim():
        raise NotLinear(f"{call.name} with padding {padding!r}")
    counts = (call.argument(3, "stride", 1), padding, call.argument(5, "dilation", 1))
    stride, padding, dilation = ([n] * spatial if isinstance(n, int) else list(n) for n in counts)
    stride, padding, dilation = (n * spatial if len(n) == 1 else n for n in (stride, padding, dilation))
    layout = torch.channels_last if spatial == 2 else torch.channels_last_3d
    return Convolution(
        weight=weight,
        weight_name=call.parameter(weight),
        bias_name=call.parameter(bias),
        geometry=(stride, padding, dilation, call.argument(6, "groups", 1)),
        input_shape=x.shape,
        input_dtype=x.dtype,
        dtype=call.result.dtype,
        channels_last=spatial > 1 and call.result.is_contiguous(memory_format=layout),
        x=x,
    )


def _affine(call: Call) -> Layer:
    x, weight, bias = call.args[0], call.argument(1, "weight"), call.argument(2, "bias")
    _only_input(call, x, weight, bias)
    return Affine(
        weight=weight,
        weight_name=call.parameter(weight),
        bias_name=call.parameter(bias),
        input_dtype=x.dtype,
        dtype=call.result.dtype,
        x=x,
    )


def _batch_norm(call: Call) -> Layer:
    x, mean, variance = call.args[0], call.argument(1, "running_mean"), call.argument(2, "running_var")
    weight, bias = call.argument(3, "weight"), call.argument(4, "bias")
    refuse_coupling_batch_norm(call.argument(5, "training", False), mean, variance)
    _only_input(call, x, weight, bias)
    shape = (-1, *[1] * (x.dim() - 2))
    inverse = torch.rsqrt(variance + call.argument(7, "eps", 1e-5))
    scale = inverse if weight is None else inverse * weight
    return BatchNorm(
        scale=scale.view(shape),
        inverse_deviation=inverse.view(shape),
        mean=mean.clone().view(shape),
        weight_name=call.parameter(weight),
        bias_name=call.parameter(bias),
        x=x,
    )


def _relu(call: Call) -> Layer:
    return Slopes(passes=call.args[0] > 0, elsewhere=0.0)


def _leaky_relu(call: Call) -> Layer:
    return Slopes(passes=call.args[0] > 0, elsewhere=float(call.argument(1, "negative_slope", 0.01)))


def _relu6(call: Call) -> Layer:
    return _between(call.args[0], 0.0, 6.0)


def _hardtanh(call: Call) -> Layer:
    return _between(call.args[0], call.argument(1, "min_val", -1.0), call.argument(2, "max_val", 1.0))


def _between(x: Tensor, low: float, high: float) -> Slopes:
    return Slopes(passes=(x > low) & (x < high), elsewhere=0.0)


def _dropout(call: Call) -> Layer:
    if call.argument(2, "training", True) and call.argument(1, "p", 0.5) > 0:
        raise NotLinear("dropout is active")
    return Slopes(passes=torch.ones((), dtype=torch.bool, device=call.result.device), elsewhere=0.0)


def _sum(call: Call) -> Layer:
    first, second = call.args[:2]
    alike = isinstance(first, Tensor) and isinstance(second, Tensor)
    alike = alike and first.shape == second.shape and first.dtype == second.dtype
    if alike and call.depends(first) and call.depends(second) and call.options.get("alpha", 1) == 1:
        return Sum()
    return _operator(call)


def _only_input(call: Call, x: Any, *others: Tensor | None) -> None:
    if not call.depends(x) or any(other is not None and call.depends(other) for other in others):
        raise NotLinear(f"{call.name} with a weight that depends on the images")


_BY_HAND: dict[str, Callable[[Call], Layer]] = {
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
    "linear": _affine,
    "batch_norm": _batch_norm,
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "relu6": _relu6,
    "hardtanh": _hardtanh,
    "dropout": _dropout,
    "dropout2d": _dropout,
    "add": _sum,
}


@dataclass(frozen=True)
class _Place:
    """Where a tensor goes in the arguments: among the constants or among the inputs."""

    constant: bool
    index: int


def _operator(call: Call) -> Layer:
    slots: list[Tensor] = []
    trained: dict[str, Tensor] = {}
    constants: list[Tensor] = []
    flat = tensors_in((call.args, call.options))
    for tensor in flat:
        name = call.parameter(tensor)
        if call.depends(tensor):
            slots.append(tensor)
        elif name is not None:
            trained[name] = tensor
        else:
            constants.append(tensor)
    positions = [i for i, argument in enumerate(call.args) if isinstance(argument, Tensor) and call.depends(argument)]
    kind = kind_of(call.name, slots=positions)
    if kind is None:
        raise NotLinear(f"no rule for {call.name}")
    names = list(trained)
    places = _Places(call, names)
    template = mapped((call.args, call.options), places)
    function = call.function

    def again(fixed: list[Tensor], *inputs: Tensor) -> Tensor:
        args, options = mapped(template, lambda place: (fixed if place.constant else inputs)[place.index], of=_Place)
        result: Tensor = function(*args, **options)
        return result

    return Operator(
        call=again, constants=constants, kind=kind, inputs=[*slots, *trained.values()], names=names
    )


class _Places:
    """Numbers the tensors of a call in the order ``_operator`` lists them."""

    def __init__(self, call: Call, names: list[str]) -> None:
        self.call, self.names = call, names
        self.slots = self.constants = 0
        self.total = sum(call.depends(tensor) for tensor in tensors_in((call.args, call.options)))

    def __call__(self, tensor: Tensor) -> _Place:
        name = self.call.parameter(tensor)
        if self.call.depends(tensor):
            self.slots += 1
            return _Place(False, self.slots - 1)
        if name is not None:
            return _Place(False, self.total + self.names.index(name))
        self.constants += 1
        return _Place(True, self.constants - 1)


def mapped(value: Any, change: Callable[[Any], Any], of: type = Tensor) -> Any:
    """The same nest of lists, tuples and dictionaries with every ``of`` changed."""
    if isinstance(value, of):
        return change(value)
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(mapped(item, change, of) for item in value)
    if isinstance(value, dict):
        return {key: mapped(item, change, of) for key, item in value.items()}
    return value


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of a nest, in order."""
    found: list[Tensor] = []
    mapped(value, found.append)
    return found
