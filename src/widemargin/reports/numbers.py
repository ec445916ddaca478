"""Every number as one line of CSV: whose, of what, at which eps, ours, the paper's, the difference."""

import csv
import io
from collections.abc import Iterator, Sequence

from widemargin.reports.comparison import Cell
from widemargin.reports.inputs.evaluation import Evaluation
from widemargin.reports.measures import Measure
from widemargin.reports.results import Results

FORMULA = tuple(
    "=+-@\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)
"""With these a spreadsheet begins to calculate."""
COLUMNS = (
    "name",
    "kind",
    "data",
    "measure",
    "norm",
    "eps",
    "eps_value",
    "value",
    "spread",
    "paper",
    "difference",
    "images",
)


def tidy_csv(tables: Sequence[Results], evaluations: Sequence[Evaluation]) -> str:
    """The results, the parts of AutoAttack and distances, a number a line."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for table in tables:
        for row in table.rows:
            cells = [(measure, row.cells[measure]) for measure in table.measures if measure in row.cells]
            writer.writerows(_line(row.label, row.kind, row.data, row.images, *pair) for pair in cells)
    for evaluation in evaluations:
        kind = f"quick {evaluation.kind}" if evaluation.quick else evaluation.kind
        for measure, value in (*_parts(evaluation), *_distances(evaluation)):
            cell = Cell(value, None, None)
            writer.writerow(_line(evaluation.label, kind, evaluation.data, evaluation.count, measure, cell))
    return stream.getvalue()


def _line(label: str, kind: str, data: str, images: int | None, measure: Measure, cell: Cell) -> list[str]:
    return [_words(label), kind, _words(data), *_numbers(measure, cell), "" if images is None else str(images)]


def _words(text: str) -> str:
    """Words on one line that no spreadsheet takes for a formula."""
    line = " ".join(text.split())
    return f"'{line}" if line.startswith(FORMULA) else line


def _distances(evaluation: Evaluation) -> Iterator[tuple[Measure, float]]:
    """The median over correctly classified images, and how the order of the distances agrees with that of margins."""
    distance = evaluation.distance
    for name, value in (
        ("distance_median", distance and distance.median),
        ("distance_rank_correlation", distance and distance.rank_correlation),
    ):
        if isinstance(value, float):
            yield Measure(name, None, evaluation.norm), value


def _parts(evaluation: Evaluation) -> Iterator[tuple[Measure, float]]:
    for name, accuracy in evaluation.accuracy.items():
        attack, radius = evaluation.radius_of(name)
        if "/" in attack:
            yield Measure(attack, radius, evaluation.norm), accuracy


def _numbers(measure: Measure, cell: Cell) -> list[str]:
    radius = measure.radius
    size = ["", ""] if radius is None else [_words(radius.written), f"{radius.value:.8g}"]
    values = [cell.ours, cell.spread, cell.paper, cell.difference]
    return [
        _words(measure.attack),
        _words(measure.norm),
        *size,
        *("" if value is None else f"{value:.6g}" for value in values),
    ]
