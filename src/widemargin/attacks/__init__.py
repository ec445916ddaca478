"""Attacks: (model, x, y) -> x_adv, detached, inside the threat set and [0, 1]."""

from widemargin.attacks.pgd import FGSM, PGD, attack_named

__all__ = ["FGSM", "PGD", "attack_named"]
