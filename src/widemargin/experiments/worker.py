"""A process at work on one task: its lines are passed on, its end is understood."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from widemargin.experiments.task import Task

PROGRAM = ("-m", "widemargin.experiments.task_process")
OUTPUT = "output.txt"
PATIENCE = 120.0
"""Seconds between asking to stop and killing: a step may be compiling."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Failure:
    """A task that ended by itself without being done."""

    label: str
    why: str


class Worker:
    """A process; its lines also go to ``output.txt`` in the job's folder, after those of earlier attempts."""

    def __init__(self, task: Task, description: str, say: Say, *, threads: int) -> None:
        self.task = task
        self._last = ""
        """The last line that is not empty."""
        self._kept = True
        """Whether every line could be kept."""
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

    def failure(self) -> Failure | None:
        """Of a process that ended; None where its task is done, or stopped as it was asked to."""
        asked_for = self._asked is not None and self._process.returncode in (-signal.SIGTERM, -signal.SIGKILL, 0)
        return None if self.task.done or asked_for else Failure(self.task.label, self._why())

    def _why(self) -> str:
        code = self._process.returncode
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return self._last if self._last and code else f"ended with exit code {code}, without a result"

    def _read(self, say: Say) -> None:
        for line in self._process.stdout or ():
            text = line.rstrip("\n")
            self._last = text.rstrip() or self._last
            self._keep(text, say)
            say(f"{self.task.label}: {text.rstrip()}")

    def _keep(self, text: str, say: Say) -> None:
        """A line that cannot be kept is lost, which is told once: who stops reading stops the process, too."""
        path = self.task.job.folder / OUTPUT
        try:
            _append(path, text)
        except OSError as error:
            if self._kept:
                self._kept = False
                say(f"{self.task.label}: lines are missing in {path}: {error.strerror or error}")


def _append(path: Path, text: str) -> None:
    try:
        stream = path.open("a", encoding="utf-8")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("a", encoding="utf-8")
    with stream:
        stream.write(f"{text}\n")


def _surroundings(threads: int) -> dict[str, str]:
    """Long lines are not wrapped; the processes do not fight for the cores, unless the user has said how many."""
    wishes = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    return wishes | dict(os.environ) | {"COLUMNS": "200"}
