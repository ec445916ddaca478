"""What a reader of the numbers must know about how they were made, whatever they are."""

from widemargin.evaluation.backend import FEWEST_FOR_APGD_T, PARTS, parts_for
from widemargin.evaluation.settings import AUTOATTACK, EvaluationSettings


def notes_for(settings: EvaluationSettings, num_classes: int) -> tuple[str, ...]:
    """Plain sentences; none for an ordinary evaluation."""
    left_out = [part for part in PARTS if part not in parts_for(num_classes)]
    if AUTOATTACK not in settings.attacks or not left_out:
        return ()
    return (
        f"AutoAttack ran without its part {', '.join(left_out)}, whose loss needs {FEWEST_FOR_APGD_T} classes; this "
        f"model has {num_classes}.",
    )
