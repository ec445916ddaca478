"""A process at work on one task, or on several in its lanes: its lines are passed on, its end is understood."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TextIO

from widemargin.experiments.lanes import BEGIN, FAILURE, PATIENCE, mark
from widemargin.experiments.task import Task
from widemargin.files import make_folder

PROGRAM = ("-m", "widemargin.experiments.task_process")
OUTPUT = "output.txt"
REMEMBERED = 200

Say = Callable[[str], None]


@dataclass(frozen=True)
class Failure:
    """A task that ended by itself without being done."""

    label: str
    why: str


class Worker:
    """A process; its lines also go to ``output.txt`` in the job's folder, after those of earlier attempts.

    Of several tasks it does ``lanes`` at a time. Their lines are marked (``lanes``); one without a mark is of the
    process, and so of every task in it.
    """

    def __init__(self, tasks: Sequence[Task], description: str, say: Say, *, threads: int, lanes: int = 1) -> None:
        self.tasks, self.lanes = tuple(tasks), lanes
        self._begun = {0} if len(tasks) == 1 else set()
        self._asked: float | None = None
        self._last: list[deque[str]] = [deque(maxlen=REMEMBERED) for _ in tasks]
        self._process = subprocess.Popen(
            [sys.executable, *PROGRAM, description],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=_surroundings(threads),
            start_new_session=True,  # Ctrl-C reaches the parent alone, which asks each process once
        )
        self._reader = threading.Thread(target=self._read, args=(say,), daemon=True)
        self._reader.start()

    def ask_to_stop(self) -> None:
        """Once, in good order; who does not listen is killed after a while."""
        if self._asked is None:
            self._asked = time.monotonic()
            self._process.terminate()
        elif time.monotonic() - self._asked > PATIENCE:
            self.kill()

    def kill(self) -> None:
        """End it and what it started, now."""
        if hasattr(os, "killpg"):
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return
        else:
            self._process.kill()
        self._process.wait()

    @property
    def ended(self) -> bool:
        """Whether the process is over."""
        if self._process.poll() is None:
            return False
        self._reader.join(timeout=5.0)  # a process that it started may hold the line open
        if self._process.stdin is not None:
            self._process.stdin.close()
        return True

    def failures(self) -> list[Failure]:
        """Which tasks failed, and why; none that is done, was asked to stop or is left over."""
        code = self._process.returncode
        if self._asked is not None and code in (-signal.SIGTERM, -signal.SIGKILL, 0):
            return []
        over = self.left_over()
        left = [number for number, task in enumerate(self.tasks) if not task.done and task not in over]
        if self._asked is not None and len(self.tasks) > 1:  # the other lanes stopped as they were asked to
            left = [number for number in left if self._last_line(number).startswith(FAILURE)]
        return [Failure(self.tasks[number].label, self._why(number, code)) for number in left]

    def left_over(self) -> list[Task]:
        """Tasks that it never came to: another process may do them. None where it came to nothing at all."""
        return [task for number, task in enumerate(self.tasks) if self._begun and number not in self._begun]

    def _why(self, number: int, code: int) -> str:
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        said = self._last_line(number).removeprefix(FAILURE)
        return said if said and code else f"ended with exit code {code}, without a result"

    def _last_line(self, number: int) -> str:
        return next((line for line in reversed(self._last[number]) if line.strip()), "")

    def _read(self, say: Say) -> None:
        with ExitStack() as files:
            kept = [files.enter_context(_output(task)) for task in self.tasks]
            for line in self._process.stdout or ():
                for number, text in self._parts(line.rstrip("\n")):
                    if text == BEGIN:
                        self._begun.add(number)
                    self._last[number].append(text.rstrip())
                    kept[number].write(f"{text}\n")
                    kept[number].flush()
                    say(f"{self.tasks[number].label}: {text.rstrip()}")

    def _parts(self, line: str) -> list[tuple[int, str]]:
        """Whose line it is: (number of the task, text)."""
        if len(self.tasks) == 1:
            return [(0, line)]
        marked = [n for n in range(len(self.tasks)) if line.startswith(mark(n))]
        return [(n, line.removeprefix(mark(n))) for n in marked] or [(n, line) for n in range(len(self.tasks))]


def _output(task: Task) -> TextIO:
    return (make_folder(task.job.folder) / OUTPUT).open("a", encoding="utf-8")


def _surroundings(threads: int) -> dict[str, str]:
    """Long lines are not wrapped; the processes do not fight for the cores, unless the user has said how many.

    A lane's stream has a queue of its own on the GPU, which has eight unless told otherwise.
    """
    wishes = {"OMP_NUM_THREADS": str(threads), "CUDA_DEVICE_MAX_CONNECTIONS": "32", "PYTHONUNBUFFERED": "1"}
    return wishes | dict(os.environ) | {"COLUMNS": "200"}
