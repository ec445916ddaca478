"""Jobs begun wherever there is room for them, and waited for.

A launcher begins commands: on this machine so many at a time (``LocalLauncher``), or on a cluster, whose own queue then
decides (``integrations/slurm.py``, ``integrations/ray.py``). A job that crashes does not stop the others. At the
deadline, at Ctrl-C and at SIGTERM no job is begun any more, and those at work are asked to stop: training ends at a
step boundary with a checkpoint, an evaluation keeps its finished pieces. Jobs that outlive this process go on instead,
and the same command finds them again.
"""

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.console import Console

from widemargin.core.child_process import POLL_SECONDS, ChildProcess, Command, Ending, Say
from widemargin.core.screen import say
from widemargin.core.signals import Stop
from widemargin.errors import InputError
from widemargin.integrations import missing

JOBS = "jobs"
"""The folder, in that of the work as a whole, where each job has one."""


class Attempt(Protocol):
    """A command under way."""

    def poll(self) -> Ending | None:
        """How it ended, if it has."""

    def ask_to_stop(self) -> None:
        """Stop in good order; asked again and again until it has ended."""

    def kill(self) -> None:
        """End it now."""


class Launcher(Protocol):
    """Begins commands."""

    @property
    def room(self) -> float:
        """So many at a time; infinite where somebody else's queue decides."""

    @property
    def outlives(self) -> bool:
        """Whether its jobs go on when this process has ended."""

    def start(self, command: Command, say: Say) -> Attempt:
        """Begin it, or find it again where it was begun before."""


class Work(Protocol):
    """Something to be done."""

    @property
    def label(self) -> str:
        """For people."""

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do."""


W = TypeVar("W", bound=Work)


@dataclass(frozen=True)
class Failure:
    """A job that ended by itself without being done."""

    label: str
    why: str


@dataclass(frozen=True)
class LocalLauncher:
    """Processes of this machine, which share its cores."""

    workers: int
    outlives = False

    @property
    def room(self) -> float:
        """As many as there are workers."""
        return self.workers

    def start(self, command: Command, say: Say) -> Attempt:
        """The processes do not fight for the cores, unless the user has said how many each has."""
        threads = str(max(1, (os.cpu_count() or 1) // self.workers))
        own = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": threads}
        return ChildProcess(replace(command, environment={**own, **command.environment}), say)


LAUNCHERS = ("local", "slurm", "ray")


def make_launcher(name: str, folder: Path, *, slurm: str | None, ray: str | None) -> Launcher | None:
    """The launcher of that name, with what it is told; None is this machine."""
    if name not in LAUNCHERS:
        raise InputError(f"--launcher must be one of {', '.join(LAUNCHERS)}, got {name!r}")
    for other, told in (("slurm", slurm), ("ray", ray)):
        if told is not None and name != other:
            raise InputError(f"--{other} has no effect with --launcher {name}; leave it out, or say --launcher {other}")
    if name == "local":
        return None
    try:
        module = import_module(f"widemargin.integrations.{name}")
    except ImportError as error:
        raise missing(f"--launcher {name}", name, error) from None
    launcher: Launcher = module.make_launcher(slurm if name == "slurm" else ray, folder.absolute())
    return launcher


def job_command(out: Path, label: str, arguments: Sequence[str], output: Path | None = None) -> Command:
    """A job of the work in ``out``; by the same label it is found again."""
    folder = out.absolute() / JOBS / re.sub(r"[^\w.=,+\[\]{}-]+", "-", label.replace(", ", "-"))
    passed = {key: value for key, value in os.environ.items() if key.startswith("WIDEMARGIN_")}
    return Command(
        label=label,
        arguments=tuple(arguments),
        folder=folder,
        output=(output or folder / "output.txt").absolute(),
        environment=passed,
    )


def run_jobs(
    waiting: Sequence[W],
    describe: Callable[[W], Command],
    launcher: Launcher,
    *,
    console: Console,
    deadline: float = float("inf"),
    may_begin: Callable[[W, Sequence[W], Sequence[W]], bool] = lambda *_: True,
) -> list[Failure]:
    """Do what is not done, in this order; returns what failed. ``may_begin`` is asked with all that wait and run."""
    for work in waiting:
        if work.done:
            say(console, f"{work.label}: done before")
    left = [work for work in waiting if not work.done]
    running: list[tuple[W, Attempt]] = []
    failures: list[Failure] = []
    ended = len(waiting) - len(left)
    stop = Stop()
    try:
        with stop.handle_signals():
            while left or running:
                if stop.received is not None or time.monotonic() >= deadline:
                    left.clear()
                    if launcher.outlives:
                        say(console, f"{len(running)} jobs go on without this command; given again, it waits for them")
                        running.clear()
                    for _, attempt in running:
                        attempt.ask_to_stop()
                while len(running) < launcher.room and (free := _first(left, running, may_begin)) is not None:
                    left.remove(free)
                    say(console, f"{free.label}: begins; {len(left)} wait")
                    running.append((free, launcher.start(describe(free), partial(say, console))))
                for work, attempt in list(running):
                    if (ending := attempt.poll()) is not None:
                        running.remove((work, attempt))
                        ended += 1
                        failures += _told(work, ending, f"{work.label}, {ended} of {len(waiting)}", console)
                time.sleep(POLL_SECONDS if launcher.room < float("inf") else 10 * POLL_SECONDS)
    finally:  # a second Ctrl-C, or a mistake of ours
        if not launcher.outlives:
            for _, attempt in running:
                attempt.kill()
    stop.deliver()
    return failures


def _first(
    left: Sequence[W], running: Sequence[tuple[W, Any]], may_begin: Callable[[W, Sequence[W], Sequence[W]], bool]
) -> W | None:
    under_way = [work for work, _ in running]
    return next((work for work in left if may_begin(work, left, under_way)), None)


def _told(work: Work, ending: Ending, label: str, console: Console) -> list[Failure]:
    """What became of it, in a line that begins with ``label``; its failure, if it is one."""
    if work.done or ending.stopped:
        say(console, f"{label}: {'done' if work.done else 'stopped; it can go on'}")
        return []
    say(console, f"{label}: FAILED: {ending.why}")
    return [Failure(work.label, ending.why)]
