"""The results: a row for each evaluation (or run that has none yet), a column for each measure, the paper beside.

A measure is an attack at one size, or a margin in one norm. Numbers on different data never stand in one table. Rows of
the same recipe that differ in their seed alone have a mean below them.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count

from widemargin.evaluation.folder import Evaluation, Radius
from widemargin.report.compare import (
    Cell,
    Reference,
    References,
    differs_from,
    notes_of_evaluation,
    settings_of,
    state,
    trained_less,
    why_not_compared,
)
from widemargin.report.findings import Findings, owners_of, unique
from widemargin.report.runs import Run
from widemargin.report.tables import Columns, Entry, Head, Table
from widemargin.report.wording import (
    MARGIN,
    MARGIN_TRAIN,
    ROBUST,
    attack_title,
    listed,
    margin_places,
    minus,
    norm_title,
)

_ORDER = ("clean", "fgsm", "pgd", "", "autoattack", ROBUST, MARGIN, MARGIN_TRAIN)


@dataclass(frozen=True)
class Measure:
    """One column."""

    attack: str
    radius: Radius | None = None
    norm: str = ""

    @property
    def is_margin(self) -> bool:
        """Whether it is a distance and not an accuracy."""
        return self.attack in (MARGIN, MARGIN_TRAIN)

    @property
    def title(self) -> str:
        """The head of the column."""
        return attack_title(self.attack)

    @property
    def detail(self) -> str:
        """The unit: the norm and size of the attack, or the norm of the margin."""
        if self.is_margin:
            return norm_title(self.norm)
        if self.radius is not None:
            return f"%, {norm_title(self.norm)} {self.radius.written}"
        return "%"

    def number(self, value: float, *, signed: bool = False) -> str:
        """A value of this measure as it is printed everywhere."""
        places = margin_places(self.norm) if self.is_margin else 2
        return f"{value:+.{places}f}" if signed else f"{value:.{places}f}"


CLEAN = Measure("clean")
"""Accuracy without an attack."""


def in_order(measures: Iterable[Measure]) -> list[Measure]:
    """Every measure once, weak attacks first, small eps first."""
    return sorted(dict.fromkeys(measures), key=_place)


def _place(measure: Measure) -> tuple[int, int, str, str, float]:
    steps = re.fullmatch(r"pgd(\d+)", measure.attack)
    family = "pgd" if steps else measure.attack if measure.attack in _ORDER else ""
    size = measure.radius.value if measure.radius else 0.0
    return _ORDER.index(family), int(steps[1]) if steps else 0, measure.attack, measure.norm, size


_MARGINS = {"correct": MARGIN, "train": MARGIN_TRAIN}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table; ``notes`` are what a reader must know before comparing it."""

    label: str
    kind: str
    data: str
    cells: Mapping[Measure, Cell]
    differs: str = ""
    """From its recipe."""
    notes: Sequence[str] = ()
    source: str = ""
    images: int | None = None
    """How many were judged, where that is known."""


@dataclass(frozen=True)
class Results:
    """The table of one data set: numbers on different data do not stand in one column."""

    data: str
    measures: Sequence[Measure]
    rows: Sequence[Row]


def result_tables(found: Findings, references: References) -> list[Results]:
    """For each data set: rows of evaluations, means over seeds, then runs that nobody has evaluated."""
    owners = owners_of(found.evaluations, found.runs)
    pairs = list(zip(found.evaluations, owners, strict=True))
    shown = [(e, run) for e, run in pairs if run is None or not e.has_nothing_yet]
    rows = [_of_evaluation(evaluation, run, references) for evaluation, run in shown]
    rows += _seed_means(shown, rows)
    judged = {run.folder for _, run in shown if run is not None}
    begun = {run.folder for run in owners if run is not None}
    rows += [_of_run(r, references, begun=r.folder in begun) for r in found.runs if r.folder not in judged]
    tables: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        tables[row.data].append(row)
    return [
        Results(data, in_order(measure for row in members for measure in row.cells), members)
        for data, members in tables.items()
    ]


def _of_evaluation(evaluation: Evaluation, run: Run | None, references: References) -> Row:
    reference = references.get(evaluation.name or "")
    compared = None if reference is None or why_not_compared(evaluation, run, reference) else reference
    cells = {}
    for name, value in evaluation.accuracy.items():
        attack, radius = evaluation.radius_of(name)
        if "/" not in attack:  # the parts of AutoAttack have a section of their own
            measure = Measure(attack, radius, evaluation.norm) if attack != "clean" else CLEAN
            cells[measure] = _cell(measure, value, None, compared, evaluation.step_size)
    for margins in evaluation.margins:
        if margins.of in _MARGINS and margins.mean is not None:
            measure = Measure(_MARGINS[margins.of], norm=margins.norm)
            cells[measure] = _cell(measure, margins.mean, margins.std, compared)
    return Row(
        label=evaluation.label,
        kind=_kind(evaluation),
        images=evaluation.count,
        data=evaluation.data,
        cells=cells,
        differs=differs_from(settings_of(evaluation, run), reference),
        notes=notes_of_evaluation(evaluation, run, reference),
        source=reference.source if reference else "",
    )


