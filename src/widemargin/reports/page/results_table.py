"""The results as a table of words: our number, the paper's below it, the difference."""

from collections.abc import Sequence

from widemargin.reports.charts.frame import minus
from widemargin.reports.comparison import Cell
from widemargin.reports.measures import Measure
from widemargin.reports.page.section import Section
from widemargin.reports.results import Results, Row
from widemargin.reports.tables import Entry, Head, TextTable


def results_section(found: Sequence[Results]) -> Section | None:
    """A table for each data set; without any number there is none."""
    tables = [_table(results, alone=len(found) == 1) for results in found if results.measures]
    return Section(id="results", title="Results", tables=tables) if tables else None


def _table(found: Results, *, alone: bool) -> TextTable:
    notes = [f"{row.label}: {'; '.join(row.notes)}." for row in found.rows if row.notes]
    return TextTable(
        title="Results" if alone else f"On {found.data or 'unnamed data'}",
        heads=[Head("Run"), *(Head(measure.title, measure.detail) for measure in found.measures)],
        rows=[(_name(row), [entry(m, row.cells.get(m)) for m in found.measures]) for row in found.rows],
        notes=[*_legend(found), *notes],
    )


def entry(measure: Measure, cell: Cell | None) -> Entry:
    """One number as it is printed everywhere."""
    if cell is None or cell.ours is None:
        return Entry("-")
    spread = f" ± {measure.number(cell.spread)}" if cell.spread is not None else ""
    if cell.paper is None:
        return Entry(measure.number(cell.ours) + spread)
    difference = minus(measure.number(cell.difference, signed=True))
    return Entry(measure.number(cell.ours) + spread, (f"paper {measure.number(cell.paper)}", difference))


def _name(row: Row) -> Entry:
    compared = any(cell.paper is not None for cell in row.cells.values())
    return Entry(row.label, f"paper: {row.source}" if row.source and compared else ())


def _legend(found: Results) -> list[str]:
    notes = ["Accuracy in percent."]
    if found.compared:
        notes.append("Below a number: the published one of the recipe of that name, and ours minus it.")
    if any(measure.is_margin for measure in found.measures):
        notes.append("Margins: mean ± standard deviation over correctly classified images, pixels in [0, 1].")
    return [" ".join(notes)]
