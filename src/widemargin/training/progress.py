"""What a person sees while a run goes on: a bar with loss, speed and time left, and a line per epoch."""

import time
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from widemargin.core.screen import is_verbose, printable, say

LOG_SECONDS = 30.0
"""Between two lines on an epoch under way, in a log of a verbose command."""


class TrainingDisplay:
    """A progress bar over all steps of the run; ``Console(quiet=True)`` shows nothing."""

    def __init__(self, console: Console, *, name: str, total_steps: int, done_steps: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,  # a log file gets the lines of the epochs, not the bar
        )
        self._task = self._progress.add_task(
            printable(name), total=total_steps, completed=done_steps, loss="", speed=""
        )
        self._logs, self._logged = is_verbose() and not console.is_terminal, time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @property
    def shown(self) -> bool:
        """Whether anybody can see the bar, or the next line in a log is due."""
        if self._logs:
            return time.monotonic() - self._logged >= LOG_SECONDS
        return not (self._progress.disable or self._progress.console.quiet)

    def advance(self) -> None:
        """One more step is done."""
        self._progress.advance(self._task)

    def show(self, *, loss: float, images_per_second: float) -> None:
        """Refresh the loss and the speed."""
        told, speed = f"loss {loss:.4f}", f"{images_per_second:,.0f} images/s"
        self._progress.update(self._task, loss=told, speed=speed)
        if self._logs:
            self._logged, task = time.monotonic(), self._progress.tasks[0]
            say(self._progress.console, f"step {task.completed:,.0f} of {task.total:,.0f}  {told}  {speed}")

    def busy(self, what: str) -> None:
        """Say what is going on between epochs."""
        self._progress.update(self._task, speed=what)

    def epoch_line(self, line: Mapping[str, Any], epochs: int) -> None:
        """Print one epoch's metrics as a line."""
        say(self._progress.console, describe_epoch(line, epochs))


_SHOWN = {
    "train_accuracy": "train {:.1f}%",
    "validation_clean": "val clean {:.2f}%",
    "validation_robust": "val attacked {:.2f}%",
    "averaged_validation_robust": "averaged {:.2f}%",
    "test_clean": "clean {:.2f}%",
    "test_robust": "attacked {:.2f}%",
    "test_margin_mean": "margin {:.3f}",
    "emr": "emr {:.3g}",
    "igr": "igr {:.3g}",
    "grad_align": "misaligned {:.3g}",
}


def describe_epoch(line: Mapping[str, Any], epochs: int) -> str:
    """One epoch in a line a person reads."""
    width = len(str(epochs))
    parts = [template.format(line[key]) for key, template in _SHOWN.items() if key in line]
    return (
        f"epoch {line['epoch']:>{width}}/{epochs}  loss {line['loss']:.4f}  {'  '.join(parts)}  {line['seconds']:.1f} s"
    )
