"""The screen: the one place that prints words for people, and makes what came from files and users harmless.

What is printed is text and never markup. Characters that steer a terminal are shown as escapes, passwords in addresses
as ***. Lines are never wrapped or cut by us, and into a pipe or a file neither are tables.
"""

import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from widemargin.core.records import visible

QUIET, USUAL, VERBOSE = -1, 0, 1
_VOLUME = [USUAL]
"""How much this process says; a command sets it."""

WIDE = 100_000
"""Columns of what is no terminal: nothing is wrapped there."""
_PASSWORD = re.compile(r"(://[^\s/@:]*:)\S*@|(\b(?:password|passwd|pwd)=)[^\s&'\"]+", re.IGNORECASE)


def printable(text: str) -> str:
    """The text as one line that any terminal shows as it is, without the passwords of addresses (``u:secret@host``)."""
    return visible(_PASSWORD.sub(lambda found: f"{found[1]}***@" if found[1] else f"{found[2]}***", text))


def one_line(text: str) -> str:
    """The same for words of several lines."""
    return printable(" ".join(text.split()))


def set_volume(volume: int) -> None:
    """Quiet: standard error has mistakes and warnings alone. Verbose: it has more."""
    _VOLUME[0] = volume


def is_verbose() -> bool:
    """Whether a person wants to know more."""
    return _VOLUME[0] >= VERBOSE


def console_for(*, stderr: bool = False, quiet: bool = False, failures: bool = False) -> Console:
    """Standard output, or error; as wide as the terminal, and without limits where it is none.

    What goes to standard error is silent in a quiet command, unless it tells of ``failures``.
    """
    stream = sys.stderr if stderr else sys.stdout
    wide = stream is None or not stream.isatty()
    silent = quiet or (stderr and not failures and _VOLUME[0] <= QUIET)
    return Console(stderr=stderr, quiet=silent, width=WIDE if wide else None)


def can_animate(console: Console) -> bool:
    """Whether a bar that moves can be seen there: in a terminal, and in a notebook that has widgets."""
    if console.quiet:
        return False
    return find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal


def as_text(show: Callable[[Console], None]) -> str:
    """What it would print where there is no terminal."""
    stream = io.StringIO()
    show(Console(file=stream, width=WIDE, force_terminal=False, force_jupyter=False))
    return stream.getvalue().rstrip("\n")


def say(console: Console, text: str, *, style: str = "") -> None:
    """One line."""
    console.print(Text(printable(text), style=style), soft_wrap=True, highlight=False)


def show_table(
    console: Console,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    title: str = "",
    notes: Sequence[str] = (),
    plain: bool = False,
) -> None:
    """A table, its title above and its notes below as lines; all columns but the first ``left`` are of numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True) if plain else Table()
    for number, name in enumerate(header):
        table.add_column(Text(printable(name)), justify="left" if number < left else "right")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    if title:
        say(console, title, style="bold")
    console.print(table)
    for note in notes:
        say(console, note)


class UnfailingStream(io.FileIO):
    """A standard stream that nobody has to read: what cannot be written is lost, and the first reason is kept."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Write what can be written; the rest counts as written."""
        try:
            return super().write(data) or len(data)
        except OSError as error:
            self.failure = self.failure or error
            return len(data)


def unfailing_streams() -> UnfailingStream:
    """Make the process's standard streams last: work goes on when a log is full or its reader is gone.

    Characters that the stream's encoding does not have are written as escapes. A closed stream is opened to nowhere:
    else the next file would take its number, and what others write there. Returns what is below standard output.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout, out = _unfailing(1, sys.stdout)
    sys.stderr, _ = _unfailing(2, sys.stderr)
    return out


def _unfailing(descriptor: int, usual: TextIO | None) -> tuple[io.TextIOWrapper, UnfailingStream]:
    raw = UnfailingStream(descriptor)
    if usual is not None:
        with suppress(OSError, ValueError):
            usual.flush()
    by_line = descriptor == 2 or raw.isatty() or bool(os.environ.get("PYTHONUNBUFFERED"))
    encoding = None if usual is None else usual.encoding
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=by_line), raw
