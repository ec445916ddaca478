"""TRADES (Zhang et al.): clean cross-entropy plus beta times the KL between clean and adversarial predictions.

The official inner problem is the KL ("kl"); the EMR paper's code uses the cross-entropy ("ce"), and so do its
recipes. The official code passes the clean images twice, which counts as one more batch-norm update
(``repeat_clean``); one pass gives the same loss.
"""

from dataclasses import dataclass

from torch import Tensor

from widemargin import losses
from widemargin.attacks.kinds import ATTACK_KINDS
from widemargin.core.checks import logits_of
from widemargin.core.schema import added, one_of
from widemargin.heads.training import logits_for_training
from widemargin.objectives.objective import AttackingObjective, Inner, check_inner, check_smoothing, check_weight
from widemargin.types import Attack, Nets, Outcome


@dataclass(frozen=True, kw_only=True)
class Trades(AttackingObjective):
    """CE(z(x), y) + beta KL(p(x) || p(x'))."""

    attack: Attack = one_of(ATTACK_KINDS)
    beta: float = 6.0
    inner: Inner = "kl"
    repeat_clean: bool = False
    label_smoothing: float = added(0.0)
    takes_mixed_labels = True

    def __post_init__(self) -> None:
        check_weight("Trades.beta", self.beta)
        check_inner("Trades", self.inner, self.attack)
        check_smoothing("Trades", self.label_smoothing)

    def outcome(self, nets: Nets, x: Tensor, x_adv: Tensor, y: Tensor, *, epoch: int) -> Outcome:
        """Return the loss of each sample."""
        del epoch
        logits, label_logits = logits_for_training(nets.model, x, y)
        logits_adv = logits_of(nets.model(x_adv))
        if self.repeat_clean:
            logits = logits_of(nets.model(x))
        loss = losses.trades(
            logits, logits_adv, y, self.beta, label_logits=label_logits, label_smoothing=self.label_smoothing
        )
        return Outcome(loss=loss, logits=logits_adv.detach(), x_adv=x_adv)
