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
from statistics import fmean, stdev

from widemargin.evaluation.folder import Evaluation, Radius
from widemargin.report.compare import (
    Cell,
    Reference,
    References,
    differences,
    notes_of_evaluation,
    settings_of,
    state,
    trained_less,
    why_not_compared,
)
from widemargin.report.findings import Findings, owners_of, unique
from widemargin.report.runs import Run
from widemargin.report.tables import Columns, Entry, Head, Table
from widemargin.report.wording import MARGIN, MARGIN_TRAIN, ROBUST, attack_title, margin_places, minus, norm_title

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
    step = evaluation.step_size
    cells = {measure: _cell(measure, value, None, compared, step) for measure, value in _attacked(evaluation).items()}
    for margins in evaluation.margins:
        if margins.of in _MARGINS and margins.mean is not None:
            measure = Measure(_MARGINS[margins.of], norm=margins.norm)
            cells[measure] = _cell(measure, margins.mean, margins.std, compared)
    return Row(
        label=evaluation.label,
        kind=f"quick {evaluation.kind}" if evaluation.quick else evaluation.kind,
        images=evaluation.count,
        data=evaluation.data,
        cells=cells,
        notes=notes_of_evaluation(evaluation, run, reference),
        source=reference.source if reference else "",
    )


def _attacked(evaluation: Evaluation) -> dict[Measure, float]:
    """Accuracies by measure; the parts of AutoAttack have a section of their own."""
    found = {}
    for name, value in evaluation.accuracy.items():
        attack, radius = evaluation.radius_of(name)
        if "/" not in attack:
            found[Measure(attack, radius, evaluation.norm) if attack != "clean" else CLEAN] = value
    return found


def _cell(
    measure: Measure, value: float, spread: float | None, reference: Reference | None, step: float | None = None
) -> Cell:
    return Cell(ours=value, spread=spread, paper=None if reference is None else published(measure, reference, step))


def published(measure: Measure, reference: Reference, step: float | None) -> float | None:
    """The paper's number for a measure, where it is of the same thing; ``step`` is that of PGD."""
    if measure.attack in (MARGIN, MARGIN_TRAIN):
        column = "margin_train" if measure.attack == MARGIN_TRAIN else "margin_test"
        return reference.number(column) if measure.norm == "l2" else None
    if measure.attack == "clean":
        return reference.number("clean")
    if measure.radius is None or measure.attack == ROBUST:
        return None
    return reference.attacked(measure.attack, norm=measure.norm, eps=measure.radius.value, step=step)


def _of_run(run: Run, references: References, *, begun: bool) -> Row:
    reference = references.get(run.name)
    last: dict[Measure, float] = {}
    for key, measure in (("test_clean", CLEAN), ("test_robust", Measure(ROBUST))):
        curve = run.curve(key)
        if curve:
            last[measure] = curve[-1][1]
    less = "" if reference is None else trained_less({**run.config, "epochs": run.done}, reference)
    compared = None if less else reference
    cells = {measure: _cell(measure, value, None, compared) for measure, value in last.items()}
    why = "no image is judged yet" if begun else "not evaluated"
    notes = [f"{why}: as watched in training", *state(run), *differences(run.config, reference)]
    notes += [f"{less}, so it is not compared with the paper"] if less and cells else []
    return Row(
        label=run.label,
        kind="run",
        data=run.data,
        cells=cells,
        notes=notes,
        source=reference.source if reference and cells else "",
    )


def _seed_means(pairs: Sequence[tuple[Evaluation, Run | None]], rows: Sequence[Row]) -> list[Row]:
    """A row for each recipe reproduced with several seeds, or run with seeds that are all it differs in."""
    groups: dict[str, dict[object, tuple[Evaluation, Row]]] = {}
    for (evaluation, run), row in zip(pairs, rows, strict=True):
        settings = settings_of(evaluation, run)
        if evaluation.kind == "reproduction":
            groups.setdefault(f"{evaluation.quick} {evaluation.name}", {})[evaluation.folder] = evaluation, row
        elif evaluation.name and settings and evaluation.finished and not evaluation.quick:
            groups.setdefault(_but_for_the_seed(evaluation, settings), {})[str(settings.get("seed", 0))] = (
                evaluation,
                row,
            )
    found = [list(members.values()) for members in groups.values() if len(members) > 1]
    names = [f"{members[0][0].name}, mean of {len(members)} seeds" for members in found]
    labels = unique(names, [_hints(members[0][0]) for members in found])
    return [_mean(label, [row for _, row in members]) for label, members in zip(labels, found, strict=True)]


