"""Which layer a call of a torch operator is.

A rule reads the arguments first and ``call.result``, which runs the operator, when it has accepted them. What has no
rule by hand, or is called in a way that the rule does not know, is an ``Operator``: right for all, fast for none.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from widemargin.gradients.double_backward import refuse_coupling_batch_norm
from widemargin.gradients.sweeps.calls import (
    AVERAGES,
    CURVED,
    PIECEWISE,
    PRODUCTS,
    QUOTIENTS,
    SHAPES,
    Call,
    NotSweepable,
)
from widemargin.gradients.sweeps.curved import Attention, LayerNorm, MatrixProduct, Pointwise, Product, Softmax
from widemargin.gradients.sweeps.layers import Affine, BatchNorm, Convolution, Slopes, Sum
from widemargin.gradients.sweeps.operators import Operator, mapped
from widemargin.gradients.sweeps.shapes import Join, Part, Permute, Reshape, Roll, Scaled, Shifted

AffineLayer = Convolution | Affine | BatchNorm | Slopes | Sum | Operator
ShapeLayer = Reshape | Permute | Roll | Part | Join | Scaled | Shifted
CurvedLayer = Pointwise | Product | MatrixProduct | Softmax | LayerNorm | Attention
Layer = AffineLayer | ShapeLayer | CurvedLayer


def layer_of(call: Call) -> Layer:
    """The layer a call is."""
    return _RULES.get(call.name, operator)(call)


def affine_layer_of(call: Call) -> AffineLayer:
    """The same among layers with weights, sums and operators: for those who tell affine ones by that."""
    layer: AffineLayer = _BY_HAND.get(call.name, operator)(call)
    return layer


def _convolution(call: Call) -> Convolution | Affine:
    weight, bias = call.argument(1, "weight"), call.argument(2, "bias")
    _only_input(call, weight, bias)
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(call.x.dim())
    return Convolution(
        weight=call.snapshot(weight),
        weight_name=call.parameter(weight),
        bias_name=call.parameter(bias),
        geometry=_geometry(call, weight.shape[2:]),
        input_shape=call.x.shape,
        output_shape=call.result.shape,
        input_dtype=call.x.dtype,
        dtype=call.result.dtype,
        channels_last=layout is not None and call.result.is_contiguous(memory_format=layout),
        x=call.x,
    )


def _geometry(call: Call, kernel: Sequence[int]) -> tuple[Any, ...]:
    stride, dilation = (
        _per_axis(call.argument(place, name, 1), kernel) for place, name in ((3, "stride"), (5, "dilation"))
    )
    padding = call.argument(4, "padding", 0)
    added = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
    if padding == "valid":
        padding = 0
    elif padding == "same" and not any(total % 2 for total in added):
        padding = [total // 2 for total in added]  # as much on either side
    if isinstance(padding, str) or call.x.dim() != len(kernel) + 2:
        raise NotSweepable(f"{call.name} with padding {padding!r} of an input of {call.x.dim()} axes")
    return stride, _per_axis(padding, kernel), dilation, call.argument(6, "groups", 1)


def _per_axis(counts: int | Sequence[int], kernel: Sequence[int]) -> list[int]:
    listed = [counts] if isinstance(counts, int) else list(counts)
    return listed * len(kernel) if len(listed) == 1 else listed


def _affine(call: Call) -> Convolution | Affine:
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


def _sum(call: Call) -> Sum | Operator:
    first, second = call.x, call.argument(1, "other")
    if not (call.depends(first) and call.depends(second)) or call.options.get("alpha", 1) != 1:
        return operator(call)
    return Sum() if first.shape == second.shape and first.dtype == second.dtype else operator(call)


def _only_input(call: Call, *others: Tensor | None) -> None:
    if not call.depends(call.x) or any(call.depends(other) for other in others):
        raise NotSweepable(f"{call.name} with a weight that depends on the images")


_BY_HAND: dict[str, Callable[[Call], Any]] = {
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


def _shaped(call: Call) -> Layer:
    """The numbers of one tensor as they are."""
    if len(call.tensors) != 1 or call.result.dtype != call.x.dtype or call.result.numel() != call.x.numel():
        return operator(call)
    return Reshape(input_shape=call.x.shape, shape=call.result.shape)


def _permuted(call: Call) -> Layer:
    count, given = call.x.dim(), _given(call, "dims", "dim0", "dim1", "axis0", "axis1")
    if call.name == "permute":
        axes = [axis % count for axis in given]
    else:
        swapped = given if call.name in ("transpose", "swapaxes") else [-2, -1]
        if len(swapped) != 2 or count < 2 or (call.name in ("t", "T") and count != 2):
            return operator(call)
        first, second = (axis % count for axis in swapped)
        axes = list(range(count))
        axes[first], axes[second] = second, first
    return Permute(axes=tuple(axes)) if sorted(axes) == list(range(count)) else operator(call)


def _rolled(call: Call) -> Layer:
    shifts, dims = call.argument(1, "shifts"), call.argument(2, "dims")
    shifts = (shifts,) if isinstance(shifts, int) else shifts
    dims = (dims,) if isinstance(dims, int) else dims
    if not dims or len(shifts) != len(dims):
        return operator(call)
    return Roll(shifts=tuple(shifts), axes=tuple(axis % call.x.dim() for axis in dims))


def _given(call: Call, *names: str) -> list[int]:
    """Axes, one after the other or as a list, by position or by name."""
    values = [*call.args[1:], *(call.options[name] for name in names if name in call.options)]
    return [axis for value in values for axis in ([value] if isinstance(value, int) else value)]


def _indexed(call: Call) -> Layer:
    """One stretch or place along one axis; all else by torch."""
    index = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
    named = sum(item is not Ellipsis for item in index)
    where: list[tuple[int, Any]] = []
    axis = 0
    for item in index:
        if isinstance(item, Tensor | list) or item is None or isinstance(item, bool):
            return operator(call)
        if item is Ellipsis:
            axis += call.x.dim() - named
            continue
        if item != slice(None):
            where.append((axis, item))
        axis += 1
    if not where and call.result.shape == call.x.shape:
        return _shaped(call)
    if len(where) != 1:
        return operator(call)
    ((axis, item),) = where
    return _part(call, axis, item)


def _part(call: Call, axis: int, item: int | slice) -> Layer:
    axis, size = axis % call.x.dim(), call.x.shape[axis]
    if isinstance(item, slice):
        start, stop, step = item.indices(size)
        if step != 1 or stop <= start:
            return operator(call)
        return Part(input_shape=call.x.shape, axis=axis, start=start, length=stop - start, squeezes=False)
    return Part(input_shape=call.x.shape, axis=axis, start=int(item) % size, length=1, squeezes=True)


def _selected(call: Call) -> Layer:
    axis, item = call.argument(1, "dim"), call.argument(2, "index")
    return _part(call, axis, item) if isinstance(axis, int) and isinstance(item, int) else operator(call)


def _narrowed(call: Call) -> Layer:
    axis, start, length = (call.argument(place, name) for place, name in ((1, "dim"), (2, "start"), (3, "length")))
    if not (isinstance(start, int) and isinstance(length, int)):
        return operator(call)
    start = start % call.x.shape[axis]
    return _part(call, axis, slice(start, start + length))


def parts_of(call: Call, results: Any) -> list[Part]:
    """The layers of an operator that cuts a tensor into the results, in order."""
    place, name = (0, "dim") if call.name == "unbind" else (1, "dim")
    axis = call.argument(1 + place, name, 0) % call.x.dim()
    squeezes = call.name == "unbind"
    lengths = [1 if squeezes else result.shape[axis] for result in results]
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    return [
        Part(input_shape=call.x.shape, axis=axis, start=start, length=length, squeezes=squeezes)
        for start, length in zip(starts, lengths, strict=True)
    ]


def _joined(call: Call) -> Layer:
    tensors = call.argument(0, "tensors")
    axis = call.argument(1, "dim", 0)
    if not isinstance(axis, int) or any(t.dtype != call.result.dtype or t.dim() != call.result.dim() for t in tensors):
        return operator(call)
    pieces: list[str | int | None] = []
    for tensor in tensors:
        inputs = sum(isinstance(piece, int) for piece in pieces)
        pieces.append(inputs if call.depends(tensor) else call.parameter(tensor))
    return Join(axis=axis % call.result.dim(), pieces=pieces, shapes=[tensor.shape for tensor in tensors])


def _multiplied(call: Call) -> Layer:
    x, y = call.x, call.argument(1, "other")
    if call.depends(x) and call.depends(y):
        return Product(x=x, y=y) if x.dtype == y.dtype == call.result.dtype else operator(call)
    x, factor = (x, y) if call.depends(x) else (y, x)
    name = call.parameter(factor)
    if isinstance(factor, Tensor):
        if call.result.dtype != x.dtype or (name is not None and factor.dtype != x.dtype):
            return operator(call)
        factor = call.snapshot(factor)
    elif not isinstance(factor, int | float) or call.result.dtype != x.dtype:
        return operator(call)
    return Scaled(factor=factor, weight_name=name, shape=x.shape, x=x if name is not None else None)


def _divided(call: Call) -> Layer:
    divisor = call.argument(1, "other")
    plain = isinstance(divisor, int | float) and divisor != 0 and "rounding_mode" not in call.options
    if not plain or call.result.dtype != call.x.dtype:
        return operator(call)
    return Scaled(factor=1 / divisor, weight_name=None, shape=call.x.shape, x=None)


def _shifted(call: Call) -> Layer:
    """x + other, x - other, and other - x, which is called by x too."""
    x, other = call.x, call.argument(1, "other")
    if call.options.get("alpha", 1) != 1 or len(call.args) > 2 or (call.depends(x) and call.depends(other)):
        return operator(call)
    signs = {"add": (1.0, 1.0), "sub": (1.0, -1.0), "rsub": (-1.0, 1.0)}[call.name]
    x, other, (sign, bias_sign) = (x, other, signs) if call.depends(x) else (other, x, signs[::-1])
    name = call.parameter(other)
    if call.result.dtype != x.dtype or (name is not None and other.dtype != x.dtype):
        return operator(call)
    return Shifted(
        bias_name=name,
        bias_sign=bias_sign,
        bias_shape=other.shape if isinstance(other, Tensor) else torch.Size(),
        sign=sign,
        input_shape=x.shape,
        shape=call.result.shape,
    )


def _added(call: Call) -> Layer:
    layer = _sum(call)
    return layer if isinstance(layer, Sum) else _shifted(call)


def _filled(call: Call) -> Layer:
    """A mask that is a constant stops what it covers."""
    mask, value = call.argument(1, "mask"), call.argument(2, "value")
    if not isinstance(value, int | float) or call.depends(mask) or call.result.shape != call.x.shape:
        return operator(call)
    return Slopes(passes=~mask, elsewhere=0.0)


_RESHAPES = ("flatten", "unflatten", "view", "view_as", "reshape", "reshape_as", "unsqueeze", "squeeze")
_SHAPES: dict[str, Callable[[Call], Layer]] = {
    **dict.fromkeys((*_RESHAPES, "contiguous", "clone"), _shaped),
    **dict.fromkeys(("permute", "transpose", "swapaxes", "t", "T", "mT"), _permuted),
    "pad": lambda call: operator(call) if any(call.argument(1, "pad")) else _shaped(call),
    "roll": _rolled,
    "getitem": _indexed,
    "select": _selected,
    "narrow": _narrowed,
    "cat": _joined,
    "concat": _joined,
    "mul": _multiplied,
    "multiply": _multiplied,
    "div": _divided,
    "divide": _divided,
    "add": _added,
    "sub": _shifted,
    "rsub": _shifted,
    "masked_fill": _filled,
}


def _pointwise(call: Call) -> Layer:
    """Slope and second derivative by torch's, where there is no shorter form."""
    if len(call.tensors) != 1 or call.result.dtype != call.x.dtype:
        return operator(call)
    x, ones = call.x, torch.ones_like(call.x)
    if call.name == "gelu" and call.argument(1, "approximate", "none") == "none":
        return Pointwise(x=x, slope=torch.ops.aten.gelu_backward(ones, x), second=_gelu_second)
    if call.name == "silu":
        return Pointwise(x=x, slope=torch.ops.aten.silu_backward(ones, x), second=_silu_second)
    again = _again(call, [id(x)], [])

    def slope(at: Tensor) -> Tensor:
        with torch.enable_grad():
            found: Tensor = torch.func.vjp(lambda values: again([], values), at)[1](torch.ones_like(at))[0]
        return found

    def second(at: Tensor, _: Tensor) -> Tensor:
        with torch.enable_grad():
            found: Tensor = torch.func.vjp(slope, at)[1](torch.ones_like(at))[0]
        return found

    return Pointwise(x=x, slope=slope(x), second=second)


