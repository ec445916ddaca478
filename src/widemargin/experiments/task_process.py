"""A process that does one task, or several in lanes: ``python -m widemargin.experiments.task_process JSON``.

It ends as a run ends: SIGTERM stops training at a step boundary with a checkpoint; an evaluation ends at once and keeps
its finished pieces. Its standard input is a line to the parent; when the parent is gone, killed even, the process stops
as at SIGTERM.
"""

import json
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from widemargin.errors import InputError, WidemarginWarning
from widemargin.experiments.job import choose_rows, jobs
from widemargin.experiments.lanes import PATIENCE, REFUSED, side_by_side
from widemargin.experiments.task import Means, Task, perform
from widemargin.recipes.tables import find_table
from widemargin.screen import console_for, lasting_streams, one_line
from widemargin.training import Stop
from widemargin.training.setup import choose_device


def describe(tasks: Sequence[Task], lanes: int, *, means: Means, out: Path) -> str:
    """What the process is told."""
    return json.dumps({"tasks": [_told(task) for task in tasks], "lanes": lanes, "out": str(out)} | asdict(means))


def _told(task: Task) -> dict[str, Any]:
    job = task.job
    told = {"table": job.table, "row": job.row.recipe.name, "seed": job.seed, "quick": job.quick}
    return told | {"judgment": task.judgment}


def _task(told: dict[str, Any], out: Path) -> Task:
    table = find_table(told["table"])
    (row,) = choose_rows(table, [told["row"]])
    (job,) = jobs(table, [row], [told["seed"]], out, is_quick=told["quick"])
    return Task(job, told["judgment"])


def _follow_parent() -> None:
    """Wait for the end of the parent, which never writes."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(REFUSED)  # a lane that judges does not look at signals


def _in_lane(means: Means, task: Task, console: Console, stop: Stop) -> None:
    perform(task, means, max_seconds=math.inf, console=console, stop=stop)


def _show_warning(message: object, *_: object) -> None:
    lane = threading.current_thread()
    sys.stderr.write(f"{'' if lane is threading.main_thread() else lane.name}warning: {one_line(str(message))}\n")


def main(text: str) -> int:
    """Do the tasks; 2 and one line for what a person can put right."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    warnings.simplefilter("always", WidemarginWarning)  # each lane is told, not the first alone
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    told = json.loads(text)
    means = Means(data_dir=told["data_dir"], device=told["device"], workers=told["workers"])
    tasks = [_task(task, Path(told["out"])) for task in told["tasks"]]
    try:
        if len(tasks) > 1:
            return side_by_side(tasks, partial(_in_lane, means), choose_device(means.device), told["lanes"])
        perform(tasks[0], means, max_seconds=math.inf, console=console_for(stderr=True))
    except InputError as error:
        sys.stderr.write(one_line(str(error)) + "\n")
        return REFUSED
    return 0


if __name__ == "__main__":
    lasting_streams()  # the parent, who reads them, may be gone before the checkpoint is written
    sys.exit(main(sys.argv[1]))
