"""MAIL (Liu et al., "Probabilistic Margins"): weigh samples by how near their probabilities are to flipping.

Over AT, TRADES or MART. Training begins with ``burn_in`` unweighted epochs: plain AT with an attack of its own in the
EMR paper's code (``burn_in_with="at"``), the same family without weights in MAIL's own (``"same"``). The released
weights are three times a sigmoid; ``weights="mean1"`` rescales them to mean one over the batch, as the MAIL paper
writes them.
"""

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from widemargin import losses
from widemargin.attacks.kinds import ATTACK_KINDS
from widemargin.core.checks import choice, logits_of
from widemargin.core.schema import added, one_of
from widemargin.errors import InputError
from widemargin.heads.training import logits_for_training
from widemargin.objectives.objective import AttackingObjective, Inner, check_inner, check_smoothing, check_weight
from widemargin.types import Attack, Nets, Outcome

DEFAULT_WEIGHT = 5.0


@dataclass(frozen=True, kw_only=True)
class Mail(AttackingObjective):
    """``weight`` is TRADES's beta or MART's weight; it means nothing over AT."""

    over: Literal["at", "trades", "mart"]
    attack: Attack = one_of(ATTACK_KINDS)
    slope: float
    bias: float
    weight: float | None = None
    inner: Inner | None = None
    weights: Literal["times3", "mean1"] = "times3"
    burn_in: int = 0
    burn_in_with: Literal["at", "same"] = "at"
    burn_in_attack: Attack | None = one_of(ATTACK_KINDS, default=None)
    label_smoothing: float = added(0.0)

    def __post_init__(self) -> None:
        choice("Mail", "over", self.over, ("at", "trades", "mart"))
        choice("Mail", "weights", self.weights, ("times3", "mean1"))
        if not (math.isfinite(self.slope) and self.slope > 0 and math.isfinite(self.bias)):
            raise InputError(f"Mail.slope must be positive and Mail.bias finite, got {self.slope!r} and {self.bias!r}")
        self._check_family()
        self._check_burn_in()

    def _check_family(self) -> None:
        if self.over == "at" and self.weight is not None:
            raise InputError('Mail.weight has no effect over AT, which has one term; remove it, or use over = "trades"')
        if self.over != "trades" and self.inner is not None:
            raise InputError(f"Mail.inner has no effect over {self.over}, whose inner problem is the cross-entropy")
        check_weight("Mail.weight", self._weight)
        check_inner("Mail", self._inner, self.attack)
        check_smoothing("Mail", self.label_smoothing)
        if self.over == "mart" and self.label_smoothing:
            raise InputError(
                "Mail.label_smoothing has no meaning over MART, whose boosted cross-entropy is about the label alone; "
                "remove it"
            )

    def _check_burn_in(self) -> None:
        choice("Mail", "burn_in_with", self.burn_in_with, ("at", "same"))
        if self.burn_in < 0:
            raise InputError(f"Mail.burn_in must be a number of epochs >= 0, got {self.burn_in}")
        for field, default in (("burn_in_attack", None), ("burn_in_with", "at")):
            if self.burn_in == 0 and getattr(self, field) != default:
                raise InputError(f"Mail.{field} has no effect without a burn-in; set burn_in, or remove it")
        if self.burn_in_with == "same" and self.burn_in_attack is not None:
            check_inner("Mail", self._inner, self.burn_in_attack, field="burn_in_attack")

    @property
    def _inner(self) -> Inner:
        return "ce" if self.over != "trades" else self.inner or "kl"

    @property
    def _weight(self) -> float:
        return DEFAULT_WEIGHT if self.weight is None else self.weight

    def _family(self, epoch: int) -> str:
        return "at" if epoch < self.burn_in and self.burn_in_with == "at" else self.over

    def phase(self, epoch: int) -> int:
        """The burn-in, then the weighted loss."""
        return int(epoch >= self.burn_in)

    def inner_problem(self, epoch: int) -> tuple[Attack, Inner]:
        """That of the family trained with in this epoch."""
        attack = self.burn_in_attack or self.attack if epoch < self.burn_in else self.attack
        return attack, "ce" if self._family(epoch) == "at" else self._inner

    def outcome(self, nets: Nets, x: Tensor, x_adv: Tensor, y: Tensor, *, epoch: int) -> Outcome:
        """Return the loss of each sample: forwards in the order of the family, weights after the burn-in."""
        family, weighted = self._family(epoch), epoch >= self.burn_in
        slope, bias, mean_one, smoothing = self.slope, self.bias, self.weights == "mean1", self.label_smoothing
        if family == "trades":
            z, label = logits_for_training(nets.model, x, y)
            z_adv: Tensor = logits_of(nets.model(x_adv))
            if weighted:
                loss = losses.mail_trades(
                    z,
                    z_adv,
                    y,
                    self._weight,
                    slope,
                    bias,
                    mean_one=mean_one,
                    label_logits=label,
                    label_smoothing=smoothing,
                )
            else:
                loss = losses.trades(z, z_adv, y, self._weight, label_logits=label, label_smoothing=smoothing)
        elif family == "mart":
            z = logits_of(nets.model(x))
            z_adv, label = logits_for_training(nets.model, x_adv, y)
            if weighted:
                loss = losses.mail_mart(z, z_adv, y, self._weight, slope, bias, mean_one=mean_one, label_logits=label)
            else:
                loss = losses.mart(z, z_adv, y, self._weight, label_logits=label)
        else:
            z_adv, label = logits_for_training(nets.model, x_adv, y)
            if weighted:
                loss = losses.mail_at(
                    z_adv, y, slope, bias, mean_one=mean_one, label_logits=label, label_smoothing=smoothing
                )
            else:
                loss = losses.cross_entropy(label, y, smoothing)
        return Outcome(loss=loss, logits=z_adv.detach(), x_adv=x_adv)
