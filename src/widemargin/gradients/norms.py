"""What a penalty takes of an input gradient g: its norm dual to the threat's, squared or as it is.

To first order a perturbation of size eps changes a logit, or a loss, by at most eps ||g||_*, the dual norm: L2 against
an L2 threat, L1 against Linf. So a penalty meant for Linf takes the L1 norm. Per sample, over M gradients,

    P = sum_m ||g_m||_*^2    or, not squared,    sum_m ||g_m||_*,

and its slope dP/dg is all that the sweeps of a penalty need besides g (``gradients``): 2 g and g / ||g||_2 for L2,
2 ||g||_1 sign(g) and sign(g) for L1. Where a norm has no derivative (at 0), 0 is taken, as torch does.

Gradient alignment takes no norm but the angle to another gradient r, held fixed: 1 - cos(g, r), whose slope is
(cos(g, r) g / ||g|| - r / ||r||) / ||g||. Where one of them is 0 there is no angle, and both are 0.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from widemargin.types import Norm


class GradientMeasure(Protocol):
    """What a penalty takes of the gradients g (M, B, ...)."""

    def total(self, g: Tensor, /) -> Tensor:
        """(B,): the sum over M, in float32 or wider; differentiable."""

    def slope(self, g: Tensor, weights: Tensor, /) -> Tensor:
        """(M, B, ...): d sum_i weights_i total_i / dg."""


@dataclass(frozen=True, kw_only=True)
class DualNorm:
    """The norm dual to that of the threat ``norm``."""

    norm: Norm = "l2"
    squared: bool = True

    def total(self, g: Tensor) -> Tensor:
        """(M, B, ...) -> (B,): the sum over M, in float32 or wider; differentiable."""
        g = g.to(torch.promote_types(g.dtype, torch.float32)).flatten(2)
        if self.norm == "l2" and self.squared:
            return g.square().sum(dim=(0, 2))
        lengths = self._lengths(g)
        return (lengths.square() if self.squared else lengths).sum(dim=0)

    def slope(self, g: Tensor, weights: Tensor) -> Tensor:
        """(M, B, ...): d sum_i weights_i total_i / dg."""
        factor = 2 * weights[None] if self.squared else weights[None]
        if self.norm == "l2" and not self.squared:
            lengths = self._lengths(g.to(factor.dtype).flatten(2))
            factor = torch.where(lengths > 0, factor / lengths, 0.0)
        if self.norm == "linf" and self.squared:
            factor = factor * self._lengths(g.to(factor.dtype).flatten(2))
        direction = g if self.norm == "l2" else g.sign()
        return direction * factor.to(g.dtype).view(*factor.shape, *[1] * (g.dim() - 2))

    def _lengths(self, g: Tensor) -> Tensor:
        """(M, B, D) -> (M, B)."""
        lengths: Tensor = torch.linalg.vector_norm(g, ord=2 if self.norm == "l2" else 1, dim=2)
        return lengths


@dataclass(frozen=True, kw_only=True, eq=False)
class Misalignment:
    """1 - cos of the angle to a gradient that is held fixed."""

    reference: Tensor
    """(B, ...)."""

    def total(self, g: Tensor) -> Tensor:
        """(M, B, ...) -> (B,)."""
        cosines, present, _ = self._angles(g)
        return torch.where(present, 1 - cosines, 0.0).sum(dim=0)

    def slope(self, g: Tensor, weights: Tensor) -> Tensor:
        """(M, B, ...): d sum_i weights_i total_i / dg."""
        cosines, present, lengths = self._angles(g)
        own, other = g.to(cosines.dtype).flatten(2), self.reference.to(cosines.dtype).flatten(1)[None]
        factor = torch.where(present, weights.to(cosines.dtype) / lengths, 0.0)[..., None]
        turned = cosines[..., None] * own / lengths[..., None] - other / _lengths_or_one(other)[0][..., None]
        return (factor * turned).to(g.dtype).view_as(g)

    def _angles(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(M, B) each: the cosines, whether there is an angle, the lengths of g, 1 where they are 0."""
        own = g.to(torch.promote_types(g.dtype, torch.float32)).flatten(2)
        other = self.reference.to(own.dtype).flatten(1)[None]
        (lengths, there), (others, other_there) = _lengths_or_one(own), _lengths_or_one(other)
        return (own * other).sum(dim=2) / (lengths * others), there & other_there, lengths


def _lengths_or_one(g: Tensor) -> tuple[Tensor, Tensor]:
    """(M, B, D) -> (M, B) twice: the L2 norms, 1 where they are 0, and whether they are not; differentiable there."""
    squares = g.square().sum(dim=2)
    present = squares > 0
    return torch.where(present, squares, 1.0).sqrt(), present