def _but_for_the_seed(evaluation: Evaluation, settings: Mapping[str, object]) -> str:
    """Everything that two evaluations of the same thing have in common."""
    trained = {key: value for key, value in settings.items() if key != "seed"}
    radii = [radius.value for radius in evaluation.eps]
    how = (evaluation.attacks, evaluation.norm, radii, evaluation.step_size, evaluation.search, evaluation.weights)
    on = (evaluation.name, evaluation.data, evaluation.split, evaluation.count)
    return json.dumps([trained, how, on], sort_keys=True, default=str)


def _hints(evaluation: Evaluation) -> list[str]:
    """What tells the means of a recipe apart."""
    return [evaluation.norm, f"eps {', '.join(radius.written for radius in evaluation.eps)}", str(evaluation.folder)]


def _mean(label: str, rows: Sequence[Row]) -> Row:
    cells = {}
    for measure in in_order(measure for row in rows for measure in row.cells):
        values = [cell.ours for row in rows if (cell := row.cells.get(measure)) and cell.ours is not None]
        paper = next((row.cells[measure].paper for row in rows if measure in row.cells), None)
        cells[measure] = Cell(ours=fmean(values), spread=stdev(values) if len(values) > 1 else None, paper=paper)
    return Row(
        label=label,
        kind="quick mean" if rows[0].kind.startswith("quick") else "mean",
        data=rows[0].data,
        images=rows[0].images if len({row.images for row in rows}) == 1 else None,
        cells=cells,
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
        ("Run", _row_name),
        *((Head(measure.title, measure.detail), partial(_number_entry, measure)) for measure in found.measures),
    ]
    notes = [" ".join(said), *(f"{row.label}: {'; '.join(row.notes)}." for row in found.rows if row.notes)]
    return Table.of("Results" if alone else f"On {found.data or 'unnamed data'}", found.rows, columns, notes=notes)


def _row_name(row: Row) -> Entry:
    compared = row.source and any(cell.paper is not None for cell in row.cells.values())
    return Entry(row.label, (f"paper: {row.source}",) if compared else ())


def _number_entry(measure: Measure, row: Row) -> Entry | None:
    """One number as it is printed everywhere."""
    cell = row.cells.get(measure)
    if cell is None or cell.ours is None:
        return None
    ours = measure.number(cell.ours) + (f" ± {measure.number(cell.spread)}" if cell.spread is not None else "")
    if cell.paper is None or cell.difference is None:
        return Entry(ours)
    return Entry(ours, (f"paper {measure.number(cell.paper)}", minus(measure.number(cell.difference, signed=True))))


COLUMNS = (
    *("name", "kind", "data", "measure", "norm", "eps", "eps_value"),
    *("value", "spread", "paper", "difference", "images"),
)


def numbers_table(found: Sequence[Results], evaluations: Sequence[Evaluation]) -> Table:
    """Every number in a row of its own, for machines: the results, the parts of AutoAttack, and distances."""
    rows = [
        (row.label, _numbers(row.kind, row.data, measure, row.cells[measure], row.images))
        for results in found
        for row in results.rows
        for measure in results.measures
        if measure in row.cells
    ]
    for evaluation in evaluations:
        kind = f"quick {evaluation.kind}" if evaluation.quick else evaluation.kind
        for measure, value in (*_parts(evaluation), *_distances(evaluation)):
            cell = Cell(value, None, None)
            rows.append((evaluation.label, _numbers(kind, evaluation.data, measure, cell, evaluation.count)))
    return Table(
        title="Numbers",
        heads=[Head(name) for name in COLUMNS],
        rows=[[*map(Entry, (label, *words))] for label, words in rows],
    )


def _numbers(kind: str, data: str, measure: Measure, cell: Cell, images: int | None) -> list[str]:
    radius = measure.radius
    size = ["", ""] if radius is None else [radius.written, f"{radius.value:.8g}"]
    values = ("" if v is None else f"{v:.6g}" for v in (cell.ours, cell.spread, cell.paper, cell.difference))
    return [kind, data, measure.attack, measure.norm, *size, *values, "" if images is None else str(images)]


def _parts(evaluation: Evaluation) -> Iterator[tuple[Measure, float]]:
    for name, accuracy in evaluation.accuracy.items():
        attack, radius = evaluation.radius_of(name)
        if "/" in attack:
            yield Measure(attack, radius, evaluation.norm), accuracy


def _distances(evaluation: Evaluation) -> Iterator[tuple[Measure, float]]:
    """The median over correctly classified images, and how the order of the distances agrees with that of margins."""
    distance = evaluation.distance
    for name, value in (
        ("distance_median", distance and distance.median),
        ("distance_rank_correlation", distance and distance.rank_correlation),
    ):
        if isinstance(value, float):
            yield Measure(name, None, evaluation.norm), value