def _gelu_second(x: Tensor, slope: Tensor) -> Tensor:
    """(2 - x^2) times the normal density, in as few passes over memory as torch allows."""
    del slope
    square, peak = x.square(), (2 * math.pi) ** -0.5
    return torch.rsub(square, 2 * peak, alpha=peak).mul_(square.mul_(-0.5).exp_())


def _silu_second(x: Tensor, slope: Tensor) -> Tensor:
    """s + f' (1 - 2 s), s being the sigmoid."""
    s = x.sigmoid()
    return (s + slope).addcmul_(slope, s, value=-2)


def _powered(call: Call) -> Layer:
    return _pointwise(call) if isinstance(call.argument(1, "exponent"), int | float) else operator(call)


def _matrix_product(call: Call) -> Layer:
    x, y = call.x, call.argument(1, "other" if call.name == "matmul" else "mat2")
    if not (call.depends(x) and call.depends(y)) or x.dim() < 3 or x.shape[:-2] != y.shape[:-2]:
        return operator(call)
    dtype = call.result.dtype
    return MatrixProduct(x=x.to(dtype), y=y.to(dtype), dtypes=(x.dtype, y.dtype))


def _softmax(call: Call) -> Layer:
    axis = call.argument(1, "dim")
    if not isinstance(axis, int):
        return operator(call)
    return Softmax(p=call.result, axis=axis - call.x.dim() if axis >= 0 else axis, input_dtype=call.x.dtype)


