"""What each alarm of training means and suggests, by the name that stands in ``metrics.jsonl``.

Training warns with these suggestions and a report, which reads names only, shows them.
"""

from dataclasses import dataclass

CATASTROPHIC_OVERFITTING = "catastrophic-overfitting"
ROBUST_OVERFITTING = "robust-overfitting"
_STILL = "-still"


@dataclass(frozen=True)
class Meaning:
    """What an alarm says without the numbers of a run, and what to do."""

    message: str
    suggestion: str


_MEANINGS = {
    CATASTROPHIC_OVERFITTING: Meaning(
        "accuracy under attack collapsed while accuracy in training rose",
        "the model has learned to fool the attack it trains with: use more steps (objective.attack), a random start "
        "or a lower learning rate",
    ),
    ROBUST_OVERFITTING: Meaning(
        "accuracy under attack on held-out images fell below its best and stayed there while accuracy in training rose",
        "the best epoch is in best.safetensors; set stopping.patience or averaging.decay, or lower the learning rate "
        "earlier",
    ),
}


def standing_still(penalty: str) -> str:
    """The name of the alarm of a penalty that stands still."""
    return f"{penalty}{_STILL}"


def meaning_of(name: str) -> Meaning:
    """The meaning of an alarm; empty words for a name that this version does not know."""
    if name in _MEANINGS:
        return _MEANINGS[name]
    penalty = name.removesuffix(_STILL)
    if name == penalty:
        return Meaning("", "")
    return Meaning(
        f"the {penalty} penalty was zero, or did not change though the loss did",
        f"it teaches the model nothing: change {penalty}.weight, or look at the penalty's {penalty}.kind and the model",
    )
