"""Attacks: (model, x, y) -> x_adv, detached, inside [0, 1]: of PGD in the threat set, of DDN and ALMA the nearest."""

from widemargin.attacks.alma import ALMA
from widemargin.attacks.ddn import DDN
from widemargin.attacks.pgd import FGSM, PGD, attack_named

__all__ = ["ALMA", "DDN", "FGSM", "PGD", "attack_named"]
