"""One task at work in a process of its own: its lines are passed on, its end is understood."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from widemargin.experiments.task import Task
from widemargin.files import make_folder

PROGRAM = ("-m", "widemargin.experiments.task_process")
OUTPUT = "output.txt"
PATIENCE = 120.0
"""Seconds between asking to stop and killing: a step may be compiling."""
REMEMBERED = 200

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
        self._asked: float | None = None
        self._last: deque[str] = deque(maxlen=REMEMBERED)
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
        """Why it failed; None where it is done or was asked to stop."""
        code = self._process.returncode
        if self.task.done or (self._asked is not None and code in (-signal.SIGTERM, -signal.SIGKILL, 0)):
            return None
        if code is not None and code < 0:
            return Failure(self.task.label, f"killed by {signal.Signals(-code).name}")
        said = [line for line in self._last if line.strip()]
        return Failure(self.task.label, said[-1] if said and code else f"ended with exit code {code}, without a result")

    def _read(self, say: Say) -> None:
        lines = self._process.stdout
        if lines is None:
            return
        with (make_folder(self.task.job.folder) / OUTPUT).open("a", encoding="utf-8") as kept:
            for line in lines:
                self._last.append(line.rstrip())
                kept.write(line)
                kept.flush()
                say(f"{self.task.label}: {line.rstrip()}")


def _surroundings(threads: int) -> dict[str, str]:
    """Long lines are not wrapped; the processes do not fight for the cores, unless the user has said how many."""
    return {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"} | dict(os.environ) | {"COLUMNS": "200"}
