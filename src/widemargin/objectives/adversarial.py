"""Adversarial training (AT, Madry et al.): cross-entropy on the images an attack finds against the current model."""

from dataclasses import dataclass

from torch import Tensor

from widemargin.attacks.kinds import ATTACK_KINDS
from widemargin.core.schema import added, one_of
from widemargin.heads.training import logits_for_training
from widemargin.losses import cross_entropy
from widemargin.objectives.objective import AttackingObjective, check_smoothing
from widemargin.types import Attack, Nets, Outcome


@dataclass(frozen=True, kw_only=True)
class Adversarial(AttackingObjective):
    """mean CE(z(x'), y); x' is a constant for the gradient."""

    attack: Attack = one_of(ATTACK_KINDS)
    label_smoothing: float = added(0.0)
    takes_mixed_labels = True

    def __post_init__(self) -> None:
        check_smoothing("Adversarial", self.label_smoothing)

    def outcome(self, nets: Nets, x: Tensor, x_adv: Tensor, y: Tensor, *, epoch: int) -> Outcome:
        """Return the loss of each sample."""
        del x, epoch
        logits, label_logits = logits_for_training(nets.model, x_adv, y)
        loss = cross_entropy(label_logits, y, self.label_smoothing)
        return Outcome(loss=loss, logits=logits.detach(), x_adv=x_adv)
