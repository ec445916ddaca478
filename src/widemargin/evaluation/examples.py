"""What an evaluation says of each image: a line of a shard while it works, of ``examples.jsonl`` in the end.

A line has the image's index, label and prediction, a verdict for each attack, what broke it, and what was measured of
it. A shard has a header line before them, which carries a digest of all. To a reader they are columns.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from widemargin.core.records import DIGEST, Digested, Fields, Lines, Record, changed, digest_of, parsed
from widemargin.errors import InputError

EXAMPLES = "examples.jsonl"
KEYS = ("verdicts", "prediction", "label", "margin", "distance", "certified", "broken_by", "broken_at")
"""What columns are made of."""
AGAIN = "remove it, and the same evaluation judges its images again"


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Columns over the examples; None where an example has no such number."""

    margins: Sequence[float | None]
    distances: Sequence[float | None]
    correct: Sequence[bool]
    broken_by: Sequence[str | None]
    broken_at: Sequence[Mapping[str, str]]
    """By eps as written, the part of AutoAttack that broke it there; empty in files from before it was kept."""
    certified: Sequence[float | None] = ()
    """Radii that are proven."""

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
    examples = columns(path, lines)
    if digest and lines.digest != digest:
        raise changed(path, "evaluate again, which makes it anew from the shards, or move it away")
    return examples


def columns(path: Path, lines: Iterable[Mapping[str, Any]]) -> Examples | None:
    """Turn the lines, of which one at a time is held, into columns; None without any."""
    margins, distances, certified, correct, broken_by, broken_at = [], [], [], [], [], []
    for number, line in enumerate(lines, start=1):
        row = Fields(path, line, f"line {number}: ")
        margins.append(_finite(row, "margin"))
        distances.append(_finite(row, "distance"))
        certified.append(row.number("certified"))
        correct.append(_clean_verdict(row))
        broken_by.append(row.text("broken_by") or None)
        broken_at.append(row.table("broken_at").words())
    if not correct:
        return None
    return Examples(
        margins=margins,
        distances=distances,
        certified=certified,
        correct=correct,
        broken_by=broken_by,
        broken_at=broken_at,
    )


def _finite(row: Fields, key: str) -> float | None:
    return None if row.values.get(key) == "nan" else row.number(key)


def _clean_verdict(row: Fields) -> bool:
    verdict = row.table("verdicts").values.get("clean")
    if verdict is None:
        return row.values.get("prediction") == row.values.get("label")
    if not isinstance(verdict, bool):
        raise InputError(f"{row.path}: {row.prefix}verdicts.clean must be true or false, got {verdict!r}")
    return verdict


def shard_lines(header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *of: Any) -> str:
    """A finished shard of an evaluation: a header line, which carries the digest of all, and a line per example."""
    head = {**header, DIGEST: digest_of(header, rows, *of)}
    return "".join(json.dumps(line) + "\n" for line in (head, *rows))


def parsed_shard(path: Path, text: str, *of: Any) -> tuple[Record, list[Record]]:
    """The same of the text of a shard."""
    return check_shard(path, [parsed(path, line, AGAIN) for line in text.splitlines()], *of)


def check_shard(path: Path, lines: Sequence[Any], *of: Any) -> tuple[Record, list[Record]]:
    """(header, examples); refused where its digest does not fit, or, without one, where the lines cannot be a shard."""
    remedy = AGAIN
    try:
        header, *rows = lines
        content = {key: value for key, value in header.items() if key != DIGEST}
        if DIGEST in header and header[DIGEST] != digest_of(content, rows, *of):
            raise changed(path, remedy)
        if header["count"] != len(rows) or not _is_shard(header["first"], rows):
            raise InputError(f"{path} lacks lines, or has too many or other ones; {remedy}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} holds lines that are no records of examples; {remedy}") from None
    return header, rows


def _is_shard(first: int, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these are examples one after the other, each with the same verdicts and a clean one that is true."""
    names = rows[0]["verdicts"].keys() if rows else ()
    return all(
        row["index"] == first + place
        and row["verdicts"].keys() == names
        and all(type(verdict) is bool for verdict in row["verdicts"].values())
        and row["verdicts"]["clean"] == (row["prediction"] == row["label"])
        for place, row in enumerate(rows)
    )
