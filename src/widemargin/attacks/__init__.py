"""Attacks: (model, x, y) -> x_adv, detached, inside [0, 1]: of PGD in the threat set, of DDN and ALMA the nearest.

``ATTACK_KINDS`` are the attacks that a table of a run may describe by its ``kind``, to train or to watch training with.
``ATTACKS`` are those of your own that ``--attacks`` shall know by name. Put yours in, and give ``--import`` its module.
"""

from typing import Any

from widemargin.attacks.alma import ALMA
from widemargin.attacks.ddn import DDN
from widemargin.attacks.kinds import ATTACK_KINDS
from widemargin.attacks.names import attack_named
from widemargin.attacks.pgd import FGSM, PGD
from widemargin.attacks.straight_through import straight_through_gradients
from widemargin.attacks.strongest import StrongestPGD

ATTACKS: dict[str, Any] = {}

__all__ = [
    "ALMA",
    "ATTACKS",
    "ATTACK_KINDS",
    "DDN",
    "FGSM",
    "PGD",
    "StrongestPGD",
    "attack_named",
    "straight_through_gradients",
]
