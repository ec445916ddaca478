"""Several tasks at a time, in processes of one or more lanes; the longest first, and one deadline for all.

A task that crashes does not stop the others; what its process never came to goes to another one. At the deadline, at
Ctrl-C and at SIGTERM no task is begun any more, and those at work are asked to stop: training ends with a checkpoint,
an evaluation keeps its finished pieces.
"""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from rich.console import Console

from widemargin.experiments.cost import longest_first
from widemargin.experiments.task import Task
from widemargin.experiments.worker import Failure, Outcome, Worker
from widemargin.screen import say
from widemargin.training import Stop

POLL_SECONDS = 0.1


def work_together(
    tasks: Sequence[Task],
    describe: Callable[[Sequence[Task], int], str],
    *,
    workers: int,
    lanes: Callable[[Task], int],
    deadline: float,
    console: Console,
) -> list[Failure]:
    """Do the tasks that are not done; returns those that failed.

    ``describe`` tells a process its tasks and lanes; ``lanes`` says how many like one share a process.
    """
    for task in tasks:
        if task.done:
            say(console, f"{task.label}: done before")
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
                while (ready := _ready(waiting, running)) and (free := workers - _busy(running)) > 0:
                    group, count = _next_group(ready, lanes, free, workers - _shared(running))
                    for task in group:
                        waiting.remove(task)
                    if len(group) == 1:
                        say(console, f"{group[0].label}: begins; {len(waiting)} wait")
                    else:
                        say(
                            console, f"{len(group)} jobs for one process, {count} at a time; {len(waiting)} others wait"
                        )
                    told = describe(group, count)
                    running.append(Worker(group, told, partial(say, console), threads=threads, lanes=count))
                for worker in _over(running):
                    outcome = worker.outcome()
                    _tell(worker, outcome, console)
                    failures += outcome.failures
                    waiting.extend(outcome.left_over)
                time.sleep(POLL_SECONDS)
    finally:  # a second Ctrl-C, or a mistake of ours
        for worker in running:
            worker.kill()
    stop.deliver()
    return failures


def _busy(running: Sequence[Worker]) -> int:
    return sum(worker.lanes for worker in running)


def _shared(running: Sequence[Worker]) -> int:
    return sum(worker.lanes for worker in running if worker.lanes > 1)


def _ready(waiting: Iterable[Task], running: Sequence[Worker]) -> list[Task]:
    """Those that could begin: of the jobs that share a run, one at a time."""
    taken = {task.job.trained_in for worker in running for task in worker.tasks if task.judgment is None}
    ready = []
    for task in waiting:
        if task.judgment is not None:
            ready.append(task)
        elif task.job.trained_in not in taken:
            ready.append(task)
            taken.add(task.job.trained_in)
    return ready


def _next_group(
    ready: Sequence[Task], lanes: Callable[[Task], int], free: int, capacity: int
) -> tuple[list[Task], int]:
    """The tasks of the next process, and its lanes.

    A task that shares no process is alone. Of those that do, a process gets the share that its lanes are of the
    ``capacity``, which is all workers but the lanes of other such processes; long ones and short ones.
    """
    count = min(lanes(ready[0]), free)
    if count == 1:
        return [ready[0]], 1
    sharing = [task for task in ready if lanes(task) >= count]
    share = math.ceil(len(sharing) * count / capacity)
    group = [sharing[number * len(sharing) // share] for number in range(share)]
    return group, min(count, len(group))


def _over(running: list[Worker]) -> list[Worker]:
    """Take those that ended from the list."""
    over = [worker for worker in running if worker.ended]
    for worker in over:
        running.remove(worker)
    return over


def _tell(worker: Worker, outcome: Outcome, console: Console) -> None:
    """What became of its tasks."""
    failed = {failure.label: failure.why for failure in outcome.failures}
    for task in worker.tasks:
        if task.label in failed:
            say(console, f"{task.label}: FAILED: {failed[task.label]}")
        elif task not in outcome.left_over:
            say(console, f"{task.label}: {'done' if task.done else 'stopped; it can go on'}")
