"""ALMA: the shortest L2 perturbation by an augmented Lagrangian (Rony et al., ICCV 2021).

Minimize |d| subject to r(x + d) < 0, where r is the ratio of logit differences (z_y - max_other + tolerance) /
(z_first - z_third), which does not depend on the logits' scale. The constraint enters by a penalty P(r; rho, mu) with

    P'(r) = mu + 2 mu rho r + rho^2 r^2 / 2  where r >= 0,    mu / (1 - rho r)^2  elsewhere,

whose multiplier mu follows P' as a moving average, and whose rho grows while nothing adversarial was found and r does
not fall. Steps are those of RMSProp with momentum; the first is so long that |d| is ``first_length``, and they become
shorter once an adversarial image was found. The shortest that ever fooled the model counts.

Difference from the paper: with two classes there is no third logit; differences are divided by those at the image.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from widemargin.attacks.shortest import Shortest, attacking, gradient_and_logits, per_sample, random_direction
from widemargin.attacks.threat import L2
from widemargin.core.checks import check_count, check_number
from widemargin.losses import lead_of_another, predicted, wide

_SIZE = L2(1.0).size
SMALLEST, LARGEST = 1e-6, 1e12
"""Of the multiplier."""
DOUBLINGS, HALVINGS = 60, 20
"""Of the first step, on the way to its length."""


@dataclass(frozen=True, kw_only=True)
class ALMA:
    """The shortest L2 perturbation that ALMA finds; the image itself where it finds none."""

    steps: int = 200
    first_length: float = 0.1
    smoothing: float = 0.9
    """Of the multiplier, of the squared gradients and of the momentum."""
    last_step: float = 0.01
    """The last step as a share of the first."""
    check_every: int = 10
    """Steps between looks at whether the constraint improves."""
    enough: float = 0.95
    """It improves where it falls below this share of what it was."""
    growth: float = 1.2
    """Of rho where it does not."""
    tolerance: float = 1e-4
    """By so much another logit must be the larger."""

    def __post_init__(self) -> None:
        check_count("ALMA.steps", self.steps)
        check_count("ALMA.check_every", self.check_every)
        for name, hint in (("first_length", "0.1"), ("growth", "1.2")):
            value = getattr(self, name)
            check_number(f"ALMA.{name}", value, is_valid=lambda v: v > 0, rule="a positive number", hint=f"try {hint}")
        for name, hint in (("smoothing", "0.9"), ("last_step", "0.01"), ("enough", "0.95")):
            value = getattr(self, name)
            check_number(f"ALMA.{name}", value, is_valid=lambda v: 0 < v < 1, rule="in (0, 1)", hint=f"try {hint}")
        usual, least = "1e-4 is usual", "a number of at least 0"
        check_number("ALMA.tolerance", self.tolerance, is_valid=lambda v: v >= 0, rule=least, hint=usual)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Attack the images x with labels y; random numbers are drawn only where the first gradient is zero."""
        with attacking("ALMA", model, x, y) as (model, x, y):
            return self._search(model, x, y, generator)

    def _search(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
        center, shortest = wide(x), Shortest(x)
        goal = _Ratio(self.tolerance)
        delta, momentum, squares = torch.zeros_like(center), torch.zeros_like(center), torch.ones_like(center)
        multiplier, rho, rate = (center.new_ones(len(x)) for _ in range(3))
        found = center.new_zeros(len(x), dtype=torch.bool)
        found_at = center.new_full((len(x),), self.steps + 1)
        before = rho
        for step in range(self.steps):
            gradient, logits = gradient_and_logits(model, center + delta, x, y, goal)
            ratio = goal.values
            if step == 0:
                before = ratio
            elif (step + 1) % self.check_every == 0:
                rho = torch.where(found | (ratio < self.enough * before), rho, self.growth * rho)
                before = ratio
            if step > 0:
                followed = self.smoothing * multiplier + (1 - self.smoothing) * slope(ratio, rho, multiplier)
                multiplier = followed.clamp(SMALLEST, LARGEST)
            fooled = ratio < 0
            shortest.offer(delta, fooled | ((step == 0) & ~predicted(logits, y)))
            found_at = torch.where(fooled & ~found, float(step), found_at)
            found = found | fooled
            gradient = gradient * per_sample(slope(ratio, rho, multiplier), gradient)
            if step == 0:
                weak = per_sample(_SIZE(gradient) <= SMALLEST, gradient)
                gradient = random_direction(gradient.masked_fill(weak, 0.0), generator)
                rate = first_rate(center, gradient, self.first_length)
            else:
                gradient = gradient + delta / per_sample(_SIZE(delta).clamp_min(torch.finfo(delta.dtype).tiny), delta)
            squares = self.smoothing * squares + (1 - self.smoothing) * gradient.square()
            momentum = self.smoothing * momentum + gradient / (squares.sqrt() + 1e-8)
            since = (step - found_at).clamp_min(0) / (self.steps - found_at)
            delta = delta - per_sample(rate * self.last_step**since, delta) * momentum
            delta = (center + delta).clamp(0, 1) - center
        return shortest.images()


class _Ratio:
    """The constraint as a goal; its values of the last call are kept."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance, self.values = tolerance, torch.empty(0)
        self._scale: Tensor | None = None

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        """(z_y - max_other + tolerance) / (z_first - z_third)."""
        lead = self.tolerance - lead_of_another(logits, y)
        if logits.shape[1] > 2:
            three = wide(logits).topk(3, dim=1).values
            scale = three[:, 0] - three[:, 2]
        else:
            self._scale = lead.detach().abs() if self._scale is None else self._scale
            scale = self._scale
        ratio = lead / (scale + 1e-8)
        self.values = ratio.detach()
        return ratio


def slope(ratio: Tensor, rho: Tensor, multiplier: Tensor) -> Tensor:
    """P' at the ratio."""
    outside = multiplier + 2 * multiplier * rho * ratio + (rho * ratio).square() / 2
    inside = multiplier / (1 - rho * ratio.clamp_max(0)).square()
    return torch.where(ratio >= 0, outside, inside)


def first_rate(center: Tensor, gradient: Tensor, length: float) -> Tensor:
    """(B,): how far along -gradient the image, clipped to [0, 1], is that long a way off; by doubling and halving."""

    def too_long(rate: Tensor) -> Tensor:
        return _SIZE((center - per_sample(rate, center) * gradient).clamp(0, 1) - center) > length

    upper = center.new_ones(len(center))
    lower = torch.zeros_like(upper)
    for _ in range(DOUBLINGS):
        reached = too_long(upper)
        if reached.all():
            break
        lower, upper = torch.where(reached, lower, upper), torch.where(reached, upper, 2 * upper)
    for _ in range(HALVINGS):
        middle = (lower + upper) / 2
        beyond = too_long(middle)
        lower, upper = torch.where(beyond, lower, middle), torch.where(beyond, middle, upper)
    return (lower + upper) / 2
