"""Adversarial training (AT, Madry et al.): cross-entropy on the images an attack finds against the current model."""

from dataclasses import dataclass

import torch
from torch import Tensor

from widemargin.attacks.pgd import FGSM, PGD
from widemargin.heads.training import logits_for_training
from widemargin.losses import cross_entropy
from widemargin.objectives.objective import AttackingObjective
from widemargin.types import Nets, Outcome


@dataclass(frozen=True, kw_only=True)
class Adversarial(AttackingObjective):
    """mean CE(z(x'), y); x' is a constant for the gradient."""

    attack: PGD | FGSM

    def __call__(
        self, nets: Nets, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator | None = None
    ) -> Outcome:
        """Return the loss of each sample."""
        x_adv = self.perturb(nets, x, y, epoch=epoch, generator=generator)
        logits, label_logits = logits_for_training(nets.model, x_adv, y)
        return Outcome(loss=cross_entropy(label_logits, y), logits=logits.detach(), x_adv=x_adv)
