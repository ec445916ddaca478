"""The operators of torch a tape may hold, by the function itself: another one of the same name is not known.

``torch.batch_norm`` is why: it takes the arguments of ``torch.nn.functional.batch_norm`` in another order.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from widemargin.linearize.folded import folded_batch_norm

Function = Callable[..., Any]
Kind = Literal["linear", "piecewise", "curved"]
"""Of the dependence on the activations; a tangent through a curved operator depends on where they are."""

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


def kind_of(name: str, *, inputs: int, divides: bool) -> Kind:
    """How an operator depends on its ``inputs``, those that come from the images; ``divides``: by one of them."""
    if name in PIECEWISE:
        return "piecewise"
    product = name in PRODUCTS and inputs > 1
    return "curved" if name in CURVED or product or divides else "linear"


def divides_by(name: str, arguments: tuple[Any, Any]) -> Any:
    """What a quotient of two arguments divides by; None for another operator."""
    if name not in _QUOTIENTS:
        return None
    return arguments[0 if name == "rdiv" else 1]


def _functions() -> dict[Function, str]:
    names = [*BY_HAND, *ARITHMETIC, *SHAPES, *AVERAGES, *PIECEWISE, *CURVED]
    found = {getattr(space, name, None): name for name in names for space in (torch, Tensor, F)}
    found |= {getattr(Tensor, dunder): name for dunder, name in _DUNDERS.items()}
    found[folded_batch_norm] = "folded_batch_norm"
    return {f: name for f, name in found.items() if callable(f) and f not in _OTHER_ARGUMENTS}


def _in_place() -> dict[Function, Function]:
    pairs = [(space, name) for name in NAMES.values() for space in (torch, Tensor, F)]
    found = {getattr(space, f"{name}_", None): getattr(space, name, None) for space, name in pairs}
    return {f: plain for f, plain in found.items() if callable(f) and plain in NAMES and f not in _OTHER_ARGUMENTS}


NAMES = _functions()
"""The name of every known operator."""
OUT_OF_PLACE = _in_place()
"""The operator without side effects, for every one that works in place."""
