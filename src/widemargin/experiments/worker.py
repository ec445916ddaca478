"""A process at work on one task, or on several in its lanes: its lines are passed on, its end is understood."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from widemargin.experiments.lanes import BEGIN, FAILURE, PATIENCE, mark
from widemargin.experiments.task import Task

PROGRAM = ("-m", "widemargin.experiments.task_process")
OUTPUT = "output.txt"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Failure:
    """A task that ended by itself without being done."""

    label: str
    why: str


@dataclass(frozen=True)
class Outcome:
    """What became of the tasks of a process that ended; the others are done, or stopped as they were asked to."""

    failures: list[Failure]
    left_over: list[Task]
    """Those that it never came to: another process may do them."""


class Worker:
    """A process; its lines also go to ``output.txt`` in the job's folder, after those of earlier attempts.

    Of several tasks it does ``lanes`` at a time, and marks their lines (``lanes``). A line without a mark is of the
    process: it is told once, and kept for each task under way.
    """

    def __init__(self, tasks: Sequence[Task], description: str, say: Say, *, threads: int, lanes: int = 1) -> None:
        self.tasks, self.lanes = tuple(tasks), lanes
        self._begun = {0} if len(tasks) == 1 else set()
        self._failed: dict[int, str] = {}
        self._last: dict[int | None, str] = {}
        """The last line of each task that is not empty; None is for the process."""
        self._unkept: set[int] = set()
        """Tasks of which a line could not be kept."""
        self._asked: float | None = None
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

    def outcome(self) -> Outcome:
        """Of a process that ended. Where it came to nothing at all, every task has failed."""
        begun, left = set(self._begun), [number for number, task in enumerate(self.tasks) if not task.done]
        failed = [number for number in left if self._has_failed(number, begun)]
        left_over = [self.tasks[number] for number in left if begun and number not in begun]
        return Outcome([Failure(self.tasks[number].label, self._why(number)) for number in failed], left_over)

    def _has_failed(self, number: int, begun: set[int]) -> bool:
        if number in self._failed:
            return True
        if self._asked is None:
            return number in begun or not begun
        alone = len(self.tasks) == 1  # its exit code is its own; lanes stop as they are asked to
        return alone and self._process.returncode not in (-signal.SIGTERM, -signal.SIGKILL, 0)

    def _why(self, number: int) -> str:
        code = self._process.returncode
        if number in self._failed:
            return self._failed[number].removeprefix(FAILURE)
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        said = self._last.get(None) or self._last.get(number)
        return said if said and code else f"ended with exit code {code}, without a result"

    def _read(self, say: Say) -> None:
        for line in self._process.stdout or ():
            number, text = self._whose(line.rstrip("\n"))
            if text.strip():
                self._last[number] = text.rstrip()
            if number is None:
                say(text.rstrip())
                for each in self._under_way():
                    self._keep(each, text, say)
                continue
            if len(self.tasks) > 1 and text == BEGIN:
                self._begun.add(number)
            if len(self.tasks) > 1 and text.startswith(FAILURE):
                self._failed[number] = text.rstrip()
            self._keep(number, text, say)
            say(f"{self.tasks[number].label}: {text.rstrip()}")

    def _keep(self, number: int, text: str, say: Say) -> None:
        """A line that cannot be kept is lost, which is told once: who stops reading stops the process, too."""
        task = self.tasks[number]
        try:
            _append(task.job.folder / OUTPUT, text)
        except OSError as error:
            if number not in self._unkept:
                self._unkept.add(number)
                say(f"{task.label}: lines are missing in {task.job.folder / OUTPUT}: {error.strerror or error}")

    def _whose(self, line: str) -> tuple[int | None, str]:
        """(number of the task, text); None is for the process of several."""
        if len(self.tasks) == 1:
            return 0, line
        marked = next((n for n in range(len(self.tasks)) if line.startswith(mark(n))), None)
        return marked, line if marked is None else line.removeprefix(mark(marked))

    def _under_way(self) -> list[int]:
        return [n for n in sorted(self._begun) if n not in self._failed and not self.tasks[n].done]


def _append(path: Path, text: str) -> None:
    try:
        stream = path.open("a", encoding="utf-8")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("a", encoding="utf-8")
    with stream:
        stream.write(f"{text}\n")


def _surroundings(threads: int) -> dict[str, str]:
    """Long lines are not wrapped; the processes do not fight for the cores, unless the user has said how many.

    A lane's stream has a queue of its own on the GPU, which has eight unless told otherwise.
    """
    wishes = {"OMP_NUM_THREADS": str(threads), "CUDA_DEVICE_MAX_CONNECTIONS": "32", "PYTHONUNBUFFERED": "1"}
    return wishes | dict(os.environ) | {"COLUMNS": "200"}
