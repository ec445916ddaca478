"""Adversarial training (AT, Madry et al.): cross-entropy on the images an attack finds against the current model."""

from dataclasses import dataclass

import torch
from torch import Tensor

from widemargin.attacks.pgd import FGSM, PGD
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

    def __call__(self, nets: Nets, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator) -> Outcome:
        """Return the loss of each sample."""
        del epoch
        x_adv = self.attack(nets.model, x, y, generator=generator)
        logits = nets.model(x_adv)
        return Outcome(loss=cross_entropy(logits, y), logits=logits.detach(), x_adv=x_adv)
