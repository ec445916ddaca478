"""LBGAT (Cui et al.): a teacher trained on clean images guides the logits of a robust student; one optimizer for both.

x' is found against the student alone, by the KL from a Gaussian start; train-mode forwards in the order x', x
(student), x (teacher), the clean student forward even at beta = 0, where it only moves batch-norm statistics. The
student has no label loss of its own, so a head's margin cannot act on it.
"""

from dataclasses import dataclass

from torch import Tensor

from widemargin import losses
from widemargin.attacks.kinds import ATTACK_KINDS
from widemargin.core.checks import logits_of
from widemargin.core.schema import added, one_of
from widemargin.errors import InputError
from widemargin.objectives.objective import AttackingObjective, Inner, check_inner, check_smoothing, check_weight
from widemargin.types import Attack, Nets, Outcome


@dataclass(frozen=True, kw_only=True)
class Lbgat(AttackingObjective):
    """mean_k (z'_k - t_k)^2 + CE(t, y) + beta KL(p(x) || p(x')); needs a teacher."""

    attack: Attack = one_of(ATTACK_KINDS)
    beta: float = 0.0
    inner: Inner = "kl"
    label_smoothing: float = added(0.0)
    takes_mixed_labels = True

    def __post_init__(self) -> None:
        check_weight("Lbgat.beta", self.beta)
        check_inner("Lbgat", self.inner, self.attack)
        check_smoothing("Lbgat", self.label_smoothing)

    def outcome(self, nets: Nets, x: Tensor, x_adv: Tensor, y: Tensor, *, epoch: int) -> Outcome:
        """Return the loss of each sample."""
        del epoch
        if nets.teacher is None:
            raise InputError('Lbgat needs a teacher: add a [teacher] table to the run, such as kind = "lbgat-teacher"')
        student_adv = logits_of(nets.model(x_adv))
        student = logits_of(nets.model(x))
        teacher = logits_of(nets.teacher(x))
        loss = losses.lbgat(student, student_adv, teacher, y, self.beta, label_smoothing=self.label_smoothing)
        return Outcome(loss=loss, logits=student_adv.detach(), x_adv=x_adv)