def _layer_norm(call: Call) -> Layer:
    x, shape = call.x, call.argument(1, "normalized_shape")
    weight, bias = call.argument(2, "weight"), call.argument(3, "bias")
    if not call.depends(x) or call.depends(weight) or call.depends(bias):
        return operator(call)
    dtype = torch.promote_types(x.dtype, torch.float32)
    wide = x.contiguous().to(dtype)
    wide_weight, wide_bias = (None if value is None else value.to(dtype) for value in (weight, bias))
    result, mean, inverse = torch.native_layer_norm(wide, shape, wide_weight, wide_bias, call.argument(4, "eps", 1e-5))
    if not call.autocast and result.dtype == x.dtype:
        call.put(result)
    return LayerNorm(
        x=wide,
        mean=mean,
        inverse_deviation=inverse,
        weight=None if wide_weight is None else call.snapshot(wide_weight),
        weight_name=call.parameter(weight),
        bias_name=call.parameter(bias),
        axes=tuple(range(-len(shape), 0)),
        input_dtype=x.dtype,
        dtype=call.result.dtype,
    )


def _attention(call: Call) -> Layer:
    q, k, v = call.argument(0, "query"), call.argument(1, "key"), call.argument(2, "value")
    mask, causal = call.argument(3, "attn_mask"), call.argument(5, "is_causal", False)
    if not all(map(call.depends, (q, k, v))) or len({q.shape[:-2], k.shape[:-2], v.shape[:-2]}) > 1:
        raise NotSweepable("attention in which queries, keys and values are not all activations of one shape")
    if call.argument(4, "dropout_p", 0.0) > 0 or call.options.get("enable_gqa", False) or call.depends(mask):
        raise NotSweepable("attention with dropout, groups of queries or a mask that depends on the images")
    scale = call.argument(6, "scale")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dtype = torch.get_autocast_dtype(q.device.type) if call.autocast else q.dtype
    queries, keys, values = (value.to(dtype) for value in (q, k, v))
    logits = (queries @ keys.mT) * scale
    if causal:
        mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask.to(dtype)
    p = torch.ops.aten._safe_softmax(logits, -1)
    call.put(p @ values)
    return Attention(
        q=queries,
        k=keys,
        v=values,
        p=p,
        scale=scale,
        mask_name=call.parameter(mask),
        mask_shape=None if mask is None else mask.shape,
        dtypes=(q.dtype, k.dtype, v.dtype),
    )


