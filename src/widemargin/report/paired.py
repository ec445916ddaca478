"""Every model against a chosen one on the same images: the difference, its interval, and whether it could be chance.

For each row of the leaderboard this is what ``widemargin compare`` says of two models: images are paired where both
have one seed, seeds where both have several (``evaluation/comparison.py``). What was not judged in the same way, on the
same images, is not compared.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from widemargin.errors import InputError
from widemargin.evaluation.compare_folders import (
    JudgedFolder,
    common_names,
    compare_sides,
    found_by,
    known_to,
    read_judged,
)
from widemargin.evaluation.comparison import NUMBERS, Comparison, strongest_of
from widemargin.evaluation.folder import REPORT
from widemargin.report.compare import References
from widemargin.report.findings import PARTS, Findings
from widemargin.report.leaderboard import Model, Standing, models, standings
from widemargin.report.page import Parts
from widemargin.report.tables import Columns, Entry, Head, Table
from widemargin.report.wording import attack_title, counted, listed, minus

STRONGEST = "the strongest attack in common"
COMPARED = (("Clean", "clean"), ("Attacked", STRONGEST), ("Margin", "margin"), ("Distance found", "distance"))
MOST_NAMES = 8
NOTE = (
    "Each number is the row's minus the baseline's: accuracy in points, margins and distances as they are. Below: its "
    "95% interval, and McNemar's (or the sign test's) p over the images; over several seeds Student's t. In bold: what "
    "chance does not explain."
)
Side = Sequence[JudgedFolder]


@dataclass(frozen=True)
class Pair:
    """A row and the baseline on the same data."""

    row: Standing
    baseline: Standing


def paired_differences(found: Findings, references: References, baseline: str) -> Parts:
    """A table with a row for every other model on the baseline's data; a baseline that is not there is refused."""
    rows = standings(models(found), references)
    chosen = [row for row in rows if baseline in _names(row)]
    if not chosen:
        there = [row.label for row in rows]
        more = f" and {len(there) - MOST_NAMES:,} more" if len(there) > MOST_NAMES else ""
        known = f"there are {', '.join(there[:MOST_NAMES])}{more}" if there else "there is none"
        raise InputError(f"--baseline {baseline!r} is no model of this report; {known}")
    pairs = [Pair(row, mine) for row in rows if row not in chosen and (mine := _same_data(row, chosen)) is not None]
    if not pairs:
        return []
    judged = _Judged()
    results = [{by: _compared(pair, by, judged) for _, by in COMPARED} for pair in pairs]
    compared = list(zip(pairs, results, strict=True))
    shown = [(title, by) for title, by in COMPARED if any(by in result and result[by] for result in results)]
    columns: Columns[tuple[Pair, dict[str, Comparison | None]]] = [
        ("Model", lambda row: row[0].row.label),
        *((Head(title, "" if by in NUMBERS else "points"), partial(_entry, by)) for title, by in shown),
    ]
    apart = [pair.row.label for pair, result in compared if not any(result.values())]
    notes = [NOTE, *([f"Not judged in the same way on the same images: {listed(apart)}."] if apart else [])]
    return [Table.of(f"Against {chosen[0].label}", compared, columns, notes=notes)] if shown else []


def _names(row: Standing) -> set[str]:
    return {row.label, *(model.name for model in row.models), *(e.label for m in row.models for e in m.evaluations)}


def _same_data(row: Standing, chosen: Sequence[Standing]) -> Standing | None:
    """The baseline on the row's data, under its threat where there are several."""
    there = [one for one in chosen if one.data == row.data]
    return next((one for one in there if one.threat == row.threat), there[0] if there else None)


class _Judged:
    """What evaluations say of each image, read once."""

    def __init__(self) -> None:
        self._read: dict[Path, JudgedFolder | None] = {}

    def of(self, model: Model) -> Iterator[JudgedFolder]:
        """The evaluations of the model that are finished and say it; of a job those inside it."""
        places = (place for e in model.evaluations for place in (e.folder, *(e.folder / part for part in PARTS)))
        for place in dict.fromkeys(places):
            if place not in self._read:
                self._read[place] = self._attempted(place)
            if (found := self._read[place]) is not None:
                yield found

    @staticmethod
    def _attempted(place: Path) -> JudgedFolder | None:
        try:
            return read_judged(place) if (place / REPORT).is_file() else None
        except InputError:  # which is among the faults of the page
            return None


def _compared(pair: Pair, by: str, judged: _Judged) -> Comparison | None:
    """By the first name for which both sides have evaluations that found it in the same way."""
    for theirs in judged.of(pair.baseline.models[0]):
        for ours in judged.of(pair.row.models[0]):
            name = by if by != STRONGEST else _strongest(pair, ours, theirs)
            if name is None or name not in common_names(([ours], [theirs])):
                continue
            alike = partial(_alike, theirs, name)
            if not alike(ours):
                continue
            sides = tuple(_side(standing.models, judged, alike) for standing in (pair.row, pair.baseline))
            try:
                return compare_sides(_as_many(sides[0], sides[1]), name)
            except InputError:  # other images
                continue
    return None


def _strongest(pair: Pair, ours: JudgedFolder, theirs: JudgedFolder) -> str | None:
    """Of the attacks in common at the baseline's threat."""
    norm, threat = theirs.evaluation.norm, pair.baseline.models[0].threat
    names = [
        name
        for name in common_names(([ours], [theirs]))
        if name in theirs.images.verdicts and threat == (norm, theirs.evaluation.radius_of(name)[1])
    ]
    return strongest_of(names, [ours.images, theirs.images]) if names else None


def _alike(first: JudgedFolder, by: str, other: JudgedFolder) -> bool:
    return (
        by in known_to(other)
        and found_by(other, by) == found_by(first, by)
        and len(other.images.labels) == len(first.images.labels)
    )


def _side(members: Sequence[Model], judged: _Judged, alike: Callable[[JudgedFolder], bool]) -> list[JudgedFolder]:
    """Of each seed the first evaluation that is alike."""
    found = (next((one for one in judged.of(model) if alike(one)), None) for model in members)
    return [one for one in found if one is not None]


def _as_many(first: Side, second: Side) -> tuple[Side, Side]:
    """Several seeds against one cannot be compared as seeds: of those the one with the same seed is taken."""
    if min(len(first), len(second)) > 1 or len(first) == len(second):
        return first, second
    single = first if len(first) == 1 else second
    several = second if single is first else first
    same = next((one for one in several if one.images.seed == single[0].images.seed), several[0])
    return (single, [same]) if single is first else ([same], single)


def _entry(by: str, row: tuple[Pair, dict[str, Comparison | None]]) -> Entry | None:
    found = row[1][by]
    if found is None:
        return None
    spell = "{:+.4g}" if found.by in NUMBERS else "{:+.2f}"
    difference, low, high = (minus(spell.format(value)) for value in (found.difference, found.low, found.high))
    name = [attack_title(found.by.partition("@")[0])] if by == STRONGEST else []
    if found.p_value is None:
        said = f"{counted(found.seeds, 'seed')}{', paired' if found.paired else ''}"
    else:
        said = "p < 0.001" if found.p_value < 0.001 else f"p {found.p_value:.3f}"
    return Entry(difference, (f"{low} to {high}", said, *name), best=found.decided)
