"""Curved layers by hand: smooth activations, products of activations, softmax, layer norm, attention.

A tangent through a curved layer depends on the activations, y' = J(x) t, so <a, y'> has a derivative by x too: the
curvature, which starts the ordinary reverse pass. Every layer computes what its three passes share once: the slope of
an activation, the normalized input, the attention weights. Torch's derivatives of its own backward kernels would run
forward and backward again for each of them, and in many small steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from widemargin.gradients.sweeps.layers import Bent, Gradients, Vectors
from widemargin.gradients.sweeps.shapes import aligned, fitted

_softmax_backward = torch.ops.aten._softmax_backward_data.default
_layer_norm_backward = torch.ops.aten.native_layer_norm_backward.default


def total(vectors: Tensor) -> Tensor:
    """(M, B, ...) -> (B, ...): the sum over M."""
    return vectors[0] if len(vectors) == 1 else vectors.sum(0)


def each(function: Callable[[Tensor], Tensor], vectors: Tensor) -> Tensor:
    """A kernel without an axis M, on each of the M."""
    return torch.stack([function(vector) for vector in vectors]) if len(vectors) > 1 else function(vectors[0])[None]


class _Curved:
    curved: ClassVar[bool] = True

    def forget(self) -> Self:
        """As it is: the curvature needs the activations."""
        return self

    def bend(self, tangents: Vectors, a: Tensor) -> Bent:
        raise NotImplementedError

    def tangent(self, tangents: Vectors) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Pointwise(_Curved):
    """y = f(x), number by number."""

    x: Tensor
    slope: Tensor
    """f'(x)."""
    second: Callable[[Tensor, Tensor], Tensor]
    """(x, f'(x)) -> f''(x)."""

    def adjoint(self, a: Tensor) -> Vectors:
        """Times the slope."""
        return [a * self.slope]

    def tangent(self, tangents: Vectors) -> Tensor:
        """Times the slope."""
        return tangents[0] * self.slope

    def bend(self, tangents: Vectors, a: Tensor) -> Bent:
        """a t f''(x)."""
        (t,) = tangents
        return t * self.slope, {}, [total(a * t).mul_(self.second(self.x, self.slope))]

    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """Times the slope."""
        return [b * self.slope], {}


@dataclass(frozen=True, kw_only=True)
class Product(_Curved):
    """x y of two activations of one type, either one broadcast: gates."""

    x: Tensor
    y: Tensor

    def adjoint(self, a: Tensor) -> Vectors:
        """Times the other."""
        return [fitted(a * self.y, self.x.shape), fitted(a * self.x, self.y.shape)]

    def tangent(self, tangents: Vectors) -> Tensor:
        """The product rule."""
        tx, ty = self._aligned(tangents)
        return torch.addcmul(tx * self.y, ty, self.x)

    def bend(self, tangents: Vectors, a: Tensor) -> Bent:
        """A product is its own second derivative."""
        tx, ty = self._aligned(tangents)
        to_x, to_y = fitted(a * ty, self.x.shape), fitted(a * tx, self.y.shape)
        return self.tangent(tangents), {}, [total(to_x), total(to_y)]

    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """Times the other."""
        return [vectors[0] for vectors in self.adjoint(b[None])], {}

    def _aligned(self, tangents: Vectors) -> Vectors:
        axes = max(self.x.dim(), self.y.dim())
        return [aligned(t, axes) for t in tangents]


@dataclass(frozen=True, kw_only=True)
class MatrixProduct(_Curved):
    """x @ y of two activations with the same axes before the last two: attention written out."""

    x: Tensor
    y: Tensor
    """In the type of the result."""
    dtypes: tuple[torch.dtype, torch.dtype]
    """Of the inputs."""

    def adjoint(self, a: Tensor) -> Vectors:
        """Times the other, transposed."""
        return self._to(a @ self.y.mT, self.x.mT @ a)

    def tangent(self, tangents: Vectors) -> Tensor:
        """The product rule."""
        tx, ty = (t.to(self.x.dtype) for t in tangents)
        return (tx @ self.y).add_(self.x @ ty)

    def bend(self, tangents: Vectors, a: Tensor) -> Bent:
        """A product is its own second derivative."""
        tx, ty = (t.to(self.x.dtype) for t in tangents)
        return self.tangent(tangents), {}, self._to(total(a @ ty.mT), total(tx.mT @ a))

    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """Times the other, transposed."""
        return self.adjoint(b), {}

    def _to(self, to_x: Tensor, to_y: Tensor) -> Vectors:
        return [to_x.to(self.dtypes[0]), to_y.to(self.dtypes[1])]


