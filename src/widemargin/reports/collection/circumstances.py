"""What the numbers of a table were made with, in one sentence: hardware, engine, precision, versions, time."""

from collections import Counter
from collections.abc import Iterable, Sequence

from widemargin.reports.collection.tree import CollectedJob
from widemargin.reports.inputs.fields import Fields


def circumstances(jobs: Sequence[CollectedJob]) -> str:
    """Each kind that occurs, the most frequent first, with how many jobs have it where they differ."""
    parts = [
        f"Hardware: {kinds(job.result.text('device', 'unknown') for job in jobs)}.",
        f"Trained with: {kinds(job.result.text('engine', 'unknown') for job in jobs)}.",
        f"Judged in: {kinds(job.evaluation.text('precision', 'unknown') for job in jobs)}.",
        f"Versions: {kinds(_versions(job.result.table('versions')) for job in jobs)}.",
    ]
    trained = {(job.result.text("trained_as", job.recipe), job.seed): job for job in jobs}  # rows may share a run
    training = _hours(_sum(trained.values(), "training_seconds"))
    judging = _hours(_sum(jobs, "evaluation_seconds"))
    together = max(job.result.whole("workers") or 1 for job in jobs)
    shared = f", up to {together} jobs sharing the device" if together > 1 else ""
    return " ".join([*parts, f"Time of all jobs together: {training} of training, {judging} of judging{shared}."])


def _sum(jobs: Iterable[CollectedJob], key: str) -> float:
    return sum(job.result.number(key) or 0.0 for job in jobs)


def kinds(values: Iterable[str]) -> str:
    """Each value that occurs, with how many jobs have it where they differ."""
    counted = sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0]))
    if len(counted) == 1:
        return counted[0][0]
    return "; ".join(f"{value.replace(';', ',')} ({count} job{'s' * (count > 1)})" for value, count in counted)


def _versions(table: Fields) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(table.words().items())) or "unknown"


def _hours(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
