"""What is seen while an evaluation goes on: a bar in a terminal and a notebook, elsewhere a line for each piece."""

import math
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from widemargin.core.screen import can_animate, console_for, printable, say


def default_console() -> Console:
    """Where nobody gives one: a bar where it can be shown, and silence in a pipe or a file."""
    console = console_for(stderr=True)
    return console if can_animate(console) else Console(quiet=True)


class EvaluationDisplay:
    """Says what is being done to a shard, and how many there are where that is known; the notes come first.

    Of several processes on a terminal, the first alone has a bar.
    """

    def __init__(
        self, console: Console, *, count: int | None, shard_size: int, notes: list[str], first_process: bool
    ) -> None:
        self._console, self._notes = console, notes
        self._shards = None if count is None else math.ceil(count / shard_size)
        self._animated, self._pieces = can_animate(console), 1
        self._bar = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not (self._animated and first_process),
        )
        self._task = self._bar.add_task("looking at the first images", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, pieces: int) -> None:
        """Every shard has so many pieces, attacks and measurements."""
        self._pieces = pieces
        total = None if self._shards is None else self._shards * pieces
        self._bar.update(self._task, total=total, completed=0)

    def __call__(self, shard: int, what: str) -> None:
        """This is being done to that shard now."""
        while self._notes:
            say(self._console, f"note: {self._notes.pop(0)}")
        total = "" if self._shards is None else f" of {self._shards}"
        text = f"shard {shard + 1}{total}: {what}"
        if not self._animated:
            say(self._console, text)
            return
        done = self._bar.tasks[0].completed
        begun = min(max(done + 1, shard * self._pieces), (shard + 1) * self._pieces - 1)
        self._bar.update(self._task, description=printable(text), completed=begun)

    def finish(self, shard: int) -> None:
        """The shard is judged, here or by another process, or was before."""
        self._bar.update(self._task, completed=(shard + 1) * self._pieces)
