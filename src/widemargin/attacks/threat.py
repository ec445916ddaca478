"""Threat models: which perturbations an attacker may add. Linf and L2 balls of radius eps, around each image.

Each offers the four things an attack asks of a geometry: ``project`` onto the ball, the steepest ``ascent`` direction
of unit size, a uniform ``random`` point of the ball, and the ``size`` of a perturbation. Keeping pixels in [0, 1] is
the attack's own last step.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from widemargin.core import randomness
from widemargin.core.checks import check_number, choice, pixel_hint
from widemargin.types import Norm


def _per_sample(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.dim() - 1))


@dataclass(frozen=True)
class Linf:
    """Every pixel moves by at most eps."""

    eps: float
    norm: ClassVar[Norm] = "linf"

    def __post_init__(self) -> None:
        hint = pixel_hint(self.eps)
        check_number("Linf.eps", self.eps, is_valid=lambda eps: 0 < eps <= 1, rule="in (0, 1]", hint=hint)

    def project(self, delta: Tensor) -> Tensor:
        """The nearest perturbation inside the ball."""
        return delta.clamp(-self.eps, self.eps)

    def ascent(self, gradient: Tensor) -> Tensor:
        """The direction of size 1 in which the goal grows fastest."""
        return gradient.sign()

    def random(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A perturbation drawn uniformly from the ball."""
        unit = randomness.uniform(x.shape, generator=generator, dtype=x.dtype)
        return (2 * unit - 1).mul_(self.eps).to(x.device)

    def size(self, delta: Tensor) -> Tensor:
        """(B,): the norm of each sample's perturbation."""
        return delta.flatten(1).abs().amax(1)


@dataclass(frozen=True)
class L2:
    """The whole image moves by at most eps in Euclidean length."""

    eps: float
    norm: ClassVar[Norm] = "l2"

    def __post_init__(self) -> None:
        usual = "0.5 and 1.0 are usual"
        check_number("L2.eps", self.eps, is_valid=lambda eps: eps > 0, rule="a positive number", hint=usual)

    def project(self, delta: Tensor) -> Tensor:
        """The nearest perturbation inside the ball."""
        factor = (self.eps / self.size(delta).clamp_min(torch.finfo(delta.dtype).tiny)).clamp_max(1.0)
        return delta * _per_sample(factor, delta)

    def ascent(self, gradient: Tensor) -> Tensor:
        """The direction of size 1 in which the goal grows fastest; zero where the gradient is zero or no number."""
        gradient = gradient.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        # Dividing by the largest entry first keeps the squares of tiny gradients from underflowing.
        largest = gradient.flatten(1).abs().amax(1)
        scaled = gradient / _per_sample(largest.where(largest > 0, 1.0), gradient)
        return scaled / _per_sample(self.size(scaled).clamp_min(1.0), gradient)

    def random(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """A perturbation drawn uniformly from the ball (a Gaussian direction, a radius with density r^(D-1))."""
        direction = randomness.normal(x.shape, generator=generator, dtype=x.dtype)
        radius = randomness.uniform(x.shape[:1], generator=generator, dtype=x.dtype)
        radius = self.eps * radius ** (1.0 / x[0].numel())
        return (direction * _per_sample(radius / self.size(direction), direction)).to(x.device)

    def size(self, delta: Tensor) -> Tensor:
        """(B,): the norm of each sample's perturbation."""
        size: Tensor = torch.linalg.vector_norm(delta.flatten(1), dim=1)
        return size


Threat = Linf | L2
THREATS: dict[str, type[Linf] | type[L2]] = {"linf": Linf, "l2": L2}


def make_threat(norm: str, eps: float) -> Threat:
    """The threat model of that norm."""
    choice("threat", "norm", norm, tuple(THREATS))
    return THREATS[norm](eps)
