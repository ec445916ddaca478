"""Layers that move numbers or scale and shift them, by hand: their sweeps are as cheap as they are themselves.

Torch's own derivatives of a reshape cost a dozen calls, which is what a small network spends its time on. As in
``layers``, adjoints and tangents are (M, B, ...) and the vectors of the ordinary reverse pass (B, ...): whatever a
layer does to the axes of a value, it does to those after the first M of a vector.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from widemargin.gradients.sweeps.layers import Gradients, LinearLayer, Vectors


def fitted(vector: Tensor, shape: torch.Size) -> Tensor:
    """(M, *larger) -> (M, *shape): summed over what broadcasting repeated."""
    ones = [1] * (vector.dim() - 1 - len(shape))
    if not ones and vector.shape[1:] == shape:
        return vector
    return vector.sum_to_size(len(vector), *ones, *shape).view(len(vector), *shape)


def aligned(vector: Tensor, axes: int) -> Tensor:
    """(M, *shape) as it broadcasts against a value of so many axes."""
    missing = axes - (vector.dim() - 1)
    return vector if missing <= 0 else vector.view(len(vector), *[1] * missing, *vector.shape[1:])


@dataclass(frozen=True, kw_only=True)
class Reshape(LinearLayer):
    """The same numbers in another shape, of the same type."""

    input_shape: torch.Size
    shape: torch.Size

    def adjoint(self, a: Tensor) -> Vectors:
        """Back."""
        return [a.reshape(len(a), *self.input_shape)]

    def tangent(self, tangents: Vectors) -> Tensor:
        """Forth."""
        (t,) = tangents
        return t.reshape(len(t), *self.shape)

    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """Back."""
        return [b.reshape(self.input_shape)], {}


@dataclass(frozen=True, kw_only=True)
class Permute(LinearLayer):
    """The axes in another order: axis i of the result is ``axes[i]`` of the input."""

    axes: tuple[int, ...]

    def adjoint(self, a: Tensor) -> Vectors:
        """Back."""
        return [a.permute(0, *(axis + 1 for axis in self._inverse))]

    def tangent(self, tangents: Vectors) -> Tensor:
        """Forth."""
        (t,) = tangents
        return t.permute(0, *(axis + 1 for axis in self.axes))

    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """Back."""
        return [b.permute(self._inverse)], {}

    @property
    def _inverse(self) -> list[int]:
        return [self.axes.index(axis) for axis in range(len(self.axes))]


@dataclass(frozen=True, kw_only=True)
class Roll(LinearLayer):
    """Axes rolled by so much: the shifted windows of Swin."""

    shifts: tuple[int, ...]
    axes: tuple[int, ...]

    def adjoint(self, a: Tensor) -> Vectors:
        """Back."""
        return [a.roll([-shift for shift in self.shifts], [axis + 1 for axis in self.axes])]

    def tangent(self, tangents: Vectors) -> Tensor:
        """Forth."""
        (t,) = tangents
        return t.roll(self.shifts, [axis + 1 for axis in self.axes])

    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """Back."""
        return [b.roll([-shift for shift in self.shifts], self.axes)], {}


@dataclass(frozen=True, kw_only=True)
class Part(LinearLayer):
    """A stretch of one axis, or one place of it, whose axis is then gone: a token, a head's queries, half of a gate."""

    input_shape: torch.Size
    axis: int
    start: int
    length: int
    squeezes: bool

    def adjoint(self, a: Tensor) -> Vectors:
        """Zeros where it did not look."""
        return [self.add(None, a, 1)]

    def tangent(self, tangents: Vectors) -> Tensor:
        """The same part."""
        (t,) = tangents
        part = t.narrow(self.axis + 1, self.start, self.length)
        return part.squeeze(self.axis + 1) if self.squeezes else part

    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """Zeros where it did not look."""
        return [self.add(None, b, 0)], {}

    def add(self, total: Tensor | None, part: Tensor, first: int) -> Tensor:
        """Into a total of the whole value, in place, or into zeros; ``first`` axes precede those of the value."""
        if total is None:
            total = part.new_zeros((*part.shape[:first], *self.input_shape))
        axis = self.axis + first
        total.narrow(axis, self.start, self.length).add_(part.unsqueeze(axis) if self.squeezes else part)
        return total