def _kind(evaluation: Evaluation) -> str:
    return f"quick {evaluation.kind}" if evaluation.quick else evaluation.kind


def _cell(
    measure: Measure, value: float, spread: float | None, reference: Reference | None, step: float | None = None
) -> Cell:
    eps = measure.radius.value if measure.radius else None
    paper = reference.number(measure.attack, norm=measure.norm, eps=eps, step=step) if reference else None
    return Cell(value, spread, paper)


def _of_run(run: Run, references: References, *, begun: bool) -> Row:
    reference = references.get(run.name)
    less = "" if reference is None else trained_less({**run.config, "epochs": run.done}, reference)
    watched = {CLEAN: run.curve("test_clean"), Measure(ROBUST): run.curve("test_robust")}
    cells = {
        measure: _cell(measure, curve[-1][1], None, None if less else reference)
        for measure, curve in watched.items()
        if curve
    }
    why = "no image is judged yet" if begun else "not evaluated"
    notes = [f"{why}: as watched in training", *state(run)]
    notes += [reference.note] if reference is not None and reference.note else []
    notes += [f"{less}, so it is not compared with the paper"] if less and cells else []
    return Row(
        label=run.label,
        kind="run",
        data=run.data,
        cells=cells,
        differs=differs_from(run.config, reference),
        notes=notes,
        source=reference.source if reference and cells else "",
    )


def _seed_means(pairs: Sequence[tuple[Evaluation, Run | None]], rows: Sequence[Row]) -> list[Row]:
    """A row for each recipe reproduced with several seeds, or run with seeds that are all it differs in."""
    groups: dict[str, dict[object, tuple[Evaluation, Row]]] = defaultdict(dict)
    for (evaluation, run), row in zip(pairs, rows, strict=True):
        settings = settings_of(evaluation, run)
        if evaluation.kind == "reproduction":
            groups[f"{evaluation.quick} {evaluation.name}"][evaluation.folder] = evaluation, row
        elif evaluation.name and settings and evaluation.finished and not evaluation.quick:
            groups[_but_for_the_seed(evaluation, settings)][str(settings.get("seed", 0))] = evaluation, row
    found = [list(members.values()) for members in groups.values() if len(members) > 1]
    firsts = [members[0][0] for members in found]
    labels = unique(
        [f"{first.name}, mean of {len(members)} seeds" for first, members in zip(firsts, found, strict=True)],
        [[e.norm, f"eps {', '.join(radius.written for radius in e.eps)}", str(e.folder)] for e in firsts],
    )
    return [_mean(label, [row for _, row in members]) for label, members in zip(labels, found, strict=True)]


def _but_for_the_seed(evaluation: Evaluation, settings: Mapping[str, object]) -> str:
    """Everything that two evaluations of the same thing have in common."""
    e, trained = evaluation, {key: value for key, value in settings.items() if key != "seed"}
    how = (e.attacks, e.norm, [radius.value for radius in e.eps], e.step_size, e.search, e.weights)
    return json.dumps([trained, how, (e.name, e.data, e.split, e.count)], sort_keys=True, default=str)


def _mean(label: str, rows: Sequence[Row]) -> Row:
    cells = {}
    for measure in in_order(measure for row in rows for measure in row.cells):
        found = [row.cells[measure] for row in rows if measure in row.cells]
        cells[measure] = Cell.over_seeds([cell.ours for cell in found if cell.ours is not None], found[0].paper)
    return Row(
        label=label,
        kind="quick mean" if rows[0].kind.startswith("quick") else "mean",
        data=rows[0].data,
        images=rows[0].images if len({row.images for row in rows}) == 1 else None,
        cells=cells,
        differs=rows[0].differs if len({row.differs for row in rows}) == 1 else "",
        notes=["± over seeds", *(note for note in rows[0].notes if all(note in row.notes for row in rows))],
        source=rows[0].source,
    )


def shown_tables(found: Sequence[Results]) -> list[Table]:
    """A table for each data set that has any number."""
    return [_results_table(table, alone=len(found) == 1) for table in found if table.measures]


