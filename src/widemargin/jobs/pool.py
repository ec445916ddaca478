"""Tasks done one after the other in this process, or each in a process of its own, several at a time.

Several at a time: the longest first, and one deadline for all (``launch``). A process of its own is ``python -m
widemargin.jobs.pool JSON``, on this machine or on another.
"""

import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from rich.console import Console

from widemargin.config.run import RunConfig
from widemargin.core.child_process import FOLLOWS, OUTPUT, Command, follow_parent
from widemargin.core.screen import console_for, one_line, say, unfailing_streams
from widemargin.errors import InputError, WidemarginWarning
from widemargin.jobs.cost import run_passes
from widemargin.jobs.job import Resources, Task, choose_rows, jobs
from widemargin.jobs.judging import perform
from widemargin.jobs.launch import Failure, Launcher, job_command, run_jobs
from widemargin.models.classifier import facts_of
from widemargin.recipes.tables import find_table

PROGRAM = ("-m", "widemargin.jobs.pool")


def run_in_turn(tasks: Sequence[Task], resources: Resources, *, deadline: float, console: Console) -> None:
    """Do the tasks that are not done, one after the other in this process; stops when time is out."""
    for number, task in enumerate(tasks, start=1):
        label = f"{number}/{len(tasks)} {task.label}"
        if task.done:
            say(console, f"{label}: done before")
            continue
        say(console, label, style="bold")
        left = deadline - time.monotonic()
        if left <= 0:
            return
        perform(task, resources, max_seconds=left, console=console)
        if not task.done:
            return


def run_tasks(
    tasks: Sequence[Task], describe: Callable[[Task], Command], launcher: Launcher, *, deadline: float, console: Console
) -> list[Failure]:
    """Do the tasks that are not done, the longest first; returns those that failed."""
    ordered = sorted(tasks, key=lambda task: order(task.job.config), reverse=True)
    return run_jobs(ordered, describe, launcher, deadline=deadline, console=console, may_begin=_may_begin)


def _may_begin(task: Task, waiting: Sequence[Task], running: Sequence[Task]) -> bool:
    """Of the jobs that share a run one at a time, and after the job it has its weights of."""
    taken = {other.job.trained_in for other in running if other.judgment is None}
    unfinished = taken | {other.job.trained_in for other in waiting if other.judgment is None}
    return task.judgment is not None or (task.job.trained_in not in taken and task.job.starts_in not in unfinished)


def order(config: RunConfig) -> tuple[int, float]:
    """How long a run takes beside other runs on the same data; it is no time. The network first, then its passes."""
    return facts_of(config.model).cost_rank, run_passes(config)["model"]


REFUSED = 2


def describe(task: Task, *, resources: Resources, out: Path) -> Command:
    """A task as the command of its process."""
    job = task.job
    described = {"table": job.table, "row": job.row.recipe.name, "seed": job.seed, "quick": job.quick}
    told = json.dumps(described | {"judgment": task.judgment, "out": str(out)} | asdict(resources))
    return job_command(out, task.label, (*PROGRAM, told), job.folder / OUTPUT)


def main(text: str) -> int:
    """Do the task; 2 and one line for what a person can put right."""
    os.environ.pop(FOLLOWS, None)
    follow_parent()
    warnings.simplefilter("always", WidemarginWarning)
    warnings.showwarning = lambda message, *_: sys.stderr.write(f"warning: {one_line(str(message))}\n")  # type: ignore[assignment]
    found = json.loads(text)
    resources = Resources(**{field.name: found[field.name] for field in fields(Resources)})
    try:
        table = find_table(found["table"])
        (row,) = choose_rows(table, [found["row"]])
        (job,) = jobs(table, [row], [found["seed"]], Path(found["out"]), is_quick=found["quick"])
        task = Task(job, found["judgment"])
        if not task.done:  # by an earlier attempt, while this one waited for its end
            perform(task, resources, max_seconds=math.inf, console=console_for(stderr=True))
    except InputError as error:
        sys.stderr.write(one_line(str(error)) + "\n")
        return REFUSED
    return 0


if __name__ == "__main__":
    unfailing_streams()  # the parent, who reads them, may be gone before the checkpoint is written
    sys.exit(main(sys.argv[1]))
