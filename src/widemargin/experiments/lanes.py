"""Lanes: several tasks at a time in one process, a thread and a CUDA stream for each lane.

Small networks leave most of a GPU idle, and processes only take turns on it; the streams of one process work at once.
A lane that is free takes the next task; one whose task crashed takes no more, for it may have broken the GPU for the
process. A signal asks every lane to stop: training ends with a checkpoint, a judgment goes on to its end or until it is
killed.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TextIO, cast

import torch
from rich.console import Console

from widemargin.errors import InputError
from widemargin.experiments.task import Task
from widemargin.screen import WIDE
from widemargin.training import Stop

FAILED, REFUSED = 1, 2
MOST = 8
"""Lanes of a process where nobody says how many: more do no more work on an H200."""
BEGIN = "begins"
"""The first line of a task."""
FAILURE = "failed: "
"""How the last line of a task that failed begins."""
POLL_SECONDS = 0.2
SWITCH_SECONDS = 0.0005
"""How long a lane may hold the interpreter while others wait: less than a step of a small network takes."""
PATIENCE = 120.0
"""Seconds between asking to stop and killing: a step may be compiling."""

Perform = Callable[[Task, Console, Stop], None]


def lanes_for(task: Task, asked: int | None, *, gpu: bool) -> int:
    """How many tasks like this one share a process: as asked, else several of them on a GPU; large networks none."""
    plan = task.job.config.evaluation
    if task.judgment is not None or (plan is not None and "autoattack" in plan.attacks):
        return 1  # its backend draws from the random numbers of the whole process
    if gpu and not task.job.is_small:
        return 1  # it fills the GPU alone
    if asked is not None:
        return asked
    return MOST if gpu else 1


def side_by_side(tasks: Sequence[Task], perform: Perform, device: torch.device, lanes: int | None = None) -> int:
    """Do them, so many at once, or all; the exit code is that of the first which failed.

    The lines of a task are marked with its number: ``[0] ``, ``[1] ``, ...
    """
    stop = Stop()
    codes: dict[int, int] = {}
    waiting, taking = iter(range(len(tasks))), threading.Lock()

    def take() -> int | None:
        with taking:
            return None if stop.asked is not None else next(waiting, None)

    def lane() -> None:
        with _own_stream(device):
            while (number := take()) is not None:
                threading.current_thread().name = mark(number)  # warnings are marked by it
                codes[number] = _do(tasks[number], perform, stop, _Marked(number))
                if codes[number] == FAILED:
                    return

    count = len(tasks) if lanes is None else min(lanes, len(tasks))
    threads = [threading.Thread(target=lane, daemon=True) for _ in range(count)]
    with stop.heard(), _switching_often():
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(POLL_SECONDS)  # a signal that comes as an endless wait begins would not be heard
    code = next((codes[number] for number in sorted(codes) if codes[number]), 0)
    if not code:  # a failure is told by the exit code, which a signal would hide
        stop.deliver()
    return code


@contextmanager
def _switching_often() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def mark(number: int) -> str:
    """What the lines of a task begin with."""
    return f"[{number}] "


def _do(task: Task, perform: Perform, stop: Stop, lines: "_Marked") -> int:
    lines.say(BEGIN)
    try:
        perform(task, Console(file=cast("TextIO", lines), width=WIDE), stop)
    except InputError as error:
        lines.say(FAILURE + " ".join(str(error).split()))
        return REFUSED
    except Exception as error:
        lines.say(traceback.format_exc())
        lines.say(f"{FAILURE}{type(error).__name__}: {' '.join(str(error).split())}")
        return FAILED
    lines.end()
    return 0


def _own_stream(device: torch.device) -> Any:
    return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()


class _Marked:
    """Writes whole lines to standard error, with the task's mark."""

    def __init__(self, number: int) -> None:
        self._mark, self._rest = mark(number), ""

    def write(self, text: str) -> int:
        *whole, self._rest = (self._rest + text).split("\n")
        if whole:
            sys.stderr.write("".join(f"{self._mark}{line}\n" for line in whole))
        return len(text)

    def say(self, text: str) -> None:
        """On lines of its own."""
        self.end()
        self.write(text.rstrip("\n") + "\n")

    def end(self) -> None:
        """Whoever wrote half a line will not write the other half."""
        if self._rest:
            self.write("\n")

    def flush(self) -> None:
        sys.stderr.flush()
