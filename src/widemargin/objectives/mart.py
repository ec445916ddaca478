"""MART (Wang et al.): misclassification-aware training; the KL counts where the clean prediction is unsure.

x' by cross-entropy from a Gaussian start, as published; forwards in the order x, x'.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from widemargin import losses
from widemargin.attacks.pgd import FGSM, PGD
from widemargin.heads import logits_for_training
from widemargin.objectives.trades import check_weight
from widemargin.types import Nets, Outcome


@dataclass(frozen=True, kw_only=True)
class Mart:
    """Boosted CE(z(x'), y) + weight KL (1 - p_y(x))."""

    attack: PGD | FGSM
    weight: float = 6.0

    def __post_init__(self) -> None:
        check_weight("Mart.weight", self.weight)

    @property
    def attacks(self) -> bool:
        """It makes adversarial images."""
        return True

    def phase(self, epoch: int) -> int:
        """It does the same in every epoch."""
        del epoch
        return 0

    def perturb(
        self, nets: Nets, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """The images that raise the cross-entropy."""
        del epoch
        return self.attack(nets.model, x, y, generator=generator)

    def __call__(
        self, nets: Nets, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator | None = None
    ) -> Outcome:
        """Return the loss of each sample."""
        x_adv = self.perturb(nets, x, y, epoch=epoch, generator=generator)
        logits = nets.model(x)
        logits_adv, label_logits = logits_for_training(nets.model, x_adv, y)
        loss = losses.mart(logits, logits_adv, y, self.weight, label_logits=label_logits)
        return Outcome(loss=loss, logits=logits_adv.detach(), x_adv=x_adv)
