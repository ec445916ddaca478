"""Attacks by the names of tables: "fgsm", "pgd10", "pgd20x10", "pgd20-margin", "pgd20-ce-s10", "pgd20-strongest".

    pgd N [x RESTARTS] [- LOSS] [-s SCALE]     LOSS is ce (the usual one), margin, dlr or cw; SCALE that of the logits
    pgd [N] - strongest                        the worst of several losses and scales per image, N = 20

None starts at random but restarts; the step size is eps/4 unless given.
"""

import re
from typing import cast

from widemargin.attacks.pgd import FGSM, GOALS, PGD, LossName
from widemargin.attacks.strongest import StrongestPGD
from widemargin.errors import InputError
from widemargin.losses import FEWEST_FOR_DLR
from widemargin.types import Norm

AUTOATTACK = "autoattack"
AUTOATTACK_PARTS = ("apgd-ce", "apgd-t", "fab-t", "square")
USUAL_STEPS = 20
KNOWN = "clean, fgsm, pgdN (pgd10, pgd20, pgd100, ...), pgdN-margin, -dlr, -cw or -ce-s10, pgdNx10, pgdN-strongest"
_PGD = re.compile(rf"pgd-?([0-9]+)(?:x([0-9]+))?(?:-({'|'.join(GOALS)}))?(?:-s([0-9]+(?:\.[0-9]+)?))?")
_STRONGEST = re.compile(r"pgd(?:-?([0-9]+))?-strongest")
GradientAttack = FGSM | PGD | StrongestPGD


def attack_named(name: str, *, eps: float, step_size: float | None = None, norm: Norm = "linf") -> GradientAttack:
    """The attack of that name, without a random start; the step size is eps/4 unless given."""
    step = eps / 4 if step_size is None else step_size
    if name == "fgsm":
        return FGSM(eps=eps, norm=norm)
    if strongest := _STRONGEST.fullmatch(name):
        steps = USUAL_STEPS if strongest[1] is None else int(strongest[1])
        return StrongestPGD(eps=eps, step_size=step, steps=steps, norm=norm)
    match = _PGD.fullmatch(name)
    if match is None or int(match[1]) == 0:
        raise InputError(
            f"unknown attack {name!r}; known are {KNOWN} and autoattack or one of its parts; one of your own goes into "
            "widemargin.attacks.ATTACKS, in a module for --import"
        )
    loss = cast(LossName, match[3] or "ce")
    return PGD(
        eps=eps,
        step_size=step,
        steps=int(match[1]),
        norm=norm,
        restarts=int(match[2] or 1),
        loss=loss,
        logit_scale=float(match[4] or 1),
    )


def variant_names(name: str, num_classes: int = FEWEST_FOR_DLR) -> tuple[str, ...]:
    """The attacks of which that one is the worst per image, where it is one of those."""
    if not _STRONGEST.fullmatch(name):
        return ()
    attack = attack_named(name, eps=1.0)
    assert isinstance(attack, StrongestPGD)
    return tuple(name_of(variant) for variant in attack.variants(num_classes))


def name_of(attack: PGD) -> str:
    """The name that :func:`attack_named` reads, of a PGD without a random start."""
    scale = f"-ce-s{attack.logit_scale:g}" if attack.logit_scale != 1 else ""
    restarts = f"x{attack.restarts}" if attack.restarts > 1 else ""
    return f"pgd{attack.steps}{restarts}{'' if attack.loss == 'ce' else f'-{attack.loss}'}{scale}"
