"""What a reader of the numbers must know about how they were made, whatever they are."""

from widemargin.evaluation.backend import FEWEST_FOR_APGD_T, PARTS, parts_for
from widemargin.evaluation.report import Subject
from widemargin.evaluation.settings import AUTOATTACK, EvaluationSettings

UNKNOWN = "unknown: the file does not say"


def notes_for(settings: EvaluationSettings, num_classes: int, refuted: int = 0, again: int = 0) -> tuple[str, ...]:
    """Plain sentences; none for an ordinary evaluation.

    ``refuted`` finds were adversarial in the search alone, the distances of ``again`` were searched in float32 too.
    """
    notes = []
    left_out = [part for part in PARTS if part not in parts_for(num_classes)]
    if AUTOATTACK in settings.attacks and left_out:
        notes.append(
            f"AutoAttack ran without its part {', '.join(left_out)}, whose loss needs {FEWEST_FOR_APGD_T} classes; "
            f"this model has {num_classes}."
        )
    if AUTOATTACK in settings.attacks and settings.search == "tf32":
        notes.append(
            "AutoAttack searched with TF32, and all that its parts found was checked in float32, if need be after a "
            f"few more steps; so many finds still were not adversarial there and do not count: {refuted}."
        )
    if settings.distance and settings.search == "tf32":
        notes.append(
            "Distances were searched with TF32 and count where float32 sees the boundary within 3%; so many images "
            f"were searched again in float32: {again}."
        )
    return tuple(notes)


def notes_on_records(without_digest: int, *, late: bool) -> tuple[str, ...]:
    """What could not be checked of records of earlier versions."""
    notes = []
    if without_digest:
        notes.append(
            "Earlier versions wrote shards without a digest; of so many, images, labels and counts were checked, and "
            f"verdicts could not be: {without_digest}."
        )
    if late:
        notes.append(
            "An earlier version began this evaluation and did not record the model's answers; only its weights were "
            "compared when it went on."
        )
    return tuple(notes)


def notes_on(subject: Subject) -> tuple[str, ...]:
    """Whether public weights may want other images, and whether a run is under way; one may stop early."""
    if subject.normalize == UNKNOWN:
        return (
            "Nothing in the file of the weights says how images are normalized, so they are given as they are, in "
            "[0, 1]; if the weights were trained behind a normalization, give it (--normalize cifar10, or MEAN,STD).",
        )
    config = subject.config or {}
    planned = config.get("epochs")
    if subject.weights != "last" or subject.epoch is None or planned is None or config.get("stopping"):
        return ()
    if subject.epoch >= planned:
        return ()
    return (f"The run is not finished: these are its weights after {subject.epoch} of {planned} epochs.",)
