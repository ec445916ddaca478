"""What a person sees on standard error while the bench works: a bar on a terminal, a line per phase in a log."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from widemargin.screen import say


class Phases:
    """Says what is going on; ``Console(quiet=True)`` shows nothing."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, what: str, steps: int | None = None) -> None:
        """A new phase, of so many steps where that is known."""
        self._progress.update(self._task, description=what, total=steps, completed=0)
        if not self._console.is_terminal:
            say(self._console, what)

    def advance(self) -> None:
        """One of them is done."""
        self._progress.advance(self._task)
