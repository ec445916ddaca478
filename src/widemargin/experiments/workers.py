"""Several tasks at a time, each in a process; the longest first, and one deadline for all.

A task that crashes does not stop the others. At the deadline, at Ctrl-C and at SIGTERM no task is begun any more, and
those at work are asked to stop: training ends with a checkpoint, an evaluation keeps its finished pieces.
"""

import os
import time
from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Console

from widemargin.experiments.cost import longest_first
from widemargin.experiments.task import Task
from widemargin.experiments.worker import Failure, Worker
from widemargin.screen import say
from widemargin.training import Stop

POLL_SECONDS = 0.1


def work_together(
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
        with stop.heard():
            while waiting or running:
                if stop.asked is not None or time.monotonic() >= deadline:
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