@dataclass(frozen=True, kw_only=True)
class Join(LinearLayer):
    """Tensors one after the other along an axis: class token and patches. All have the axes of the result."""

    axis: int
    pieces: list[str | int | None]
    """What each is: the number of an input, the name of a parameter, a constant."""
    shapes: list[torch.Size]

    @property
    def names(self) -> list[str]:
        """The parameters among them."""
        return [piece for piece in self.pieces if isinstance(piece, str)]

    def adjoint(self, a: Tensor) -> Vectors:
        """The part of each input."""
        return [a.narrow(self.axis + 1, start, length) for _, start, length in self._places(int)]

    def tangent(self, tangents: Vectors) -> Tensor:
        """Zeros for what is no activation."""
        first = tangents[0]
        pieces = [
            tangents[piece] if isinstance(piece, int) else first.new_zeros((len(first), *shape))
            for piece, shape in zip(self.pieces, self.shapes, strict=True)
        ]
        return torch.cat(pieces, dim=self.axis + 1)

    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """The part of each."""
        vectors = [b.narrow(self.axis, start, length) for _, start, length in self._places(int)]
        gradients: Gradients = {}
        for name, start, length in self._places(str):
            part = b.narrow(self.axis, start, length)
            gradients[name] = gradients[name] + part if name in gradients else part
        return vectors, gradients

    def _places(self, kind: type) -> list[tuple[Any, int, int]]:
        """(what, start, length) of the pieces of a kind; inputs in the order of their numbers."""
        found, start = [], 0
        for piece, shape in zip(self.pieces, self.shapes, strict=True):
            length = shape[self.axis]
            if isinstance(piece, kind):
                found.append((piece, start, length))
            start += length
        return sorted(found, key=lambda place: place[0]) if kind is int else found


@dataclass(frozen=True, kw_only=True)
class Scaled(LinearLayer):
    """y = x * factor, a number, a constant or a parameter, either one broadcast: layer scale."""

    factor: Tensor | float
    weight_name: str | None
    shape: torch.Size
    """Of x."""
    x: Tensor | None

    def adjoint(self, a: Tensor) -> Vectors:
        """Times the factor."""
        return [fitted(a * self.factor, self.shape)]

    def tangent(self, tangents: Vectors) -> Tensor:
        """Times the factor."""
        (t,) = tangents
        return self._aligned(t) * self.factor

    def weight_gradients(self, tangents: Vectors, a: Tensor) -> Gradients:
        """d <a, t * factor> / d factor."""
        return self._weight_gradient(a, self._aligned(tangents[0]))

    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """The ordinary backward pass."""
        gradients: Gradients = {}
        if self.weight_name is not None:
            assert self.x is not None
            gradients = self._weight_gradient(b, self.x)
        return [fitted((b * self.factor).unsqueeze(0), self.shape).squeeze(0)], gradients

    def forget(self) -> "Scaled":
        """Without the activations."""
        return replace(self, x=None)

    def _weight_gradient(self, a: Tensor, t: Tensor) -> Gradients:
        if self.weight_name is None:
            return {}
        assert isinstance(self.factor, Tensor)
        return {self.weight_name: (a * t).sum_to_size(self.factor.shape)}

    def _aligned(self, t: Tensor) -> Tensor:
        return aligned(t, self.factor.dim()) if isinstance(self.factor, Tensor) else t


@dataclass(frozen=True, kw_only=True)
class Shifted(LinearLayer):
    """y = sign x + shift, a constant or a parameter, either one broadcast: position embeddings."""

    bias_name: str | None
    bias_sign: float
    bias_shape: torch.Size
    sign: float
    input_shape: torch.Size
    shape: torch.Size

    def adjoint(self, a: Tensor) -> Vectors:
        """The sign."""
        return [fitted(self._signed(a), self.input_shape)]

    def tangent(self, tangents: Vectors) -> Tensor:
        """The sign."""
        (t,) = tangents
        t = aligned(self._signed(t), len(self.shape))
        return t if t.shape[1:] == self.shape else t.expand(len(t), *self.shape)

    def reverse(self, b: Tensor) -> tuple[Vectors, Gradients]:
        """The ordinary backward pass."""
        gradients: Gradients = {}
        if self.bias_name is not None:
            to_bias = b.sum_to_size(self.bias_shape)
            gradients[self.bias_name] = to_bias if self.bias_sign == 1 else self.bias_sign * to_bias
        return [fitted(self._signed(b).unsqueeze(0), self.input_shape).squeeze(0)], gradients

    def _signed(self, vector: Tensor) -> Tensor:
        return vector if self.sign == 1 else vector * self.sign
