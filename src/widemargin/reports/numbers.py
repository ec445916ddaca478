"""Every number as one line of CSV: whose, of what, at which eps, ours, the paper's, the difference."""

import csv
import io
from collections.abc import Iterator, Sequence

from widemargin.reports.comparison import Cell
from widemargin.reports.inputs.evaluation import Evaluation
from widemargin.reports.measures import Measure
from widemargin.reports.results import Results

COLUMNS = ("name", "kind", "data", "measure", "norm", "eps", "eps_value", "value", "spread", "paper", "difference")


def tidy_csv(tables: Sequence[Results], evaluations: Sequence[Evaluation]) -> str:
    """The results and the parts of AutoAttack, a number a line."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for table in tables:
        for row in table.rows:
            cells = [(measure, row.cells[measure]) for measure in table.measures if measure in row.cells]
            writer.writerows([row.label, row.kind, row.data, *_numbers(measure, cell)] for measure, cell in cells)
    for evaluation in evaluations:
        for measure, accuracy in _parts(evaluation):
            writer.writerow(
                [evaluation.label, evaluation.kind, evaluation.data, *_numbers(measure, Cell(accuracy, None, None))]
            )
    return stream.getvalue()


def _parts(evaluation: Evaluation) -> Iterator[tuple[Measure, float]]:
    for name, accuracy in evaluation.accuracy.items():
        attack, radius = evaluation.radius_of(name)
        if "/" in attack:
            yield Measure(attack, radius, evaluation.norm), accuracy


def _numbers(measure: Measure, cell: Cell) -> list[str]:
    radius = measure.radius
    size = ["", ""] if radius is None else [radius.written, f"{radius.value:.8g}"]
    values = [cell.ours, cell.spread, cell.paper, cell.difference]
    return [measure.attack, measure.norm, *size, *("" if value is None else f"{value:.6g}" for value in values)]
