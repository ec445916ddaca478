"""Standard training (ST): cross-entropy on the clean images."""

from dataclasses import dataclass

import torch
from torch import Tensor

from widemargin.core.schema import added
from widemargin.heads.training import logits_for_training
from widemargin.losses import cross_entropy
from widemargin.objectives.objective import check_smoothing
from widemargin.types import Nets, Outcome


@dataclass(frozen=True, kw_only=True)
class Standard:
    """mean CE(z(x), y)."""

    label_smoothing: float = added(0.0)
    takes_mixed_labels = True

    def __post_init__(self) -> None:
        check_smoothing("Standard", self.label_smoothing)

    @property
    def attacks(self) -> bool:
        """It makes no adversarial images."""
        return False

    def phase(self, epoch: int) -> int:
        """It does the same in every epoch."""
        del epoch
        return 0

    def perturb(
        self, nets: Nets, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator | None = None
    ) -> Tensor | None:
        """No adversarial images."""
        del nets, x, y, epoch, generator
        return None

    def __call__(
        self, nets: Nets, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator | None = None
    ) -> Outcome:
        """Return the loss of each sample."""
        del generator
        return self.outcome(nets, x, None, y, epoch=epoch)

    def outcome(self, nets: Nets, x: Tensor, x_adv: None, y: Tensor, *, epoch: int) -> Outcome:
        """The same: there is no attack before it."""
        del x_adv, epoch
        logits, label_logits = logits_for_training(nets.model, x, y)
        return Outcome(loss=cross_entropy(label_logits, y, self.label_smoothing), logits=logits.detach())
