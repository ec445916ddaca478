"""What the objectives that attack share: the inner problem, which finds the images to train on.

"ce" makes the label unlikely; "kl" makes the prediction move away from the clean one (the TRADES family). The clean
prediction is computed once, in the attack's mode: it does not change while the attack climbs.
"""

from typing import Literal, cast

import torch
from torch import Tensor, nn

from widemargin.attacks.pgd import FGSM
from widemargin.core.checks import check_logits, check_number, choice
from widemargin.core.modes import in_mode, without_ddp
from widemargin.errors import InputError
from widemargin.losses import kl_divergence
from widemargin.types import Attack, Goal, LossAfterAttack, Nets, Outcome

Inner = Literal["kl", "ce"]


class AttackingObjective:
    """The base of an objective with a field ``attack``; its loss, given the adversarial images, is its own ``outcome``.

    It may have a field ``inner``; one whose inner problem differs between epochs overrides ``inner_problem``.
    """

    attack: Attack
    inner: Inner | None = None
    """What the attack makes large; None is the cross-entropy."""

    @property
    def attacks(self) -> bool:
        """It makes adversarial images."""
        return True

    def phase(self, epoch: int) -> int:
        """It does the same in every epoch."""
        del epoch
        return 0

    def inner_problem(self, epoch: int) -> tuple[Attack, Inner]:
        """The attack of this epoch, and what it makes large."""
        del epoch
        return self.attack, self.inner or "ce"

    def perturb(
        self, nets: Nets, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """The images that solve the inner problem for the model (of LBGAT: the student)."""
        attack, inner = self.inner_problem(epoch)
        if inner == "ce":
            return attack(nets.model, x, y, generator=generator)
        return attack(nets.model, x, y, goal=away_from_clean(nets.model, x, attack), generator=generator)

    def __call__(
        self, nets: Nets, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator | None = None
    ) -> Outcome:
        """Attack, then return the loss of each sample."""
        x_adv = self.perturb(nets, x, y, epoch=epoch, generator=generator)
        return cast(LossAfterAttack, self).outcome(nets, x, x_adv, y, epoch=epoch)


def away_from_clean(model: nn.Module, x: Tensor, attack: Attack) -> Goal:
    """KL(p(x) || p(x')) as a goal, p(x) computed now and held."""
    model = without_ddp(model)
    with torch.no_grad(), in_mode(model, getattr(attack, "mode", "eval")):
        logits = model(x)
    check_logits("attack", logits, batch=len(x))
    clean = logits.detach()
    return lambda logits, y: kl_divergence(clean, logits)  # noqa: ARG005 - a goal's signature


def check_inner(owner: str, inner: str, attack: Attack, *, field: str = "attack") -> None:
    """The KL has no gradient at the clean image, so a KL attack that starts there never moves."""
    choice(owner, "inner", inner, ("kl", "ce"))
    if inner == "kl" and (isinstance(attack, FGSM) or getattr(attack, "random_start", None) is False):
        raise InputError(
            f'{owner}.{field} must be PGD with a random start when inner = "kl", got {attack!r}; the KL has no '
            'gradient at the image itself: set random_start = "gaussian"'
        )


def check_weight(name: str, weight: float) -> None:
    """A weight inside a loss is a number that is not negative."""
    check_number(name, weight, is_valid=lambda value: value >= 0, rule="a number >= 0", hint="6 is usual")
