"""Standard training (ST): cross-entropy on the clean images."""

from dataclasses import dataclass

import torch
from torch import Tensor

from widemargin.losses import cross_entropy
from widemargin.types import Nets, Outcome


@dataclass(frozen=True, kw_only=True)
class Standard:
    """mean CE(z(x), y)."""

    @property
    def attacks(self) -> bool:
        """It makes no adversarial images."""
        return False

    def __call__(self, nets: Nets, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator) -> Outcome:
        """Return the loss of each sample."""
        del epoch, generator
        logits = nets.model(x)
        return Outcome(loss=cross_entropy(logits, y), logits=logits.detach())
