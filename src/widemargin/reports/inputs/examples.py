"""``examples.jsonl``: one line for each example, as far as it is written."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from widemargin.errors import InputError
from widemargin.records import Digested, Lines, changed
from widemargin.reports.inputs.fields import Fields

EXAMPLES = "examples.jsonl"


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Columns over the examples; None where an example has no such number."""

    margins: Sequence[float | None]
    distances: Sequence[float | None]
    correct: Sequence[bool]
    broken_by: Sequence[str | None]
    broken_at: Sequence[Mapping[str, str]]
    """By eps as written, the part of AutoAttack that broke it there; empty in files from before it was kept."""

    def __len__(self) -> int:
        return len(self.correct)

    def finite_margins(self) -> list[float]:
        """Every margin that is a number."""
        return [margin for margin in self.margins if margin is not None]

    def margin_and_distance(self) -> list[tuple[float, float]]:
        """(margin, distance) of the correctly classified examples that have both."""
        rows = zip(self.margins, self.distances, self.correct, strict=True)
        return [(m, d) for m, d, right in rows if right and m is not None and d is not None]


def read_examples(path: Path, digest: str = "") -> Examples | None:
    """The examples of an evaluation, whose report may know their digest; None without any."""
    if not path.is_file():
        return None
    lines = Digested(Lines(path))
    examples = examples_of(path, lines)
    if digest and lines.digest != digest:
        raise changed(path, "evaluate again, which makes it anew from the shards, or move it away")
    return examples


def examples_of(path: Path, lines: Iterable[Mapping[str, Any]]) -> Examples | None:
    """Turn the lines, of which one at a time is held, into columns; None without any."""
    margins, distances, correct, broken_by, broken_at = [], [], [], [], []
    for number, line in enumerate(lines, start=1):
        row = Fields(path, line, f"line {number}: ")
        margins.append(_finite(row, "margin"))
        distances.append(_finite(row, "distance"))
        correct.append(_clean_verdict(row))
        broken_by.append(row.text("broken_by") or None)
        broken_at.append(row.table("broken_at").words())
    if not correct:
        return None
    return Examples(margins=margins, distances=distances, correct=correct, broken_by=broken_by, broken_at=broken_at)


def _finite(row: Fields, key: str) -> float | None:
    return None if row.values.get(key) == "nan" else row.number(key)


def _clean_verdict(row: Fields) -> bool:
    verdict = row.table("verdicts").values.get("clean")
    if verdict is None:
        return row.values.get("prediction") == row.values.get("label")
    if not isinstance(verdict, bool):
        raise InputError(f"{row.path}: {row.prefix}verdicts.clean must be true or false, got {verdict!r}")
    return verdict
