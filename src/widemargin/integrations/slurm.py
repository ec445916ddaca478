"""Slurm, through submitit: every job is one of Slurm's, queued, placed and queued again by Slurm itself.

``--slurm`` takes sbatch's own options. At the time limit and at a preemption Slurm signals the job, which stops at a
step boundary with a checkpoint and is queued again. Slurm's jobs go on when the command that began them has ended; the
same command finds them by the number that it wrote down (``submitted.json``).
"""

import json
import logging
import re
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit

from widemargin.core.child_process import PATIENCE, POLL_SECONDS, UNFINISHED, ChildProcess, Command, Ending, Say
from widemargin.core.files import write_text_atomic
from widemargin.core.schema import split_list
from widemargin.errors import InputError

SUBMITTED = "submitted.json"
TIMES_REQUEUED = 1000
"""At the time limit; the last one is the user's to say, with scancel."""
_TIME = re.compile(r"(?:(?P<d>\d+)-)?(?P<parts>\d+(?::\d+){0,2})")
_LOG = logging.getLogger("submitit")


class SlurmTask:
    """What runs on the node: the command in a process of its own, stopped and queued again when Slurm says so."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self._child: ChildProcess | None = None

    def __call__(self) -> Ending:
        """How the command ended."""
        job = submitit.JobEnvironment().job_id
        # Slurm's signal reaches every process of the job; this one passes it on as SIGTERM
        self._child = ChildProcess(self.command, wait=True, ignored=signal.SIGUSR2, launcher="slurm", id=job)
        ending = self._child.wait()
        if (
            ending.code in (UNFINISHED, -signal.SIGTERM) and not ending.asked
        ):  # Slurm's, before it kills or signals us, too
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until:
                time.sleep(POLL_SECONDS)
        return ending

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """The time is up: stop in good order; what goes on is the same command."""
        if self._child is not None:
            self._child.stop()
        return submitit.helpers.DelayedSubmission(SlurmTask(self.command))


class SlurmAttempt:
    """A job of Slurm's."""

    def __init__(self, job: Any) -> None:
        self._job, self._asked = job, False

    def poll(self) -> Ending | None:
        """How it ended; a job that died says what Slurm knows of it."""
        if not self._job.done():
            return None
        try:
            found: Ending = self._job.result()
        except submitit.core.utils.UncompletedJobError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip().strip("-")]
            state = f"Slurm's job {self._job.job_id} ended without a result ({self._job.state})"
            return Ending(1, f"{state}: {lines[-1] if lines else 'no output'}", asked=self._asked)
        return Ending(found.code, found.last, asked=found.asked or self._asked)

    def ask_to_stop(self) -> None:
        """Cancel it: Slurm sends SIGTERM, then kills."""
        if not self._asked:
            self._asked = True
            self._job.cancel(check=False)

    def kill(self) -> None:
        """The same."""
        self.ask_to_stop()


@dataclass(frozen=True)
class SlurmLauncher:
    """Submits with one of submitit's executors."""

    executor: Any
    room = float("inf")
    outlives = True

    def start(self, command: Command, say: Say) -> SlurmAttempt:
        """Submit it, unless it is in the queue or running already."""
        path = command.folder / SUBMITTED
        job = self._submitted(command, path)
        if job is None:
            command.folder.mkdir(parents=True, exist_ok=True)
            try:
                job = self.executor.submit(SlurmTask(command))
            except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError, OSError) as error:
                reason = " ".join(str(error).split())[:300]
                raise InputError(f"Slurm refused the job: {reason}; see --slurm, or sbatch's documentation") from None
            record = {"id": job.job_id, "arguments": list(command.arguments), "submitted": time.time()}
            write_text_atomic(path, json.dumps(record))
            say(f"{command.label}: submitted as {job.job_id}")
        else:
            say(f"{command.label}: was submitted as {job.job_id}")
        return SlurmAttempt(job)

    def _submitted(self, command: Command, path: Path) -> Any:
        """The job that an earlier command submitted, if it has not ended."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if record.get("arguments") != list(command.arguments):
            return None
        job = self.executor.job_class(self.executor.folder, str(record.get("id")))
        return None if job.done() else job


def minutes(text: str) -> int:
    """Slurm's durations: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, ..."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise InputError(f"--slurm: time={text} is no duration of Slurm's; write e.g. time=24:00:00 or time=2-12")
    numbers = [int(part) for part in found["parts"].split(":")]
    if found["d"]:
        hours, mins, secs = [*numbers, 0, 0][:3]
    else:
        hours, mins, secs = {1: [0, *numbers, 0], 2: [0, *numbers], 3: numbers}[len(numbers)]
    return max(1, 24 * 60 * int(found["d"] or 0) + 60 * hours + mins + (secs > 0))


def parsed_options(text: str | None) -> dict[str, Any]:
    """``partition=gpu,time=24:00:00,exclusive`` as sbatch's options; one without a value is a flag."""
    options: dict[str, Any] = {}
    for part in filter(None, map(str.strip, split_list(text or ""))):
        key, equals, value = part.partition("=")
        name = key.strip().lstrip("-").replace("_", "-")
        if not re.fullmatch(r"[a-z][a-z-]*", name) or (equals and not value.strip()) or name in options:
            raise InputError(f"--slurm: {part!r} is no option of sbatch's, or is given twice; write e.g. partition=gpu")
        options[name] = value.strip() if equals else True
    if "time" not in options:
        raise InputError("--slurm needs the time limit of a job, after which it is queued again: e.g. time=24:00:00")
    return options


def make_launcher(told: str | None, folder: Path) -> SlurmLauncher:
    """For jobs of the work in that folder, which the nodes must see, too."""
    options = parsed_options(told)
    limit = minutes(options.pop("time"))
    _LOG.setLevel(logging.ERROR)
    try:
        executor = submitit.SlurmExecutor(folder=folder / "jobs" / "slurm", max_num_timeout=TIMES_REQUEUED)
    except RuntimeError as error:  # no srun
        raise InputError(f"--launcher slurm: {error} Run the command on a machine from which sbatch works") from None
    processors = options.get("cpus-per-task")
    executor.update_parameters(
        job_name="widemargin",
        time=limit,
        signal_delay_s=int(PATIENCE),
        additional_parameters={"requeue": True, **options},
        # which srun no longer takes from sbatch, since Slurm 22.05
        srun_args=[f"--cpus-per-task={processors}"] if processors else None,
    )
    return SlurmLauncher(executor)


def state_of(folder: Path) -> str | None:
    """What Slurm says of the job that was submitted last, such as PENDING; None where it cannot be asked."""
    try:
        number = str(json.loads((folder / SUBMITTED).read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError):
        return None
    return str(submitit.SlurmJob(folder, number).state) if shutil.which("sacct") else None
