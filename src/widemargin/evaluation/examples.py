"""The line of one example: its verdicts, and which part of AutoAttack broke it at each eps."""

from collections.abc import Mapping

from torch import Tensor

from widemargin.evaluation.backend import PARTS
from widemargin.evaluation.settings import AUTOATTACK, EvaluationSettings, written
from widemargin.evaluation.shards import Shard
from widemargin.records import Record

Breakers = Mapping[str, Mapping[int, str]]


def example_rows(
    settings: EvaluationSettings,
    shard: Shard,
    predictions: Tensor,
    columns: Mapping[str, Tensor],
    pieces: Mapping[str, Record],
    measured: Mapping[str, Record],
) -> list[Record]:
    """A line for each example of a shard."""
    breakers = _breakers(settings, pieces)
    rows = []
    for position in range(len(predictions)):
        row: Record = {
            "index": shard.first + position,
            "label": int(shard.labels[position]),
            "prediction": int(predictions[position]),
            "verdicts": {label: bool(column[position]) for label, column in columns.items()},
            "broken_by": _broken_by(breakers, position),
            "broken_at": {eps: breaker.get(position) for eps, breaker in breakers.items()},
        }
        row |= {name: piece["values"][position] for name, piece in measured.items()}
        rows.append(row)
    return rows


def _breakers(settings: EvaluationSettings, pieces: Mapping[str, Record]) -> Breakers:
    """At each eps, as written: the part of AutoAttack that broke a position."""
    radii = settings.eps if AUTOATTACK in settings.attacks else ()
    return {written(eps): _breaker(settings, pieces, eps) for eps in radii}


def _breaker(settings: EvaluationSettings, pieces: Mapping[str, Record], eps: float) -> dict[int, str]:
    labels = {part: settings.label(f"{AUTOATTACK}/{part}", eps) for part in PARTS}
    return {position: part for part, label in labels.items() if label in pieces for position in pieces[label]["broken"]}


def _broken_by(breakers: Breakers, position: int) -> str | None:
    """The part at the first eps that broke it; several eps make names such as "square@8/255"."""
    for eps, breaker in breakers.items():
        if position in breaker:
            return breaker[position] if len(breakers) == 1 else f"{breaker[position]}@{eps}"
    return None
