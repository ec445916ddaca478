"""Adversarial training (AT, Madry et al.): cross-entropy on the images an attack finds against the current model."""

from dataclasses import dataclass

import torch
from torch import Tensor

from widemargin.attacks.pgd import FGSM, PGD
from widemargin.heads import logits_for_training
from widemargin.losses import cross_entropy
from widemargin.types import Nets, Outcome


@dataclass(frozen=True, kw_only=True)
class Adversarial:
    """mean CE(z(x'), y); x' is a constant for the gradient."""

    attack: PGD | FGSM

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
        logits, label_logits = logits_for_training(nets.model, x_adv, y)
        return Outcome(loss=cross_entropy(label_logits, y), logits=logits.detach(), x_adv=x_adv)
