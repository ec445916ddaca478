"""The results: a row for each evaluation (or run that has none yet), a column for each measure, the paper beside."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from widemargin.reports.comparison import Cell
from widemargin.reports.inputs.evaluation import Evaluation
from widemargin.reports.inputs.labels import owners_of, unique
from widemargin.reports.inputs.run_folder import Run
from widemargin.reports.inputs.search import Findings
from widemargin.reports.measures import MARGIN, MARGIN_TRAIN, ROBUST, Measure, clean, in_order
from widemargin.reports.notes import (
    differences,
    notes_of_evaluation,
    settings_of,
    state,
    trained_less,
    why_not_compared,
)
from widemargin.reports.reference import Reference

References = Mapping[str, Reference]
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

    @property
    def compared(self) -> bool:
        """Whether any published number is in it."""
        return any(cell.paper is not None for row in self.rows for cell in row.cells.values())


def results(found: Findings, references: References) -> list[Results]:
    """For each data set: rows of evaluations, means over seeds, then runs that nobody has evaluated."""
    owners = owners_of(found.evaluations, found.runs)
    pairs = list(zip(found.evaluations, owners, strict=True))
    shown = [(e, run) for e, run in pairs if run is None or not e.has_nothing_yet]
    rows = [_of_evaluation(evaluation, run, references) for evaluation, run in shown]
    rows += _means(shown, rows)
    judged = {run.folder for _, run in shown if run is not None}
    begun = {run.folder for run in owners if run is not None}
    rows += [_of_run(r, references, begun=r.folder in begun) for r in found.runs if r.folder not in judged]
    tables: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        tables[row.data].append(row)
    return [_table(data, members) for data, members in tables.items()]


def _table(data: str, rows: Sequence[Row]) -> Results:
    return Results(data, in_order(measure for row in rows for measure in row.cells), rows)


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
            found[Measure(attack, radius, evaluation.norm) if attack != "clean" else clean()] = value
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
    for key, measure in (("test_clean", clean()), ("test_robust", Measure(ROBUST))):
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


def _means(pairs: Sequence[tuple[Evaluation, Run | None]], rows: Sequence[Row]) -> list[Row]:
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
