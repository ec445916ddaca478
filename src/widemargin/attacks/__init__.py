"""Attacks: (model, x, y) -> x_adv."""

from widemargin.attacks.named import attack_named
from widemargin.attacks.pgd import FGSM, PGD

__all__ = ["FGSM", "PGD", "attack_named"]
