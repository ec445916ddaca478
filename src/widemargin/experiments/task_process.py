"""One task in a process of its own: ``python -m widemargin.experiments.task_process JSON``.

It ends as a run ends: SIGTERM stops training at a step boundary with a checkpoint, an evaluation between two pieces.
Its standard input is a line to the parent; when the parent is gone, killed even, the process stops as at SIGTERM.
"""

import json
import math
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console

from widemargin.errors import InputError
from widemargin.experiments.job import choose_rows, jobs
from widemargin.experiments.task import Means, Task, perform
from widemargin.recipes.tables import find_table

REFUSED = 2


def describe(task: Task, means: Means, table: str, out: Path) -> str:
    """What the process is told."""
    told = {"table": table, "row": task.job.row.recipe.name, "seed": task.job.seed, "quick": task.job.quick}
    told |= {"out": str(out), "judgment": task.judgment}
    return json.dumps(told | {"data_dir": means.data_dir, "device": means.device, "workers": means.workers})


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


def main(text: str) -> int:
    """Do the task; 2 and one line for what a person can put right."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    warnings.showwarning = lambda message, *_: sys.stderr.write(f"warning: {message}\n")  # type: ignore[assignment]
    told = json.loads(text)
    means = Means(data_dir=told["data_dir"], device=told["device"], workers=told["workers"])
    try:
        perform(_task(told), means, max_seconds=math.inf, console=Console(stderr=True))
    except InputError as error:
        sys.stderr.write(" ".join(str(error).split()) + "\n")
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
