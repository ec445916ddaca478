"""Several tasks at a time, in processes of one or more lanes; the longest first, and one deadline for all.

A task that crashes does not stop the others. At the deadline, at Ctrl-C and at SIGTERM no task is begun any more, and
those at work are asked to stop: training ends with a checkpoint, an evaluation keeps its finished pieces.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Sequence

from rich.console import Console

from widemargin.experiments.cost import longest_first
from widemargin.experiments.task import Task
from widemargin.experiments.worker import Failure, Worker
from widemargin.training import Stop

POLL_SECONDS = 0.1


def work_together(
    tasks: Sequence[Task],
    describe: Callable[[Sequence[Task]], str],
    *,
    workers: int,
    lanes: Callable[[Task], int],
    deadline: float,
    console: Console,
) -> list[Failure]:
    """Do the tasks that are not done; returns those that failed.

    ``describe`` tells a process its tasks; ``lanes`` says how many like one share a process.
    """
    for task in tasks:
        if task.done:
            _say(console, f"{task.label}: done before")
    waiting = deque(longest_first([task for task in tasks if not task.done]))
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
                while waiting and (free := workers - _busy(running)) > 0:
                    group = _next_group(waiting, lanes, free)
                    for task in group:
                        _say(console, f"{task.label}: begins; {len(waiting)} wait")
                    running.append(Worker(group, describe(group), lambda line: _say(console, line), threads=threads))
                failures += _over(running, console)
                time.sleep(POLL_SECONDS)
    finally:  # a second Ctrl-C, or a mistake of ours
        for worker in running:
            worker.kill()
    stop.deliver()
    return failures


def _busy(running: Sequence[Worker]) -> int:
    return sum(len(worker.tasks) for worker in running)


def _next_group(waiting: deque[Task], lanes: Callable[[Task], int], free: int) -> list[Task]:
    """The longest tasks that may share a process; of one kind, so that they end at about the same time."""
    count = min(lanes(waiting[0]), free)
    group = [waiting.popleft()]
    while waiting and len(group) < count and lanes(waiting[0]) >= count:
        group.append(waiting.popleft())
    return group


def _over(running: list[Worker], console: Console) -> list[Failure]:
    """Take those that ended from the list; returns the failures among them."""
    failures: list[Failure] = []
    for worker in [worker for worker in running if worker.ended]:
        running.remove(worker)
        failed = {failure.label: failure for failure in worker.failures()}
        failures += failed.values()
        for task in worker.tasks:
            if task.label in failed:
                _say(console, f"{task.label}: FAILED: {failed[task.label].why}")
            else:
                _say(console, f"{task.label}: {'done' if task.done else 'stopped; it can go on'}")
    return failures


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