def _results_table(found: Results, *, alone: bool) -> Table:
    said = ["Accuracy in percent."]
    if any(cell.paper is not None for row in found.rows for cell in row.cells.values()):
        said.append("Below a number: the published one of the recipe of that name, and ours minus it.")
    if any(measure.is_margin for measure in found.measures):
        said.append("Margins: mean ± standard deviation over correctly classified images, pixels in [0, 1].")
    columns: Columns[Row] = [
        ("Run", partial(_row_name, _remarks(found.rows))),
        *((Head(measure.title, measure.detail), partial(_number_entry, measure)) for measure in found.measures),
    ]
    if any(row.differs for row in found.rows):
        columns = [*columns, (Head("Differs from its recipe", minor=True), lambda row: row.differs or None)]
    remarks = _remarks(found.rows)
    notes = [" ".join(said), *(one.text(of_all=len(one.rows) == len(found.rows) > 1) for one in remarks)]
    return Table.of("Results" if alone else f"On {found.data or 'unnamed data'}", found.rows, columns, notes=notes)


FEW = 3
"""A note on more rows than these does not name them: they bear its mark."""


@dataclass(frozen=True)
class Remark:
    """What must be known of the same rows, said once; with a mark where the rows are many, but not all."""

    rows: Sequence[str]
    notes: Sequence[str]
    mark: str = ""

    def text(self, *, of_all: bool) -> str:
        """As a line below the table."""
        whose = "All" if of_all else self.mark or listed(self.rows)
        return f"{whose}: {'; '.join(self.notes)}."


def _remarks(rows: Sequence[Row]) -> list[Remark]:
    owners: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for note in row.notes:
            owners[note].append(row.label)
    together: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for note, labels in owners.items():
        together[tuple(labels)].append(note)
    marks = (f"[{number}]" for number in count(1))
    return [
        Remark(labels, notes, next(marks) if FEW < len(labels) < len(rows) else "")
        for labels, notes in together.items()
    ]


def _row_name(remarks: Sequence[Remark], row: Row) -> Entry:
    compared = row.source and any(cell.paper is not None for cell in row.cells.values())
    marks = "".join(remark.mark for remark in remarks if row.label in remark.rows)
    said = (f"paper: {row.source}" if compared else "", marks)
    return Entry(row.label, tuple(filter(None, said)))


def _number_entry(measure: Measure, row: Row) -> Entry | None:
    """One number as it is printed everywhere."""
    cell = row.cells.get(measure)
    if cell is None or cell.ours is None:
        return None
    ours = measure.number(cell.ours) + (f" ± {measure.number(cell.spread)}" if cell.spread is not None else "")
    if cell.paper is None or cell.difference is None:
        return Entry(ours)
    return Entry(ours, (f"paper {measure.number(cell.paper)}", minus(measure.number(cell.difference, signed=True))))


COLUMNS = ("kind", "data", "measure", "norm", "eps", "eps_value", "value", "spread", "paper", "difference", "images")


def numbers_table(found: Sequence[Results], evaluations: Sequence[Evaluation]) -> Table:
    """Every number in a row of its own, for machines: the results, the parts of AutoAttack, and distances."""
    numbers = [
        (row, measure, row.cells[measure])
        for table in found
        for row in table.rows
        for measure in table.measures
        if measure in row.cells
    ]
    for e in evaluations:
        row = Row(label=e.label, kind=_kind(e), data=e.data, images=e.count, cells={})
        numbers += [(row, measure, Cell(value, None, None)) for measure, value in _without_a_column(e)]
    return Table(
        title="Numbers",
        heads=[Head("name"), *map(Head, COLUMNS)],
        rows=[[*map(Entry, (row.label, *_words(row, measure, cell)))] for row, measure, cell in numbers],
    )


def _words(row: Row, measure: Measure, cell: Cell) -> list[str]:
    radius = measure.radius
    size = ["", ""] if radius is None else [radius.written, f"{radius.value:.8g}"]
    values = ("" if v is None else f"{v:.6g}" for v in (cell.ours, cell.spread, cell.paper, cell.difference))
    images = "" if row.images is None else str(row.images)
    return [row.kind, row.data, measure.attack, measure.norm, *size, *values, images]


def _without_a_column(evaluation: Evaluation) -> Iterator[tuple[Measure, float]]:
    """The parts of AutoAttack; the median distance, and how the order of the distances agrees with that of margins."""
    for name, accuracy in evaluation.accuracy.items():
        attack, radius = evaluation.radius_of(name)
        if "/" in attack:
            yield Measure(attack, radius, evaluation.norm), accuracy
    if (distance := evaluation.distance) is not None:
        for name, value in (("median", distance.median), ("rank_correlation", distance.rank_correlation)):
            if value is not None:
                yield Measure(f"distance_{name}", None, evaluation.norm), value
