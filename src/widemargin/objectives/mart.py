"""MART (Wang et al.): misclassification-aware training; the KL counts where the clean prediction is unsure.

x' by cross-entropy from a Gaussian start, as published; forwards in the order x, x'.
"""

from dataclasses import dataclass

from torch import Tensor

from widemargin import losses
from widemargin.attacks.kinds import ATTACK_KINDS
from widemargin.core.checks import logits_of
from widemargin.core.schema import one_of
from widemargin.heads.training import logits_for_training
from widemargin.objectives.objective import AttackingObjective, check_weight
from widemargin.types import Attack, Nets, Outcome


@dataclass(frozen=True, kw_only=True)
class Mart(AttackingObjective):
    """Boosted CE(z(x'), y) + weight KL (1 - p_y(x))."""

    attack: Attack = one_of(ATTACK_KINDS)
    weight: float = 6.0

    def __post_init__(self) -> None:
        check_weight("Mart.weight", self.weight)

    def outcome(self, nets: Nets, x: Tensor, x_adv: Tensor, y: Tensor, *, epoch: int) -> Outcome:
        """Return the loss of each sample."""
        del epoch
        logits = logits_of(nets.model(x))
        logits_adv, label_logits = logits_for_training(nets.model, x_adv, y)
        loss = losses.mart(logits, logits_adv, y, self.weight, label_logits=label_logits)
        return Outcome(loss=loss, logits=logits_adv.detach(), x_adv=x_adv)
