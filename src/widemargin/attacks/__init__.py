"""Attacks: (model, x, y) -> x_adv, detached, inside [0, 1]: of PGD in the threat set, of DDN and ALMA the nearest.

``ATTACKS`` are those of your own that ``--attacks`` shall know by name: put yours in, and give ``--import`` its module.
"""

from typing import Any

from widemargin.attacks.alma import ALMA
from widemargin.attacks.ddn import DDN
from widemargin.attacks.names import attack_named
from widemargin.attacks.pgd import FGSM, PGD
from widemargin.attacks.straight_through import straight_through_gradients
from widemargin.attacks.strongest import StrongestPGD

ATTACKS: dict[str, Any] = {}

__all__ = ["ALMA", "ATTACKS", "DDN", "FGSM", "PGD", "StrongestPGD", "attack_named", "straight_through_gradients"]
