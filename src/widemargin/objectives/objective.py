"""What the objectives that attack share: the inner problem, which finds the images to train on.

"ce" makes the label unlikely; "kl" (the TRADES family) and "squared" (SCORE) make the prediction move away from the
clean one, by their divergence or by the squared distance of the probabilities. The clean prediction is computed once,
in the attack's mode: it does not change while the attack climbs.
"""

from collections.abc import Callable
from typing import Literal, TypeVar, cast, get_args

import torch
from torch import Tensor, nn

from widemargin.attacks.pgd import FGSM
from widemargin.core.checks import check_logits, check_number, choice
from widemargin.core.modes import in_mode, without_ddp
from widemargin.errors import InputError
from widemargin.losses import kl_divergence, squared_distance
from widemargin.types import Attack, Goal, LossAfterAttack, Nets, Outcome

Memory = TypeVar("Memory", bound=nn.Module)
Inner = Literal["kl", "ce"]
"""What an objective may let its user choose from."""
InnerProblem = Literal["kl", "ce", "squared"]
AWAY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"kl": kl_divergence, "squared": squared_distance}
"""(clean logits, logits) -> (B,): how far a prediction is from the clean one."""


class AttackingObjective:
    """The base of an objective with a field ``attack``; its loss, given the adversarial images, is its own ``outcome``.

    It may have a field ``inner``; one whose inner problem differs between epochs overrides ``inner_problem``.
    """

    attack: Attack
    inner: Inner | None = None
    """What the attack makes large; None is the cross-entropy."""
    takes_mixed_labels = False

    @property
    def attacks(self) -> bool:
        """It makes adversarial images."""
        return True

    def phase(self, epoch: int) -> int:
        """It does the same in every epoch."""
        del epoch
        return 0

    def inner_problem(self, epoch: int) -> tuple[Attack, InnerProblem]:
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
        return attack(nets.model, x, y, goal=away_from_clean(nets.model, x, attack, AWAY[inner]), generator=generator)

    def __call__(
        self, nets: Nets, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator | None = None
    ) -> Outcome:
        """Attack, then return the loss of each sample."""
        x_adv = self.perturb(nets, x, y, epoch=epoch, generator=generator)
        return cast(LossAfterAttack, self).outcome(nets, x, x_adv, y, epoch=epoch)


def away_from_clean(
    model: nn.Module, x: Tensor, attack: Attack, distance: Callable[[Tensor, Tensor], Tensor] = kl_divergence
) -> Goal:
    """How far p(x') is from p(x) as a goal, p(x) computed now and held."""
    model = without_ddp(model)
    with torch.no_grad(), in_mode(model, getattr(attack, "mode", "eval")):
        output = model(x)
    logits = check_logits("attack", output, batch=len(x))
    clean = logits.detach()
    return lambda logits, y: distance(clean, logits)  # noqa: ARG005 - a goal's signature


def check_inner(owner: str, inner: str, attack: Attack, *, field: str = "attack") -> None:
    """Whether the inner problem is known, and its attack can begin."""
    choice(owner, "inner", inner, get_args(Inner))
    if inner == "kl":
        check_start(owner, attack, what='when inner = "kl"', field=field)


def check_start(owner: str, attack: Attack, *, what: str, field: str = "attack") -> None:
    """The distance from the clean prediction has no gradient at the clean image: an attack that starts there stays."""
    if (isinstance(attack, FGSM) and not attack.draws) or getattr(attack, "random_start", None) is False:
        raise InputError(
            f"{owner}.{field} must be PGD with a random start {what}, got {attack!r}; the distance from the clean "
            'prediction has no gradient at the image itself: set random_start = "gaussian"'
        )


def check_smoothing(owner: str, label_smoothing: float) -> None:
    """The share of the label's target that all classes divide."""
    is_valid: Callable[[float], bool] = lambda share: 0 <= share < 1  # noqa: E731
    rule, hint = "a number in [0, 1)", "0.1 is usual, 0 smooths nothing"
    check_number(f"{owner}.label_smoothing", label_smoothing, is_valid=is_valid, rule=rule, hint=hint)


def memory_of(owner: str, nets: Nets, kind: type[Memory]) -> Memory:
    """What the objective keeps from step to step."""
    if not isinstance(nets.memory, kind):
        raise InputError(
            f"{owner} keeps something from step to step; give it Nets(model, memory=...), made once by its make_memory"
        )
    return nets.memory


def check_weight(name: str, weight: float) -> None:
    """A weight inside a loss is a number that is not negative."""
    check_number(name, weight, is_valid=lambda value: value >= 0, rule="a number >= 0", hint="6 is usual")
