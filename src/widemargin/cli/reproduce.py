"""``widemargin reproduce``: tables of the paper, row by row, beside the published numbers."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from widemargin.cli.options import DataDir, Device, EngineOption, Launcher, RayAddress, SlurmOptions, listed, seconds
from widemargin.core.files import make_folder, write_text_atomic
from widemargin.core.screen import console_for, say, show_table
from widemargin.distributed.group import check_single_process
from widemargin.errors import InputError
from widemargin.jobs.job import SUMMARY, Job, Resources, Task, best_rows, choose_rows, jobs
from widemargin.jobs.judging import JUDGMENTS, judgment_of
from widemargin.jobs.launch import Failure, LocalLauncher, make_launcher
from widemargin.jobs.pool import describe, run_in_turn, run_tasks
from widemargin.jobs.status import planned, write_plan
from widemargin.recipes.tables import Row, Table, all_tables, find_table
from widemargin.report.compare import Cell, compare, followup_line, markdown
from widemargin.report.wording import column_title

BEST, ALL = "best", "all"
FAILED = 1
JudgeWith = Annotated[
    str | None,
    typer.Option(
        help=f"When all rows are done, comma-separated: {', '.join(JUDGMENTS)} (docs/results.md).", show_default=False
    ),
]
JudgeRows = Annotated[
    str | None,
    typer.Option(
        help="Rows for --judge-with: 'best' is, for each method, the row of the highest PGD accuracy; 'all', or names.",
        show_default=BEST,
    ),
]


@dataclass(frozen=True)
class TableJobs:
    """A table, the rows of it that are wanted, and their jobs."""

    table: Table
    rows: list[Row]
    work: list[Job]


@dataclass(frozen=True)
class Followup:
    """What is done when the tables are: judgments, of the rows named, or of the best of each table."""

    judgments: Sequence[str]
    rows: Sequence[Row] | None

    def tasks(self, parts: Sequence[TableJobs]) -> list[Task]:
        """Each judgment of each of those rows, with every seed; not where the table has it anyway."""
        found: dict[tuple[Path, str], Task] = {}
        for name in self.judgments:
            for part in (part for part in parts if name not in part.table.columns):
                judged = {row.recipe.name for row in self.rows or best_rows(part.rows, part.work)}
                for job in (job for job in part.work if job.row.recipe.name in judged):
                    found.setdefault((job.folder, name), Task(job, name))
        return list(found.values())


def reproduce(
    table: Annotated[str, typer.Argument(help=f"One of {', '.join(all_tables())}; or several, comma-separated.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs; the same command again goes on where it stopped.")],
    rows: Annotated[
        str | None, typer.Option(help="Only these, comma-separated, e.g. st-emr,at-emr.", show_default=False)
    ] = None,
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds.")] = "0",
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny runs that exercise the code; the numbers mean nothing.")
    ] = False,
    max_time: Annotated[
        str | None, typer.Option(help="Stop with a checkpoint after 25m, 1h30m, ...", show_default=False)
    ] = None,
    workers: Annotated[int, typer.Option(help="Jobs (a row with a seed) to run at the same time.")] = 1,
    judge_with: JudgeWith = None,
    judge_rows: JudgeRows = None,
    launcher: Launcher = "local",
    slurm: SlurmOptions = None,
    ray: RayAddress = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    engine: EngineOption = "auto",
) -> None:
    """Train and judge the rows of tables, skipping what is done, and set our numbers beside the published ones.

    With several workers the longest jobs begin first; one that crashes does not stop the others. --launcher gives each
    job to Slurm or to Ray.
    """
    check_single_process("reproduce", "--workers does several jobs at a time")
    parts = _wanted(table, rows, seeds, out, is_quick=quick)
    followup = _followup(parts, judge_with, judge_rows)
    deadline = time.monotonic() + seconds("--max-time", max_time)
    if workers < 1:
        raise InputError(f"--workers must be at least 1, got {workers}")
    cluster = make_launcher(launcher, out, slurm=slurm, ray=ray)
    if cluster is not None and workers > 1:
        raise InputError(f"--workers has no effect with --launcher {launcher}, whose own queue decides; leave it out")
    if cluster is not None and cluster.outlives and max_time is not None:
        raise InputError(f"--max-time has no effect with --launcher {launcher}; say it there: --slurm time=...")
    make_folder(out)
    console = console_for(stderr=True)
    if quick:
        say(console, f"quick: {SUMMARY}; the numbers mean nothing")
    resources = Resources(data_dir=data_dir, device=device, engine=engine, workers=workers)

    def work(tasks: Sequence[Task]) -> list[Failure]:
        """In this process, or in several; returns what failed."""
        write_plan(out, [planned(task, out) for task in tasks])
        if cluster is None and workers == 1:
            run_in_turn(tasks, resources, deadline=deadline, console=console)
            return []
        described = partial(describe, resources=resources, out=out)
        return run_tasks(tasks, described, cluster or LocalLauncher(workers), deadline=deadline, console=console)

    tasks = [Task(job) for job in _all_jobs(parts)]
    failures = work(tasks)
    if all(task.done for task in tasks):
        added = followup.tasks(parts)
        failures += work(added)
        tasks += added
    for part in parts:
        if part.rows:
            _report(part, out / f"{part.table.name}.md", followup.judgments, quick)
    _close(tasks, failures, console)


def _wanted(tables: str, rows: str | None, seeds: str, out: Path, *, is_quick: bool) -> list[TableJobs]:
    """The tables with their jobs; a row that is in none of them is refused."""
    found = [find_table(name) for name in dict.fromkeys(listed(tables) or [tables])]
    parts = listed(seeds)
    if not parts or not all(part.isdecimal() and len(part) < 20 for part in parts) or len(set(parts)) != len(parts):
        raise InputError(f"--seeds: {seeds!r} must be different whole numbers, comma-separated, such as 0,1,2")
    chosen = choose_rows(_joined(found), None if rows is None else listed(rows))
    wanted = [(table, [row for row in chosen if any(row is own for own in table.rows)]) for table in found]
    numbers = [int(part) for part in parts]
    return [TableJobs(table, rows, jobs(table, rows, numbers, out, is_quick=is_quick)) for table, rows in wanted]


def _followup(parts: Sequence[TableJobs], judge_with: str | None, judge_rows: str | None) -> Followup:
    """What is done when all of them are: a judgment that means nothing for a row is refused before anything trains."""
    if judge_with is None and judge_rows is not None:
        raise InputError("--judge-rows has no effect without --judge-with; give e.g. --judge-with autoattack")
    names = list(dict.fromkeys(listed(judge_with or "")))
    tables = [part.table for part in parts if part.rows]
    for name in names:
        if name not in JUDGMENTS:
            raise InputError(f"--judge-with: {name!r} is unknown; known are {', '.join(JUDGMENTS)}")
        if all(name in table.columns for table in tables):
            told = " and ".join(table.name for table in tables)
            raise InputError(f"--judge-with {name} has no effect: {told} reports it for every row; leave it out")
    every = _joined(parts)
    wanted = None if judge_rows == ALL else listed(judge_rows or "")
    named = None if judge_rows in (None, BEST) else choose_rows(every, wanted, "--judge-rows")
    for row in named or every.rows:  # any of them may be the best
        for name in names:
            judgment_of(row.recipe.config, name)
    return Followup(names, named)


def _all_jobs(parts: Sequence[TableJobs]) -> list[Job]:
    """Each once: tables may share a row. With margins, if one of them reports margins."""
    found: dict[Path, Job] = {}
    for job in (job for part in parts for job in part.work):
        if job.folder not in found or job.margins:
            found[job.folder] = job
    return list(found.values())


def _joined(parts: Iterable[Table | TableJobs]) -> Table:
    """The rows of all as one table."""
    return Table("", "", (), tuple(row for part in parts for row in part.rows))


def _report(part: TableJobs, path: Path, judgments: Sequence[str], quick: bool) -> None:
    table, rows = part.table, part.rows
    results = [[found for job in part.work if job.row is row and (found := job.result()) is not None] for row in rows]
    columns = table.columns
    if any("autoattack" in result["accuracy"] for members in results for result in members):
        columns = tuple(dict.fromkeys([*columns, "autoattack"]))
    compared: list[tuple[str, dict[str, Cell]]] = [
        (row.recipe.name, compare(columns, row.published.results, members))
        for row, members in zip(rows, results, strict=True)
    ]
    note = "quick runs: the numbers mean nothing" if quick else ""
    judged = [(job, name) for name in judgments if name not in columns for job in part.work]
    reports = [(f"{job.name}, {name}", report) for job, name in judged if (report := job.judged_with(name)) is not None]
    lines = [f"{label}: {followup_line(report)}" for label, report in reports]
    text = markdown(table.title, columns, compared, note)
    write_text_atomic(path, text + "".join(f"\n- {line}" for line in lines) + "\n" * bool(lines))
    title = f"{table.title}: ours / paper (difference)"
    alike = len({name.split("/")[0] for name, _ in compared}) == 1  # the network then goes without saying
    shown = [
        (name.split("/")[1] if alike else name, *(cells[column].text() for column in columns))
        for name, cells in compared
    ]
    notes = [note] * bool(note) + lines + [f"also in {path}"]
    show_table(
        console_for(), ("row", *map(column_title, columns)), shown, left=1 + len(columns), title=title, notes=notes
    )


def _close(tasks: Sequence[Task], failures: Sequence[Failure], console: Console) -> None:
    """What is left, and why; a failure is the exit code too."""
    done = sum(task.done for task in tasks)
    if done + len(failures) < len(tasks):
        say(console, f"time is out: {done} of {len(tasks)} done; the same command goes on")
    if failures:
        console = console_for(stderr=True, failures=True)
        say(console, f"{len(failures)} of {len(tasks)} failed; the same command tries again:")
        for failure in failures:
            say(console, f"  {failure.label}: {failure.why}")
        raise typer.Exit(FAILED)
