"""The layers whose sweeps are written by hand: convolution, linear, batch norm in evaluation mode, ReLU family, sums.

A sweep carries M vectors per sample at once: adjoints and tangents are (M, B, ...), the vectors of the ordinary reverse
pass (B, ...). Each layer is linear in its input once the weights and the signs are fixed, so an adjoint (reverse) and a
tangent (forward) need no activations, only masks and weights. All arithmetic is in the type the forward pass used.

Every layer offers ``adjoint``, ``tangent``, ``weight_gradients`` (of <a, tangent> at fixed activations), ``bend`` (the
two at once, and what a curved layer adds to the activations), ``reverse`` (the ordinary backward pass, which needs the
activations) and ``forget`` (itself without them). Batch norm may also have
been folded into one multiply-add per element, by scales and shifts made once per step (``folded_batch_norm``): an
operator of its own, so that a recording still knows whose weight and bias it is.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

Gradients = dict[str, Tensor]
Vectors = list[Tensor]
"""One for each input of an operator."""

_convolution_backward = torch.ops.aten.convolution_backward.default


Bent = tuple[Tensor, Gradients, Vectors]
"""The tangent, gradients of <a, tangent> by the parameters, and by the activations (B, ...) where it is curved."""


class LinearLayer:
    """A layer that is linear in its inputs; without weights, if nothing else is said, and without activations."""

    curved: ClassVar[bool] = False

    def weight_gradients(self, tangents: Vectors, a: Tensor) -> Gradients:
        """None."""
        del tangents, a
        return {}

    def tangent(self, tangents: Vectors) -> Tensor:
        """The layer itself, on vectors."""
        raise NotImplementedError

    def bend(self, tangents: Vectors, a: Tensor) -> Bent:
        """It bends nothing."""
        return self.tangent(tangents), self.weight_gradients(tangents, a), []

    def forget(self) -> Self:
        """As it is."""
        return self


@dataclass(frozen=True, kw_only=True)
class _Weighted(LinearLayer):
    """A layer with a weight and a bias; the names are those that are trained. Its input is for ``reverse`` alone."""

    weight_name: str | None
    bias_name: str | None
    x: Tensor | None

    @property
    def _input(self) -> Tensor:
        assert self.x is not None
        return self.x

    def weight_gradients(self, tangents: Vectors, a: Tensor) -> Gradients:
        """d <a, tangent> / d weight, of all M B samples at once."""
        if self.weight_name is None:
            return {}
        return {self.weight_name: self._weight_gradient(tangents[0].flatten(0, 1), a.flatten(0, 1))}

    def forget(self) -> Self:
        """Without the activations."""
        return replace(self, x=None)

    def _weight_gradient(self, t: Tensor, a: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Convolution(_Weighted):
    """y = W * x + b, any number of spatial axes."""

    weight: Tensor
    geometry: tuple[Any, ...]
    """stride, padding, dilation, groups."""
    input_shape: torch.Size
    output_shape: torch.Size
    input_dtype: torch.dtype
    dtype: torch.dtype
    channels_last: bool

    def adjoint(self, a: Tensor) -> Vectors:
        """W^T a."""
        folded = a.flatten(0, 1)
        gradient = self._backward(folded, self._unread(len(folded)), (True, False, False))[0]
        return [gradient.to(self.input_dtype).unflatten(0, a.shape[:2])]

    def tangent(self, tangents: Vectors) -> Tensor:
        """W t."""
        (t,) = tangents
        stride, padding, dilation, groups = self.geometry
        spatial = self.weight.dim() - 2
        convolve: Any = (torch.conv1d, torch.conv2d, torch.conv3d)[spatial - 1]
        weight = self.weight.to(self.dtype)
        out: Tensor = convolve(t.flatten(0, 1).to(self.dtype), weight, None, stride, padding, dilation, groups)
        unfolded: Tensor = out.unflatten(0, t.shape[:2])
        return unfolded

    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """The ordinary backward pass."""
        wanted = (True, self.weight_name is not None, self.bias_name is not None)
        to_x, to_weight, to_bias = self._backward(b.to(self.dtype), self._input.to(self.dtype), wanted)
        named = {self.weight_name: to_weight, self.bias_name: to_bias}
        return [to_x.to(self.input_dtype)], {name: value for name, value in named.items() if name is not None}

    def _weight_gradient(self, t: Tensor, a: Tensor) -> Tensor:
        gradient: Tensor = self._backward(a, t.to(self.dtype), (False, True, False))[1]
        return gradient

    def _backward(self, a: Tensor, x: Tensor, wanted: tuple[bool, bool, bool]) -> Any:
        stride, padding, dilation, groups = self.geometry
        weight = self.weight.to(self.dtype)
        none = [0] * len(stride)
        biases = [len(weight)]
        return _convolution_backward(a, x, weight, biases, stride, padding, dilation, False, none, groups, list(wanted))

    def _unread(self, batch: int) -> Tensor:
        """Stands for the input where the kernel asks for its shape alone."""
        shape = (batch, *self.input_shape[1:])
        layout = torch.contiguous_format
        if self.channels_last:
            layout = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
        return torch.empty(shape, dtype=self.dtype, device=self.weight.device, memory_format=layout)


@dataclass(frozen=True, kw_only=True)
class Affine(_Weighted):
    """y = W x + b on the last axis: a fully connected layer."""

    weight: Tensor
    input_dtype: torch.dtype
    dtype: torch.dtype

    def adjoint(self, a: Tensor) -> Vectors:
        """W^T a."""
        return [(a @ self.weight.to(self.dtype)).to(self.input_dtype)]

    def tangent(self, tangents: Vectors) -> Tensor:
        """W t."""
        (t,) = tangents
        return torch.nn.functional.linear(t.to(self.dtype), self.weight.to(self.dtype))

    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """The ordinary backward pass."""
        gradients: Gradients = {}
        if self.weight_name is not None:
            gradients[self.weight_name] = self._weight_gradient(self._input, b.to(self.dtype))
        if self.bias_name is not None:
            gradients[self.bias_name] = b.flatten(0, -2).sum(0)
        return [(b.to(self.dtype) @ self.weight.to(self.dtype)).to(self.input_dtype)], gradients

    def _weight_gradient(self, t: Tensor, a: Tensor) -> Tensor:
        return a.flatten(0, -2).t() @ t.to(self.dtype).flatten(0, -2)


@dataclass(frozen=True, kw_only=True)
class BatchNorm(_Weighted):
    """y = (x - mean) / deviation * weight + bias with running statistics, read when the forward pass ran."""

    scale: Tensor
    """weight / deviation, shaped (C, 1, ...) to act on (..., C, ...)."""
    inverse_deviation: Tensor
    mean: Tensor

    def adjoint(self, a: Tensor) -> Vectors:
        """The scale is its own transpose."""
        return [(a * self.scale).to(a.dtype)]

    def tangent(self, tangents: Vectors) -> Tensor:
        """The scale."""
        (t,) = tangents
        return (t * self.scale).to(t.dtype)

    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """The ordinary backward pass."""
        wide, gradients = b.to(self.scale.dtype), {}
        if self.weight_name is not None:
            centered = self._per_channel(wide * (self._input - self.mean))
            gradients[self.weight_name] = centered * self.inverse_deviation.flatten()
        if self.bias_name is not None:
            gradients[self.bias_name] = self._per_channel(wide)
        return [(wide * self.scale).to(b.dtype)], gradients

    def _weight_gradient(self, t: Tensor, a: Tensor) -> Tensor:
        return self._per_channel(a * t.to(self.scale.dtype)) * self.inverse_deviation.flatten()

    def _per_channel(self, values: Tensor) -> Tensor:
        return values.sum([0, *range(2, values.dim())])


@dataclass(frozen=True, kw_only=True)
class Slopes(LinearLayer):
    """A piecewise linear activation: slope 1 where ``passes``, another elsewhere."""

    passes: Tensor
    elsewhere: float
    strict: bool = False
    """Whether what does not pass may be infinite: a product with zero would not stop that."""

    def _times(self, vector: Tensor) -> Tensor:
        if self.strict and not self.elsewhere:
            return vector.masked_fill(~self.passes, 0.0)
        if not self.elsewhere:
            return vector * self.passes  # a product; torch.where over a broadcast mask is 20 times slower on the CPU
        one, other = vector.new_ones(()), vector.new_full((), self.elsewhere)
        return vector * torch.where(self.passes, one, other)

    def adjoint(self, a: Tensor) -> Vectors:
        """Times the slopes."""
        return [self._times(a)]

    def tangent(self, tangents: Vectors) -> Tensor:
        """Times the slopes."""
        (t,) = tangents
        return self._times(t)

    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """Times the slopes."""
        return [self._times(b)], {}


@dataclass(frozen=True, kw_only=True)
class Sum(LinearLayer):
    """x1 + x2 of one shape and type: a residual connection."""

    def adjoint(self, a: Tensor) -> Vectors:
        """To both."""
        return [a, a]

    def tangent(self, tangents: Vectors) -> Tensor:
        """The sum."""
        first, second = tangents
        return first + second

    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """To both."""
        return [b, b], {}


def folded_batch_norm(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    mean: Tensor,
    inverse_deviation: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """scale x + shift per channel, in the type of x; the rest is for the derivatives by weight and bias."""
    given = (x, scale, shift, mean, inverse_deviation, weight, bias)
    if has_torch_function(given):
        result: Any = handle_torch_function(folded_batch_norm, given, *given)
        return result  # type: ignore[no-any-return]
    axes = (-1, *[1] * (x.dim() - 2))
    return torch.addcmul(shift.view(axes), x, scale.view(axes)).to(x.dtype)
