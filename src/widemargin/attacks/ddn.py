"""DDN: decoupled direction and norm (Rony et al., CVPR 2019), the shortest L2 perturbation, one step at a time.

The direction comes from the gradient, the length from the verdict: step i of n moves along the unit gradient of the
cross-entropy by a_i, which falls from 1 to 0.01 along half a cosine; the perturbation is then given the length r, which
shrinks by gamma while it fools the model and grows by gamma while it does not. The shortest that ever fooled it counts.

On logits s z the softmax is sharper and the gradient points to the nearest class, not to a mixture of all: where logits
are small, as EMR makes them, s = 3 or 10 finds shorter perturbations than s = 1, and elsewhere s = 1 may.

Differences from the paper: pixels are not rounded to 256 levels, which would make distances longer. The gradient is
that of log((1 - p_y) / p_y), which has the direction of the cross-entropy's and does not vanish where p_y
rounds to 1.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from widemargin.attacks.shortest import Shortest, attacking, gradient_and_logits, per_sample, random_direction
from widemargin.attacks.threat import L2
from widemargin.core.checks import check_count, check_number
from widemargin.losses import predicted, wide

_UNIT = L2(1.0)
LAST_STEP = 0.01


@dataclass(frozen=True, kw_only=True)
class DDN:
    """The shortest L2 perturbation that DDN finds on logits ``logit_scale`` z; the image itself where it finds none."""

    steps: int = 100
    logit_scale: float = 1.0
    gamma: float = 0.05
    first_length: float = 1.0

    def __post_init__(self) -> None:
        check_count("DDN.steps", self.steps)
        for name, hint in (("logit_scale", "1, 3 and 10 are usual"), ("first_length", "1 is usual")):
            value = getattr(self, name)
            check_number(f"DDN.{name}", value, is_valid=lambda v: v > 0, rule="a positive number", hint=hint)
        usual = "0.05 is usual"
        check_number("DDN.gamma", self.gamma, is_valid=lambda v: 0 < v < 1, rule="in (0, 1)", hint=usual)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
        """Attack the images x with labels y; random numbers are drawn only where a gradient is zero."""
        with attacking("DDN", model, x, y) as (model, x, y):
            return self._search(model, x, y, generator)

    def _search(self, model: nn.Module, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
        center, shortest = wide(x), Shortest(x)
        delta = torch.zeros_like(center)
        length = center.new_full((len(x),), self.first_length)
        farthest = _UNIT.size(torch.maximum(center, 1 - center))
        for step in range(self.steps):
            gradient, logits = gradient_and_logits(model, center + delta, x, y, self._goal)
            fooled = ~predicted(logits, y)
            shortest.offer(delta, fooled)
            direction = random_direction(_UNIT.ascent(gradient), generator)
            size = LAST_STEP + (1 - LAST_STEP) * (1 + math.cos(math.pi * step / self.steps)) / 2
            length = torch.minimum(length * torch.where(fooled, 1 - self.gamma, 1 + self.gamma), farthest)
            delta = delta + size * direction
            tiny = torch.finfo(delta.dtype).tiny
            delta = delta * per_sample(length / _UNIT.size(delta).clamp_min(tiny), delta)
            delta = (center + delta).clamp(0, 1) - center
        return shortest.images()

    def _goal(self, logits: Tensor, y: Tensor) -> Tensor:
        """log((1 - p_y) / p_y) of p = softmax(s z)."""
        logits = self.logit_scale * wide(logits)
        label = y.unsqueeze(1)
        others = logits.scatter(1, label, -torch.inf)
        return others.logsumexp(1) - logits.gather(1, label).squeeze(1)
