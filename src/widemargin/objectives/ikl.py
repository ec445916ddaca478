"""IKL (Cui et al., NeurIPS 2024) and GKL (2026): the KL of TRADES taken apart, and weighted by what classes look like.

The gradient of KL(p || p') is that of a cross-entropy to p and of a squared difference of logit differences, weighted
by p. IKL lets the square differentiate the clean logits too, and weights it by the mean prediction of the sample's
class in place of its own, which a single bad prediction does not move:

    CE(z, y) + alpha (-sum_k p_k log p'_k) + beta / 4 sum_jk w_j w_k (d_j - d_k)^2,    d = z' - z,  w = c_y^gamma,

p held in the second term. Row c_y is the mean of softmax(z / temperature) over the images of class y in the epoch
before (1/K in the first), kept in ``nets.memory``; a class without images keeps its row, where the published code
divides 0 by 0. GKL divides the square by the sum of all weights of the batch, IKL by their number: at gamma = 1 the
rows sum to one, and the two are the same.

x' maximizes the second term, the KL of TRADES. The published attack has 5 steps of eps / 2 from a Gaussian start while
eps grows over all epochs: ``ramp`` epochs, with eps, the step and any noise of ``attack`` times (epoch + 1) / ramp.
Forwards in the order x', x; alpha 4, beta 20, temperature 4, with AWP 0.005 from the tenth epoch.
"""

from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from widemargin import losses
from widemargin.attacks.kinds import ATTACK_KINDS
from widemargin.core import batch_share
from widemargin.core.checks import check_number, logits_of
from widemargin.core.schema import one_of
from widemargin.errors import InputError
from widemargin.heads.training import logits_for_training
from widemargin.objectives.objective import (
    AttackingObjective,
    InnerProblem,
    check_smoothing,
    check_start,
    check_weight,
    memory_of,
)
from widemargin.types import Attack, Nets, Outcome

LENGTHS = ("eps", "step_size", "noise")
"""The fields of an attack that grow with its radius."""


@dataclass(frozen=True, kw_only=True)
class Ikl(AttackingObjective):
    """CE(z, y) + alpha CE(z', p) + beta / 4 sum_jk w_j w_k (d_j - d_k)^2."""

    attack: Attack = one_of(ATTACK_KINDS)
    alpha: float = 4.0
    beta: float = 20.0
    gamma: float = 1.0
    temperature: float = 4.0
    ramp: int = 0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        for field in ("alpha", "beta", "gamma"):
            check_weight(f"Ikl.{field}", getattr(self, field))
        check_number(
            "Ikl.temperature",
            self.temperature,
            is_valid=lambda t: t > 0,
            rule="a positive number",
            hint="4 is as published",
        )
        if self.ramp < 0:
            raise InputError(f"Ikl.ramp must be a number of epochs >= 0, got {self.ramp}; 0 attacks at eps at once")
        attack: Any = self.attack
        if self.ramp and not (is_dataclass(attack) and hasattr(attack, "eps")):
            raise InputError(f"Ikl.ramp makes eps grow, and {attack!r} has no field eps; remove it, or use pgd")
        check_start("Ikl", self.attack, what="(its inner problem is a divergence)")
        check_smoothing("Ikl", self.label_smoothing)

    def make_memory(self, *, image_shape: tuple[int, int, int], num_classes: int, batch_size: int) -> nn.Module:
        """The class matrix."""
        del image_shape, batch_size
        return ClassPredictions(num_classes)

    def phase(self, epoch: int) -> int:
        """The attack of every epoch is another one while eps grows."""
        return min(epoch, max(self.ramp - 1, 0))

    def inner_problem(self, epoch: int) -> tuple[Attack, InnerProblem]:
        """The divergence, within the eps of this epoch."""
        if epoch + 1 >= self.ramp:
            return self.attack, "kl"
        attack: Any = self.attack
        lengths = {name: getattr(attack, name, None) for name in LENGTHS}
        share = (epoch + 1) / self.ramp
        return replace(attack, **{name: share * length for name, length in lengths.items() if length}), "kl"

    def outcome(self, nets: Nets, x: Tensor, x_adv: Tensor, y: Tensor, *, epoch: int) -> Outcome:
        """Return the loss of each sample, and remember what the classes look like."""
        del epoch
        classes = memory_of("Ikl", nets, ClassPredictions)
        logits_adv = logits_of(nets.model(x_adv))
        logits, label_logits = logits_for_training(nets.model, x, y)
        loss = losses.ikl(
            logits,
            logits_adv,
            y,
            classes.rows[y.long()],
            alpha=self.alpha,
            beta=self.beta,
            gamma=self.gamma,
            label_logits=label_logits,
            label_smoothing=self.label_smoothing,
        )
        classes.add(F.softmax(logits.detach() / self.temperature, dim=1), y)
        return Outcome(loss=loss, logits=logits_adv.detach(), x_adv=x_adv)


class ClassPredictions(nn.Module):
    """What the images of each class were predicted as: in the epoch before, and summed over this one."""

    rows: Tensor
    sums: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.full((num_classes, num_classes), 1 / num_classes))
        self.register_buffer("sums", torch.zeros(num_classes, num_classes))

    @torch.no_grad()
    def add(self, predictions: Tensor, y: Tensor) -> None:
        """Add the predictions (B, K) of images of these classes."""
        of_class = F.one_hot(y.long(), len(self.rows)).to(self.sums.dtype)
        self.sums.add_(batch_share.batch_sum(of_class.T @ predictions.to(self.sums.dtype)))

    def after_epoch(self) -> None:
        """This epoch becomes the one before."""
        totals = self.sums.sum(1, keepdim=True)
        self.rows.copy_(torch.where(totals > 0, self.sums / totals, self.rows))
        self.sums.zero_()
