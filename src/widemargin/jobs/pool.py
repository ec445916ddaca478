"""Tasks done one after the other in this process, or several at a time, each in a process of its own.

Several at a time: the longest first, and one deadline for all. A task that crashes does not stop the others. At the
deadline, at Ctrl-C and at SIGTERM no task is begun any more, and those at work are asked to stop: training ends at a
step boundary with a checkpoint, an evaluation keeps its finished pieces.

A process of its own is ``python -m widemargin.jobs.pool JSON``. Its standard input is a line to the parent: when the
parent is gone, killed even, the process stops as at SIGTERM.
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
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

from rich.console import Console

from widemargin.config.run import RunConfig
from widemargin.core.screen import console_for, one_line, say, unfailing_streams
from widemargin.core.signals import Stop
from widemargin.errors import InputError, WidemarginWarning
from widemargin.jobs.cost import run_passes
from widemargin.jobs.job import Resources, Task, choose_rows, jobs
from widemargin.jobs.judging import perform
from widemargin.models.classifier import facts_of
from widemargin.recipes.tables import find_table

PROGRAM = ("-m", "widemargin.jobs.pool")
OUTPUT = "output.txt"
PATIENCE = 120.0
"""Seconds between asking to stop and killing: a step may be compiling."""
POLL_SECONDS = 0.1

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
        self._writable = True
        """Whether every line could be written."""
        self._asked: float | None = None
        # long lines are not wrapped; the processes do not fight for the cores, unless the user has said how many
        environment = {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"} | dict(os.environ) | {"COLUMNS": "200"}
        self._process = subprocess.Popen(
            [sys.executable, *PROGRAM, description],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
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
        code = self._process.returncode
        if self.task.done or (self._asked is not None and code in (-signal.SIGTERM, -signal.SIGKILL, 0)):
            return None
        if code < 0:
            return Failure(self.task.label, f"killed by {signal.Signals(-code).name}")
        last = self._last if code else ""
        return Failure(self.task.label, last or f"ended with exit code {code}, without a result")

    def _read(self, say: Say) -> None:
        for line in self._process.stdout or ():
            text = line.rstrip("\n")
            self._last = text.rstrip() or self._last
            self._write(text, say)
            say(f"{self.task.label}: {text.rstrip()}")

    def _write(self, text: str, say: Say) -> None:
        """A line that cannot be written is lost, which is said once: who stops reading stops the process, too."""
        path = self.task.job.folder / OUTPUT
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as stream:
                stream.write(f"{text}\n")
        except OSError as error:
            if self._writable:
                self._writable = False
                say(f"{self.task.label}: lines are missing in {path}: {error.strerror or error}")


def run_in_turn(tasks: Sequence[Task], resources: Resources, *, deadline: float, console: Console) -> None:
    """Do the tasks that are not done, one after the other in this process; stops when time is out."""
    for number, task in enumerate(tasks, start=1):
        label = f"{number}/{len(tasks)} {task.label}"
        if task.done:
            say(console, f"{label}: done before")
            continue
        say(console, label, style="bold")
        left = deadline - time.monotonic()
        if left <= 0:
            return
        perform(task, resources, max_seconds=left, console=console)
        if not task.done:
            return


def run_workers(
    tasks: Sequence[Task], describe: Callable[[Task], str], *, workers: int, deadline: float, console: Console
) -> list[Failure]:
    """Do the tasks that are not done; returns those that failed. ``describe`` tells a process its task."""
    for task in tasks:
        if task.done:
            say(console, f"{task.label}: done before")
    waiting = [task for task in tasks if not task.done]
    waiting.sort(key=lambda task: order(task.job.config), reverse=True)
    running: list[Worker] = []
    failures: list[Failure] = []
    ended = len(tasks) - len(waiting)
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
                    ended += 1
                    label, failure = f"{worker.task.label}, {ended} of {len(tasks)}", worker.failure()
                    if failure is not None:
                        failures.append(failure)
                        say(console, f"{label}: FAILED: {failure.why}")
                    else:
                        say(console, f"{label}: {'done' if worker.task.done else 'stopped; it can go on'}")
                time.sleep(POLL_SECONDS)
    finally:  # a second Ctrl-C, or a mistake of ours
        for worker in running:
            worker.kill()
    stop.deliver()
    return failures


def _next(waiting: Sequence[Task], running: Sequence[Worker]) -> Task | None:
    """The first that can begin: of the jobs that share a run one at a time, and after the job it has its weights of."""
    taken = {worker.task.job.trained_in for worker in running if worker.task.judgment is None}
    unfinished = taken | {task.job.trained_in for task in waiting if task.judgment is None}
    for task in waiting:
        if task.judgment is not None or (task.job.trained_in not in taken and task.job.starts_in not in unfinished):
            return task
    return None


def order(config: RunConfig) -> tuple[int, float]:
    """How long a run takes beside other runs on the same data; it is no time. The network first, then its passes."""
    return facts_of(config.model).cost_rank, run_passes(config)["model"]


REFUSED = 2


def describe(task: Task, *, resources: Resources, out: Path) -> str:
    """A task as the argument of its process."""
    job = task.job
    described = {"table": job.table, "row": job.row.recipe.name, "seed": job.seed, "quick": job.quick}
    return json.dumps(described | {"judgment": task.judgment, "out": str(out)} | asdict(resources))


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
    found = json.loads(text)
    resources = Resources(**{field.name: found[field.name] for field in fields(Resources)})
    try:
        table = find_table(found["table"])
        (row,) = choose_rows(table, [found["row"]])
        (job,) = jobs(table, [row], [found["seed"]], Path(found["out"]), is_quick=found["quick"])
        task = Task(job, found["judgment"])
        perform(task, resources, max_seconds=math.inf, console=console_for(stderr=True))
    except InputError as error:
        sys.stderr.write(one_line(str(error)) + "\n")
        return REFUSED
    return 0


if __name__ == "__main__":
    unfailing_streams()  # the parent, who reads them, may be gone before the checkpoint is written
    sys.exit(main(sys.argv[1]))
