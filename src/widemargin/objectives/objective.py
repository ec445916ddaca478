"""The inner problem of the TRADES family: which images to train on.

"kl" makes the prediction move away from the clean one; "ce" makes the label unlikely. The clean prediction is computed
once, in evaluation mode: it does not change while the attack climbs.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from widemargin.attacks.pgd import FGSM, PGD
from widemargin.core.checks import check_logits, choice
from widemargin.core.modes import in_mode, without_ddp
from widemargin.errors import InputError
from widemargin.losses import kl_divergence
from widemargin.types import Goal

Inner = Literal["kl", "ce"]


def check_inner(owner: str, inner: str, attack: PGD | FGSM, *, field: str = "attack") -> None:
    """The KL has no gradient at the clean image, so a KL attack that starts there never moves."""
    choice(owner, "inner", inner, ("kl", "ce"))
    if inner == "kl" and (isinstance(attack, FGSM) or attack.random_start is False):
        raise InputError(
            f'{owner}.{field} must be PGD with a random start when inner = "kl", got {attack!r}; the KL has no '
            'gradient at the image itself: set random_start = "gaussian"'
        )


def find_adversarial(
    model: nn.Module, x: Tensor, y: Tensor, *, inner: Inner, attack: PGD | FGSM, generator: torch.Generator | None
) -> Tensor:
    """x' by the inner problem asked for."""
    goal = away_from_clean(model, x, attack) if inner == "kl" else None
    return attack(model, x, y, goal=goal, generator=generator)


def away_from_clean(model: nn.Module, x: Tensor, attack: PGD | FGSM) -> Goal:
    """KL(p(x) || p(x')) as a goal, p(x) computed now and held."""
    model = without_ddp(model)
    with torch.no_grad(), in_mode(model, attack.mode):
        logits = model(x)
    check_logits("attack", logits, batch=len(x))
    clean = logits.detach()
    return lambda logits, y: kl_divergence(clean, logits)  # noqa: ARG005 - a goal's signature
