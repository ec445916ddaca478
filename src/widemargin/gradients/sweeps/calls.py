"""Calls of torch operators, as a tape sees them: which are known, and the arguments of one.

Operators are known by the function itself, not by name: ``torch.batch_norm`` takes the arguments of
``torch.nn.functional.batch_norm`` in another order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from widemargin.gradients.sweeps.layers import folded_batch_norm

Function = Callable[..., Any]

BY_HAND = ["conv1d", "conv2d", "conv3d", "linear", "batch_norm"]
BY_HAND += ["relu", "leaky_relu", "relu6", "hardtanh", "dropout", "dropout2d"]
ARITHMETIC = ["add", "sub", "rsub", "neg", "positive", "mul", "multiply", "div", "divide", "rdiv"]
SHAPES = ["flatten", "unflatten", "view", "view_as", "reshape", "reshape_as", "permute", "transpose", "swapaxes"]
SHAPES += ["movedim", "unsqueeze", "squeeze", "expand", "getitem", "cat", "concat", "stack", "pad", "flip", "roll"]
SHAPES += ["select", "narrow", "t", "T", "mT"]
SHAPES += ["pixel_shuffle", "pixel_unshuffle", "contiguous", "clone", "to", "float", "double", "bfloat16", "type_as"]
AVERAGES = ["mean", "sum", "avg_pool1d", "avg_pool2d", "avg_pool3d"]
AVERAGES += ["adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"]
PIECEWISE = ["max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d"]
PIECEWISE += ["abs", "maximum", "minimum", "hardsigmoid", "masked_fill", "clamp", "clamp_min"]
OTHER_PRODUCTS = ["matmul", "bmm", "einsum", "addcmul"]
CURVED = ["sigmoid", "tanh", "silu", "gelu", "softplus", "elu", "celu", "selu", "mish", "hardswish", "logsigmoid"]
CURVED += ["exp", "square", "sqrt", "rsqrt", "pow", "norm", "softmax", "normalize", "layer_norm", "group_norm"]
CURVED += ["log", "reciprocal", "rms_norm", "scaled_dot_product_attention"]
SEVERAL = {torch.chunk: "chunk", torch.split: "split", torch.unbind: "unbind"}
SEVERAL |= {Tensor.chunk: "chunk", Tensor.split: "split", Tensor.unbind: "unbind"}
"""Those that cut a tensor into several."""

QUOTIENTS = ("div", "divide", "rdiv")
PRODUCTS = ("mul", "multiply", *QUOTIENTS, *OTHER_PRODUCTS)
_DUNDERS = {"__getitem__": "getitem", "__rsub__": "rsub", "__rdiv__": "rdiv", "__matmul__": "matmul", "__pow__": "pow"}
_OTHER_ARGUMENTS: set[Any] = {torch.batch_norm, F.elu_}


def _functions() -> dict[Function, str]:
    names = [*BY_HAND, *ARITHMETIC, *SHAPES, *AVERAGES, *PIECEWISE, *OTHER_PRODUCTS, *CURVED]
    found = {getattr(space, name, None): name for name in names for space in (torch, Tensor, F)}
    found |= {getattr(Tensor, dunder): name for dunder, name in _DUNDERS.items()}
    found |= {getattr(Tensor, axes).__get__: axes for axes in ("T", "mT")}
    found[folded_batch_norm] = "folded_batch_norm"
    return {f: name for f, name in found.items() if callable(f) and f not in _OTHER_ARGUMENTS}


def _in_place() -> dict[Function, Function]:
    pairs = [(space, name) for name in NAMES.values() for space in (torch, Tensor, F)]
    found = {getattr(space, f"{name}_", None): getattr(space, name, None) for space, name in pairs}
    return {f: other for f, other in found.items() if callable(f) and other in NAMES and f not in _OTHER_ARGUMENTS}


NAMES = _functions()
"""The name of every known operator."""
METADATA = {Tensor.size, Tensor.dim, Tensor.stride, Tensor.numel, Tensor.is_floating_point, Tensor.is_contiguous}
METADATA |= {getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "is_cuda", "layout")}
"""Those that ask for no numbers."""
OF_PARAMETERS = NAMES | {torch._weight_norm: "weight_norm", torch.mv: "mv", torch.dot: "dot", torch.vdot: "vdot"}
"""Those that may compute a weight from parameters: what they are is for torch to differentiate."""
OUT_OF_PLACE = _in_place()
"""The operator without side effects, for every one that works in place."""


class NotSweepable(Exception):  # noqa: N818 - not an error: double backward is taken
    """Something the sweeps cannot account for."""


class UnknownOperator(NotSweepable):
    """An operator without a rule: somebody could write one, or take another operator."""


class NotWorthwhile(NotSweepable):
    """The sweeps could, but double backward is at least as fast."""


@dataclass(frozen=True)
class Call:
    """One call: operator, arguments, and which tensors are what."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    tensors: list[Tensor]
    """Those of the arguments, in order."""
    depends: Callable[[Any], bool]
    """Whether a tensor depends on the images."""
    parameter: Callable[[Any], str | None]
    """The name of a parameter that is trained."""
    snapshot: Callable[[Tensor], Tensor]
    """A constant that will be read later, as it is now."""

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        return self.args[position] if len(self.args) > position else self.options.get(name, default)

    def put(self, result: Tensor) -> None:
        """The result, where a rule has computed it."""
        self.__dict__["result"] = result

    @property
    def autocast(self) -> bool:
        """Whether it may run in another type than that of its arguments."""
        return torch.is_autocast_enabled(self.x.device.type)

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
