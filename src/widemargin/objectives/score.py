"""SCORE (Pang et al., 2022): squared distances of probabilities in the place of TRADES's cross-entropy and KL.

    ||p(x) - t||^2 + beta max(||p(x') - p(x)||^2 - clip, 0)

and x' maximizes ||p(x') - p(x)||^2; t is the label. The published attack runs on batch statistics (``mode = "batch"``)
from a uniform start; forwards in the order x, x'. The published models have beta = 3, the command in the code beta = 4.
"""

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from widemargin import losses
from widemargin.attacks.kinds import ATTACK_KINDS
from widemargin.core.checks import check_number, logits_of
from widemargin.core.schema import one_of
from widemargin.heads.training import logits_for_training
from widemargin.objectives.objective import AttackingObjective, InnerProblem, check_start, check_weight
from widemargin.types import Attack, Nets, Outcome


@dataclass(frozen=True, kw_only=True)
class Score(AttackingObjective):
    """||p(x) - t||^2 + beta max(||p(x') - p(x)||^2 - clip, 0)."""

    attack: Attack = one_of(ATTACK_KINDS)
    beta: float = 3.0
    clip: float = 0.0
    label_smoothing: float = 0.0
    takes_mixed_labels = True

    def __post_init__(self) -> None:
        check_weight("Score.beta", self.beta)
        for field, limit in (("clip", 2), ("label_smoothing", 1)):
            value, hint = getattr(self, field), "0 is as published"
            rule = f"a number in [0, {limit})"
            check_number(f"Score.{field}", value, is_valid=partial(_is_below, limit), rule=rule, hint=hint)
        check_start("Score", self.attack, what="(its inner problem is a distance)")

    def inner_problem(self, epoch: int) -> tuple[Attack, InnerProblem]:
        """The squared distance from the clean prediction."""
        del epoch
        return self.attack, "squared"

    def outcome(self, nets: Nets, x: Tensor, x_adv: Tensor, y: Tensor, *, epoch: int) -> Outcome:
        """Return the loss of each sample."""
        del epoch
        logits, label_logits = logits_for_training(nets.model, x, y)
        logits_adv = logits_of(nets.model(x_adv))
        loss = losses.score(
            logits,
            logits_adv,
            y,
            self.beta,
            clip=self.clip,
            label_smoothing=self.label_smoothing,
            label_logits=label_logits,
        )
        return Outcome(loss=loss, logits=logits_adv.detach(), x_adv=x_adv)


def _is_below(limit: float, value: float) -> bool:
    return 0 <= value < limit
