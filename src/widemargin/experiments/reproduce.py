"""Train and judge rows of the paper's tables; what is done is skipped, what was interrupted goes on."""

import time
from collections.abc import Sequence

from rich.console import Console

from widemargin.experiments.task import Means, Task, perform
from widemargin.screen import say


def reproduce(tasks: Sequence[Task], means: Means, *, deadline: float, console: Console) -> None:
    """Do the tasks that are not done, one after the other; stops when time is out."""
    for number, task in enumerate(tasks, start=1):
        label = f"{number}/{len(tasks)} {task.label}"
        if task.done:
            say(console, f"{label}: done before")
            continue
        say(console, label, style="bold")
        left = deadline - time.monotonic()
        if left <= 0:
            return
        perform(task, means, max_seconds=left, console=console)
        if not task.done:
            return
