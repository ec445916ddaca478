"""One table as Markdown: ours, the paper's, the difference, and a mark where they are far apart."""

from collections.abc import Mapping, Sequence

from widemargin.reports.collection.paper import PaperRow, PaperTable
from widemargin.reports.collection.tree import CollectedJob
from widemargin.reports.comparison import Cell, compare, signed
from widemargin.reports.measures import attack_title
from widemargin.reports.tables import plain

FAR_ACCURACY, FAR_MARGIN = 2.0, 0.15
ABOVE, BELOW, NONE = "▲", "▼", "-"
_HEADS = {"pgd": "PGD", "margin_train": "Training margin", "margin_test": "Test margin"}

Jobs = Mapping[str, Sequence[CollectedJob]]


def is_far(column: str, cell: Cell) -> bool:
    """Whether ours is more than 2 points, or a margin 0.15, from the paper's."""
    limit = FAR_MARGIN if column.startswith("margin_") else FAR_ACCURACY
    return cell.difference is not None and round(abs(cell.difference), 6) > limit


def columns_of(table: PaperTable, jobs: Jobs) -> list[str]:
    """The table's columns, and AutoAttack's where a row was judged by it later."""
    numbers = [job.numbers() for row in table.rows for job in jobs.get(row.recipe, ())]
    later = ["autoattack"] if any("autoattack" in found["accuracy"] for found in numbers) else []
    return list(dict.fromkeys([*table.columns, *later]))


def cells_of(table: PaperTable, row: PaperRow, jobs: Jobs) -> dict[str, Cell]:
    """A row's cells, over its seeds."""
    return compare(columns_of(table, jobs), row.results, [job.numbers() for job in jobs.get(row.recipe, ())])


def table_text(table: PaperTable, jobs: Jobs) -> str:
    """The rows, in the paper's order; one that was not run has the paper's numbers alone."""
    columns = columns_of(table, jobs)
    lines = [line(["row", "seeds", *(head(column) for column in columns)])]
    lines.append(line([":--", *["--:"] * (len(columns) + 1)]))
    for row in table.rows:
        cells = cells_of(table, row, jobs)
        members = jobs.get(row.recipe, ())
        shown = [cell_text(column, cells[column]) + _fewer(column, members) for column in columns]
        lines.append(line([plain(table.label(row)), str(len(members) or NONE), *shown]))
    return "\n".join(lines) + "\n"


def _fewer(column: str, jobs: Sequence[CollectedJob]) -> str:
    """How many seeds have AutoAttack, where some have it and others not yet."""
    judged = sum("autoattack" in job.numbers()["accuracy"] for job in jobs)
    if column != "autoattack" or judged in (0, len(jobs)):
        return ""
    return f" ({judged} seed{'s' * (judged > 1)})"


def head(column: str) -> str:
    """A column's name."""
    return _HEADS.get(column) or attack_title(column)


def cell_text(column: str, cell: Cell) -> str:
    """``97.52 ± 0.08 / 97.50 (+0.02)``: ours over the seeds, the paper's, the difference."""
    spread = "" if cell.spread is None else f" ± {cell.spread:.2f}"
    ours = NONE if cell.ours is None else f"{cell.ours:.2f}{spread}"
    if cell.paper is None:
        return ours
    return f"{ours} / {cell.paper:.2f}{_difference(column, cell)}"


def _difference(column: str, cell: Cell) -> str:
    if cell.difference is None:
        return ""
    text = signed(cell.difference)
    if not is_far(column, cell):
        return f" ({text})"
    return f" (**{text}** {ABOVE if cell.difference > 0 else BELOW})"


def line(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"
