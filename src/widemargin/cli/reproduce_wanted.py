"""What ``widemargin reproduce`` was asked for: tables, rows, seeds, and judgments for later."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from widemargin.errors import InputError
from widemargin.experiments.best import best_rows
from widemargin.experiments.job import Job, choose_rows, jobs
from widemargin.experiments.judgments import JUDGMENTS, judgment_of
from widemargin.experiments.task import Task
from widemargin.recipes.tables import Row, Table, find_table

BEST = "best"


@dataclass(frozen=True)
class Part:
    """A table, the rows of it that are wanted, and their jobs."""

    table: Table
    rows: list[Row]
    work: list[Job]


@dataclass(frozen=True)
class Later:
    """What is done when the tables are: judgments, of the rows named, or of the best of each table."""

    judgments: Sequence[str]
    rows: Sequence[Row] | None

    def check(self, parts: Sequence[Part]) -> None:
        """Refuse a judgment that means nothing for a row, before anything is trained; any of them may be the best."""
        for row in self.rows or [row for part in parts for row in part.rows]:
            for name in self.judgments:
                judgment_of(row.recipe.config, name)

    def tasks(self, parts: Sequence[Part]) -> list[Task]:
        """Each judgment of each of those rows, with every seed; not where the table has it anyway."""
        found: dict[tuple[Path, str], Task] = {}
        for name in self.judgments:
            for part in (part for part in parts if name not in part.table.columns):
                judged = {row.recipe.name for row in self.rows or best_rows(part.rows, part.work)}
                for job in (job for job in part.work if job.row.recipe.name in judged):
                    found.setdefault((job.folder, name), Task(job, name))
        return list(found.values())


def find_parts(tables: str, rows: str | None, seeds: str, out: Path, *, is_quick: bool) -> list[Part]:
    """The tables with their jobs."""
    found = [find_table(name) for name in dict.fromkeys(_names(tables) or [tables])]
    numbers = _seeds(seeds)
    wanted = [(table, _rows(found, table, rows)) for table in found]
    return [Part(table, chosen, jobs(table, chosen, numbers, out, is_quick=is_quick)) for table, chosen in wanted]


def find_later(parts: Sequence[Part], judge_with: str | None, judge_rows: str | None) -> Later:
    """What is done when all of them are, checked."""
    judgments, named = _judgments(parts, judge_with, judge_rows), None
    if judge_rows not in (None, BEST):
        wanted = _joined([row for part in parts for row in part.rows])
        named = choose_rows(wanted, _names(judge_rows or ""), "--judge-rows")
    later = Later(judgments, named)
    later.check(parts)
    return later


def all_jobs(parts: Sequence[Part]) -> list[Job]:
    """Each once: tables may share a row. With margins, if one of them reports margins."""
    found: dict[Path, Job] = {}
    for job in (job for part in parts for job in part.work):
        if job.folder not in found or job.margins:
            found[job.folder] = job
    return list(found.values())


def _rows(tables: Sequence[Table], table: Table, text: str | None) -> list[Row]:
    """Those of this table; what is in none of them is refused."""
    if text is None:
        return list(table.rows)
    chosen = choose_rows(_joined([row for each in tables for row in each.rows]), _names(text))
    return [row for row in chosen if any(row is own for own in table.rows)]


def _joined(rows: Sequence[Row]) -> Table:
    """One table of them all."""
    return Table("", "", (), tuple(rows))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _seeds(text: str) -> list[int]:
    parts = _names(text)
    if not parts or not all(part.isdecimal() and len(part) < 20 for part in parts) or len(set(parts)) != len(parts):
        raise InputError(f"--seeds: {text!r} must be different whole numbers, comma-separated, such as 0,1,2")
    return [int(part) for part in parts]


def _judgments(parts: Sequence[Part], text: str | None, rows: str | None) -> list[str]:
    if text is None:
        if rows is not None:
            raise InputError("--judge-rows has no effect without --judge-with; give e.g. --judge-with autoattack")
        return []
    names = _names(text)
    tables = [part.table for part in parts if part.rows]
    for name in names:
        if name not in JUDGMENTS:
            raise InputError(f"--judge-with: {name!r} is unknown; known are {', '.join(JUDGMENTS)}")
        if all(name in table.columns for table in tables):
            told = " and ".join(table.name for table in tables)
            raise InputError(f"--judge-with {name} has no effect: {told} reports it for every row; leave it out")
    return list(dict.fromkeys(names))
