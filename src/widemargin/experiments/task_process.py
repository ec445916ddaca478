"""A process that does one task: ``python -m widemargin.experiments.task_process JSON``.

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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from widemargin.errors import InputError, WidemarginWarning
from widemargin.experiments.job import choose_rows, jobs
from widemargin.experiments.task import Means, Task, perform
from widemargin.experiments.worker import PATIENCE
from widemargin.recipes.tables import find_table
from widemargin.screen import console_for, lasting_streams, one_line

REFUSED = 2


def describe(task: Task, *, means: Means, out: Path) -> str:
    """What the process is told."""
    job = task.job
    told = {"table": job.table, "row": job.row.recipe.name, "seed": job.seed, "quick": job.quick}
    return json.dumps(told | {"judgment": task.judgment, "out": str(out)} | asdict(means))


def _task(told: dict[str, Any]) -> Task:
    table = find_table(told["table"])
    (row,) = choose_rows(table, [told["row"]])
    (job,) = jobs(table, [row], [told["seed"]], Path(told["out"]), is_quick=told["quick"])
    return Task(job, told["judgment"])


def _follow_parent() -> None:
    """Wait for the end of the parent, which never writes."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(REFUSED)  # nobody is left to kill a step that does not end


def main(text: str) -> int:
    """Do the task; 2 and one line for what a person can put right."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    warnings.simplefilter("always", WidemarginWarning)
    warnings.showwarning = lambda message, *_: sys.stderr.write(f"warning: {one_line(str(message))}\n")  # type: ignore[assignment]
    told = json.loads(text)
    means = Means(data_dir=told["data_dir"], device=told["device"], workers=told["workers"])
    try:
        perform(_task(told), means, max_seconds=math.inf, console=console_for(stderr=True))
    except InputError as error:
        sys.stderr.write(one_line(str(error)) + "\n")
        return REFUSED
    return 0


if __name__ == "__main__":
    lasting_streams()  # the parent, who reads them, may be gone before the checkpoint is written
    sys.exit(main(sys.argv[1]))
