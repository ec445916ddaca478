"""What several seeds of a recipe measured in training, as one curve."""

from collections.abc import Sequence
from statistics import fmean

from widemargin.reports.collection.tree import CollectedJob


def over_seeds(jobs: Sequence[CollectedJob], key: str) -> tuple[list[float], list[float]]:
    """(epochs, means): of each epoch that every seed has."""
    curves = [dict(job.run.curve(key)) for job in jobs]
    epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
    return epochs, [fmean(curve[epoch] for curve in curves) for epoch in epochs]


def clean_accuracy(jobs: Sequence[CollectedJob]) -> float:
    """What they end with without an attack, on test images or else held-out ones; 0 where it was not watched."""
    ends = (over_seeds(jobs, key)[1] for key in ("test_clean", "validation_clean"))
    return next((values[-1] for values in ends if values), 0.0)
