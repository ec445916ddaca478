"""The attacks that a table of a run may describe by its ``kind``, to train or to watch training with."""

from widemargin.attacks.pgd import FGSM, PGD

ATTACK_KINDS: dict[str, type] = {"pgd": PGD, "fgsm": FGSM}
"""One of your own joins by its name; ``--import`` takes the module that does this."""
