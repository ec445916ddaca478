"""A process at work on one task: its lines are passed on, its end is understood.

Several tasks at a time, each in a process; the longest first, and one deadline for all.

A task that crashes does not stop the others. At the deadline, at Ctrl-C and at SIGTERM no task is begun any more, and
those at work are asked to stop: training ends with a checkpoint, an evaluation keeps its finished pieces.

A process that does one task: ``python -m widemargin.jobs.pool JSON``.

It ends as a run ends: SIGTERM stops training at a step boundary with a checkpoint; an evaluation ends at once and keeps
its finished pieces. Its standard input is a line to the parent; when the parent is gone, killed even, the process stops
as at SIGTERM.

Train and judge rows of the paper's tables; what is done is skipped, what was interrupted goes on.
"""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from widemargin.core.screen import console_for, lasting_streams, one_line, say
from widemargin.core.signals import Stop
from widemargin.errors import InputError, WidemarginWarning
from widemargin.jobs.job import Resources, Task, choose_rows, jobs, longest_first
from widemargin.jobs.judging import perform
from widemargin.recipes.tables import find_table

PROGRAM = ("-m", "widemargin.jobs.pool")
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


POLL_SECONDS = 0.1


def run_workers(
    tasks: Sequence[Task], describe: Callable[[Task], str], *, workers: int, deadline: float, console: Console
) -> list[Failure]:
    """Do the tasks that are not done; returns those that failed. ``describe`` tells a process its task."""
    for task in tasks:
        if task.done:
            say(console, f"{task.label}: done before")
    waiting = longest_first([task for task in tasks if not task.done])
    running: list[Worker] = []
    failures: list[Failure] = []
    stop = Stop()
    threads = max(1, (os.cpu_count() or 1) // workers)
    try:
        with stop.handle_signals():
            while waiting or running:
                if stop.received is not None or time.monotonic() >= deadline:
                    waiting.clear()
                    for worker in running:
                        worker.ask_to_stop()
                while len(running) < workers and (free := _next(waiting, running)) is not None:
                    waiting.remove(free)
                    say(console, f"{free.label}: begins; {len(waiting)} wait")
                    running.append(Worker(free, describe(free), partial(say, console), threads=threads))
                for worker in [worker for worker in running if worker.ended]:
                    running.remove(worker)
                    failures += _failed(worker, console)
                time.sleep(POLL_SECONDS)
    finally:  # a second Ctrl-C, or a mistake of ours
        for worker in running:
            worker.kill()
    stop.deliver()
    return failures


def _next(waiting: Sequence[Task], running: Sequence[Worker]) -> Task | None:
    """The first that can begin: of the jobs that share a run, one at a time."""
    taken = {worker.task.job.trained_in for worker in running if worker.task.judgment is None}
    possible = (task for task in waiting if task.judgment is not None or task.job.trained_in not in taken)
    return next(possible, None)


def _failed(worker: Worker, console: Console) -> list[Failure]:
    """Say what became of its task."""
    label, failure = worker.task.label, worker.failure()
    if failure is not None:
        say(console, f"{label}: FAILED: {failure.why}")
        return [failure]
    say(console, f"{label}: {'done' if worker.task.done else 'stopped; it can go on'}")
    return []


REFUSED = 2


def describe(task: Task, *, means: Resources, out: Path) -> str:
    """What the process is told."""
    job = task.job
    told = {"table": job.table, "row": job.row.recipe.name, "seed": job.seed, "quick": job.quick}
    return json.dumps(told | {"judgment": task.judgment, "out": str(out)} | asdict(means))


def _task(told: dict[str, Any]) -> Task:
    table = find_table(told["table"])
    (row,) = choose_rows(table, [told["row"]])
    (job,) = jobs(table, [row], [told["seed"]], Path(told["out"]), is_quick=told["quick"])
    return Task(job, told["judgment"])


def _follow_parent() -> None:
    """Wait for the end of the parent, which never writes."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(REFUSED)  # nobody is left to kill a step that does not end


def main(text: str) -> int:
    """Do the task; 2 and one line for what a person can put right."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    warnings.simplefilter("always", WidemarginWarning)
    warnings.showwarning = lambda message, *_: sys.stderr.write(f"warning: {one_line(str(message))}\n")  # type: ignore[assignment]
    told = json.loads(text)
    means = Resources(data_dir=told["data_dir"], device=told["device"], workers=told["workers"])
    try:
        perform(_task(told), means, max_seconds=math.inf, console=console_for(stderr=True))
    except InputError as error:
        sys.stderr.write(one_line(str(error)) + "\n")
        return REFUSED
    return 0


if __name__ == "__main__":
    lasting_streams()  # the parent, who reads them, may be gone before the checkpoint is written
    sys.exit(main(sys.argv[1]))


def reproduce(tasks: Sequence[Task], means: Resources, *, deadline: float, console: Console) -> None:
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
