"""AutoAttack at 8/255: a small table below the paper's, of the rows that were judged with it."""

from collections.abc import Sequence

from widemargin.reports.collection.circumstances import kinds
from widemargin.reports.collection.paper import PaperTable
from widemargin.reports.collection.table_text import Jobs, cell_text, head, line
from widemargin.reports.collection.tree import CollectedJob
from widemargin.reports.comparison import compare
from widemargin.reports.tables import plain

TITLE = "AutoAttack at 8/255 (first 1,000)"
SAID = """Not in the paper, whose eps is 0.031. 8/255 is the eps of RobustBench, which takes all 10,000 test images; the
columns here are of the first 1,000."""
COLUMNS = ("clean", "autoattack")


def autoattack_text(table: PaperTable, jobs: Jobs) -> str:
    """The rows that have it, in the paper's order; empty where none has."""
    rows = [(row, judged) for row in table.rows if (judged := _judged(jobs.get(row.recipe, ())))]
    if not rows:
        return ""
    lines = [line(["row", "seeds", *map(head, COLUMNS)]), line([":--", *["--:"] * (len(COLUMNS) + 1)])]
    lines += [line([plain(table.label(row)), str(len(judged)), *_cells(judged)]) for row, judged in rows]
    precision = kinds(job.autoattack_8_255.text("precision", "unknown") for _, judged in rows for job in judged)
    return "\n".join([f"### {TITLE}\n", f"{SAID} Judged in: {plain(precision)}.\n", *lines]) + "\n"


def _judged(jobs: Sequence[CollectedJob]) -> list[CollectedJob]:
    return [job for job in jobs if "autoattack" in job.autoattack_8_255.table("accuracy").values]


def _cells(jobs: Sequence[CollectedJob]) -> list[str]:
    cells = compare(COLUMNS, {}, [{"accuracy": job.autoattack_8_255.table("accuracy").numbers()} for job in jobs])
    return [cell_text(column, cells[column]) for column in COLUMNS]
