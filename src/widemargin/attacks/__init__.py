"""Attacks by the names that tables use: "fgsm", "pgd10", "pgd-100".

Attacks: (model, x, y) -> x_adv.
"""

import re

from widemargin.attacks.pgd import FGSM, PGD
from widemargin.errors import InputError
from widemargin.types import Norm

_PGD = re.compile(r"pgd-?([0-9]+)")


def attack_named(name: str, *, eps: float, step_size: float | None = None, norm: Norm = "linf") -> FGSM | PGD:
    """The attack of that name, from the image itself (no random start); the step size is eps/4 unless given."""
    if name == "fgsm":
        return FGSM(eps=eps, norm=norm)
    match = _PGD.fullmatch(name)
    if match is None or int(match[1]) == 0:
        raise InputError(
            f"unknown attack {name!r}; known are clean, fgsm, pgdN (pgd10, pgd20, pgd100, ...) and autoattack"
        )
    return PGD(eps=eps, step_size=eps / 4 if step_size is None else step_size, steps=int(match[1]), norm=norm)


__all__ = ["FGSM", "PGD", "attack_named"]