def softmax_product(p: Tensor, vector: Tensor, axis: int) -> Tensor:
    """The Jacobian of softmax, which is symmetric, times (M, ...): p (v - sum p v)."""
    return each(lambda v: _softmax_backward(v.contiguous(), p, axis, p.dtype), vector)


def softmax_curvature(p: Tensor, tp: Tensor, a: Tensor, axis: int) -> Tensor:
    """d <a, tp> / d logits, tp being the Jacobian times the logits' tangent: (a - sum p a) tp - p sum (a tp)."""
    bent = a - (a * p).sum(axis, keepdim=True)
    bent *= tp
    return torch.addcmul(bent, p, bent.sum(axis, keepdim=True), value=-1)


@dataclass(frozen=True, kw_only=True)
class Softmax(_Curved):
    """p = softmax(x) along an axis counted from the end."""

    p: Tensor
    axis: int
    input_dtype: torch.dtype

    def adjoint(self, a: Tensor) -> Vectors:
        """The Jacobian is symmetric."""
        return [softmax_product(self.p, a, self.axis).to(self.input_dtype)]

    def tangent(self, tangents: Vectors) -> Tensor:
        """The Jacobian."""
        return softmax_product(self.p, tangents[0].to(self.p.dtype), self.axis)

    def bend(self, tangents: Vectors, a: Tensor) -> Bent:
        """The Jacobian's derivative."""
        tp = self.tangent(tangents)
        return tp, {}, [total(softmax_curvature(self.p, tp, a, self.axis)).to(self.input_dtype)]

    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """The Jacobian is symmetric."""
        return [self.adjoint(b[None])[0][0]], {}


@dataclass(frozen=True, kw_only=True)
class LayerNorm(_Curved):
    """y = n w + b with n = (x - mean) r, r = 1 / sqrt(variance + eps) over the last axes, N numbers.

    The Jacobian of n is P = r (I - 1 1^T / N - n n^T / N), symmetric. With a' = w a and S = <a', P t>, the curvature is
    dS/dx = -(r / N) [S n + (n . t) P a' + (n . a') P t].
    """

    x: Tensor
    mean: Tensor
    inverse_deviation: Tensor
    weight: Tensor | None
    weight_name: str | None
    bias_name: str | None
    axes: tuple[int, ...]
    """Counted from the end."""
    input_dtype: torch.dtype
    dtype: torch.dtype
    """Of the result; x, mean, deviation and weight are float32 or wider."""

    def adjoint(self, a: Tensor) -> Vectors:
        """P (w a)."""
        return [self._project(a.to(self.x.dtype), self.weight).to(self.input_dtype)]

    def tangent(self, tangents: Vectors) -> Tensor:
        """w P t."""
        pt = self._project(tangents[0].to(self.x.dtype), None)
        return (pt if self.weight is None else pt * self.weight).to(self.dtype)

    def bend(self, tangents: Vectors, a: Tensor) -> Bent:
        """All that <a, w P t> depends on."""
        t, a = tangents[0].to(self.x.dtype), a.to(self.x.dtype)
        pt = self._project(t, None)
        weighted = a if self.weight is None else a * self.weight
        pa = self._project(weighted, None)
        normal = (self.x - self.mean) * self.inverse_deviation
        product = a * pt
        gradients: Gradients = {}
        if self.weight_name is not None:
            gradients[self.weight_name] = product.sum(list(range(product.dim() - len(self.axes))))
        sums = [self._sum(product if self.weight is None else product * self.weight)]
        sums += [self._sum(normal * t), self._sum(normal * weighted)]
        bent = (sums[0] * normal).addcmul_(sums[1], pa).addcmul_(sums[2], pt)
        bent *= self.inverse_deviation * (-1 / self._count)
        tangent = (pt if self.weight is None else pt * self.weight).to(self.dtype)
        return tangent, gradients, [total(bent).to(self.input_dtype)]

    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """The ordinary backward pass."""
        wanted = [True, self.weight_name is not None, self.bias_name is not None]
        to_x, to_weight, to_bias = self._backward(b.to(self.x.dtype), self.weight, wanted)
        named = {self.weight_name: to_weight, self.bias_name: to_bias}
        return [to_x.to(self.input_dtype)], {name: value for name, value in named.items() if name is not None}

    def _project(self, vectors: Tensor, weight: Tensor | None) -> Tensor:
        """P of the M vectors times the weight."""
        return each(lambda v: self._backward(v, weight, [True, False, False])[0], vectors)

    def _backward(self, v: Tensor, weight: Tensor | None, wanted: list[bool]) -> tuple[Tensor, Tensor, Tensor]:
        shape = [self.x.shape[axis] for axis in self.axes]
        if weight is None and (wanted[1] or wanted[2]):
            weight = torch.ones(shape, dtype=self.x.dtype, device=self.x.device)
        found: tuple[Tensor, Tensor, Tensor] = _layer_norm_backward(
            v.contiguous(), self.x, shape, self.mean, self.inverse_deviation, weight, weight, wanted
        )
        return found

    def _sum(self, values: Tensor) -> Tensor:
        return values.sum(self.axes, keepdim=True)

    @property
    def _count(self) -> int:
        return self.x[(0,) * (self.x.dim() - len(self.axes))].numel()