_CURVED: dict[str, Callable[[Call], Layer]] = {
    **dict.fromkeys(["sigmoid", "tanh", "silu", "gelu", "softplus", "elu", "celu", "selu", "mish"], _pointwise),
    **dict.fromkeys(["hardswish", "logsigmoid", "exp", "square", "sqrt", "rsqrt"], _pointwise),
    "pow": _powered,
    "matmul": _matrix_product,
    "bmm": _matrix_product,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "scaled_dot_product_attention": _attention,
}
_RULES: dict[str, Callable[[Call], Layer]] = _BY_HAND | _SHAPES | _CURVED


def operator(call: Call) -> Operator:
    """By torch's own derivatives."""
    tensors = call.tensors
    inputs = [tensor for tensor in tensors if call.depends(tensor)]
    trained = {name: tensor for tensor in tensors if (name := call.parameter(tensor)) is not None}
    others = [tensor for tensor in tensors if not call.depends(tensor) and call.parameter(tensor) is None]
    divisor = call.x if call.name == "rdiv" else call.argument(1, "other")
    divides = call.name in QUOTIENTS and call.depends(divisor)
    product = call.name in PRODUCTS and len(inputs) > 1
    curved = call.name in CURVED or product or divides
    return Operator(
        call=_again(call, [*map(id, inputs)], [*trained]),
        constants=[call.snapshot(tensor) for tensor in others],
        kind="piecewise" if call.name in PIECEWISE else "curved" if curved else "linear",
        inputs=[*inputs, *trained.values()],
        names=[*trained],
        multiplies=call.name in PRODUCTS,
        homogeneous=call.name in (*SHAPES, *AVERAGES) and call.name != "pad" and len(inputs) == len(tensors),
    )


@dataclass(frozen=True)
class _Place:
    """Where a tensor of the arguments is found: among the constants or among the inputs."""

    constant: bool
    index: int


def _again(call: Call, inputs: list[int], names: list[str]) -> Callable[..., Tensor]:
    """The operator as a function of (constants, *inputs), under the autocast it ran in."""
    numbers = iter(range(len(call.tensors)))

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
