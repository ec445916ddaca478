"""``widemargin reproduce``: tables of the paper, row by row, beside the published numbers."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from widemargin.cli.alone import check_alone
from widemargin.cli.arguments import DataDir, Device, seconds
from widemargin.cli.reproduce_wanted import BEST, Part, all_jobs, find_later, find_parts
from widemargin.errors import InputError
from widemargin.experiments.judgments import JUDGMENTS
from widemargin.experiments.quick import SUMMARY
from widemargin.experiments.reproduce import reproduce as run_tasks
from widemargin.experiments.task import Means, Task
from widemargin.experiments.task_process import describe
from widemargin.experiments.worker import Failure
from widemargin.experiments.workers import work_together
from widemargin.files import make_folder, write_text_whole
from widemargin.recipes.tables import all_tables
from widemargin.reports.collection.table_text import head
from widemargin.reports.comparison import Cell, compare, markdown
from widemargin.reports.later import later_line
from widemargin.screen import console_for, say, show_table

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
        help="Rows for --judge-with: 'best' is, for each method, the row of the highest PGD accuracy.",
        show_default=BEST,
    ),
]


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
    data_dir: DataDir = None,
    device: Device = "auto",
) -> None:
    """Train and judge the rows of tables, skipping what is done, and set our numbers beside the published ones.

    With several workers the longest jobs begin first; one that crashes does not stop the others.
    """
    check_alone("reproduce", "--workers does several jobs at a time")
    parts = find_parts(table, rows, seeds, out, is_quick=quick)
    later = find_later(parts, judge_with, judge_rows)
    deadline = time.monotonic() + seconds("--max-time", max_time)
    if workers < 1:
        raise InputError(f"--workers must be at least 1, got {workers}")
    make_folder(out)
    console = console_for(stderr=True)
    if quick:
        say(console, f"quick: {SUMMARY}; the numbers mean nothing")
    crew = Crew(out, Means(data_dir=data_dir, device=device, workers=workers), deadline, console)
    tasks = [Task(job) for job in all_jobs(parts)]
    failures = crew.do(tasks)
    if all(task.done for task in tasks):
        added = later.tasks(parts)
        failures += crew.do(added)
        tasks += added
    for part in parts:
        if part.rows:
            _report(part, out / f"{part.table.name}.md", later.judgments, quick)
    _close(tasks, failures, console)


@dataclass(frozen=True)
class Crew:
    """Those who do the work: this process, or several."""

    out: Path
    means: Means
    deadline: float
    console: Console

    def do(self, tasks: Sequence[Task]) -> list[Failure]:
        """What is not done."""
        if self.means.workers == 1:
            run_tasks(tasks, self.means, deadline=self.deadline, console=self.console)
            return []
        told = partial(describe, means=self.means, out=self.out)
        workers = self.means.workers
        return work_together(tasks, told, workers=workers, deadline=self.deadline, console=self.console)


def _report(part: Part, path: Path, judgments: Sequence[str], quick: bool) -> None:
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
    lines = list(_later_lines(part, [name for name in judgments if name not in columns]))
    text = markdown(table.title, columns, compared, note)
    write_text_whole(path, text + "".join(f"\n- {line}" for line in lines) + "\n" * bool(lines))
    title = f"{table.title}: ours / paper (difference)"
    short = _short([name for name, _ in compared])
    shown = [
        (name, *(cells[column].text() for column in columns)) for name, (_, cells) in zip(short, compared, strict=True)
    ]
    told = [note] * bool(note) + lines + [f"also in {path}"]
    show_table(console_for(), ("row", *map(head, columns)), shown, left=1 + len(columns), title=title, notes=told)


def _later_lines(part: Part, judgments: Sequence[str]) -> Iterator[str]:
    """What later judgments found that is no column of the table."""
    for name in judgments:
        for job in part.work:
            report = job.judged_with(name)
            if report is not None:
                yield f"{job.name}, {name}: {later_line(report)}"


def _short(names: Sequence[str]) -> list[str]:
    """Without the network before them, where it is the same for all."""
    families = {name.split("/")[0] for name in names}
    return [name.split("/")[1] if len(families) == 1 else name for name in names]


def _close(tasks: Sequence[Task], failures: Sequence[Failure], console: Console) -> None:
    """What is left, and why; a failure is the exit code too."""
    done = sum(task.done for task in tasks)
    if done + len(failures) < len(tasks):
        say(console, f"time is out: {done} of {len(tasks)} done; the same command goes on")
    if failures:
        say(console, f"{len(failures)} of {len(tasks)} failed; the same command tries again:")
        for failure in failures:
            say(console, f"  {failure.label}: {failure.why}")
        raise typer.Exit(FAILED)