@dataclass(frozen=True, kw_only=True)
class Attention(_Curved):
    """y = p v with p = softmax(scale q k^T + mask): scaled dot-product attention, as the matrix products it is.

    With d = a v^T and tp = J_softmax (scale (tq k^T + q tk^T)), the tangent is tp v + p tv, and the logits' share of
    its derivative is u = curvature of softmax for d + J_softmax (a tv^T).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    """In the type of the result."""
    p: Tensor
    scale: float
    mask_name: str | None
    mask_shape: torch.Size | None
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype]
    """Of the inputs."""

    def adjoint(self, a: Tensor) -> Vectors:
        """To queries, keys and values."""
        ds = self._logits_adjoint(a).mul_(self.scale)
        return self._to(ds @ self.k, ds.mT @ self.q, self.p.mT @ a)

    def tangent(self, tangents: Vectors) -> Tensor:
        """tp v + p tv."""
        return self._tangent(self._tp(tangents), tangents[2].to(self.v.dtype))

    def bend(self, tangents: Vectors, a: Tensor) -> Bent:
        """All that <a, tangent> depends on."""
        tq, tk, tv = (t.to(self.q.dtype) for t in tangents)
        tp, d = self._tp(tangents), a @ self.v.mT
        u = softmax_curvature(self.p, tp, d, -1).add_(softmax_product(self.p, a @ tv.mT, -1))
        gradients = {} if self.mask_name is None else {self.mask_name: self._to_mask(u)}
        ds = softmax_product(self.p, d, -1).mul_(self.scale)
        scaled = total(u) * self.scale
        to_q = (scaled @ self.k).add_(total(ds @ tk))
        to_k = (scaled.mT @ self.q).add_(total(ds.mT @ tq))
        return self._tangent(tp, tv), gradients, self._to(to_q, to_k, total(tp.mT @ a))

    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """The ordinary backward pass."""
        ds = self._logits_adjoint(b[None])[0]
        gradients = {} if self.mask_name is None else {self.mask_name: self._to_mask(ds)}
        ds = ds * self.scale
        return self._to(ds @ self.k, ds.mT @ self.q, self.p.mT @ b), gradients

    def _logits_adjoint(self, a: Tensor) -> Tensor:
        return softmax_product(self.p, a @ self.v.mT, -1)

    def _tp(self, tangents: Vectors) -> Tensor:
        tq, tk = (t.to(self.q.dtype) for t in tangents[:2])
        logits = (tq @ self.k.mT).add_(self.q @ tk.mT).mul_(self.scale)
        return softmax_product(self.p, logits, -1)

    def _tangent(self, tp: Tensor, tv: Tensor) -> Tensor:
        return (tp @ self.v).add_(self.p @ tv)

    def _to_mask(self, logits: Tensor) -> Tensor:
        assert self.mask_shape is not None
        return logits.sum_to_size(self.mask_shape)

    def _to(self, *vectors: Tensor) -> Vectors:
        return [vector.to(dtype) for vector, dtype in zip(vectors, self.dtypes, strict=True)]
