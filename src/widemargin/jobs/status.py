"""What runs where, what is done, failed and left, and the time it will take: read from the folder of the work.

The command that begins the work writes down its jobs (``jobs/jobs.json``); each job's process writes where it runs and
how it ended (``core/child_process.py``), and training writes a line per epoch. Nothing here asks a running process:
whether a job runs is seen from its process on this machine, from Slurm, or else from when it was last heard of.

The time left is that of epochs like those of the same network that were measured here, and of judgments like those
that are done; what nothing like it was measured for is left out, and counted.
"""

import json
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from widemargin.config.checkpoint import CONFIG, METRICS
from widemargin.config.run import RunConfig
from widemargin.config.toml import read_toml
from widemargin.core.child_process import OUTPUT, STOPPED, read_record
from widemargin.core.files import make_folder, write_text_atomic
from widemargin.core.records import Lines, digest_of
from widemargin.errors import InputError
from widemargin.evaluation.folder import REPORT
from widemargin.jobs.cost import run_passes
from widemargin.jobs.job import RESULT, Task
from widemargin.jobs.launch import JOBS, job_command

PLAN = "jobs.json"
SILENT = 900.0
"""Seconds without a word, after which a job of another machine no longer counts as running."""
STATES = ("running", "waiting", "stopped", "failed", "done")
QUEUED = ("PENDING", "REQUEUED", "READY", "SUSPENDED", "PREEMPTED")


@dataclass(frozen=True, kw_only=True)
class PlannedJob:
    """A job before anything is known of it; folders and files are inside that of the work."""

    label: str
    folder: str
    result: str = ""
    """The file that is there when it is done; without one, its record or its epochs say so."""
    run: str = ""
    epochs: int = 0
    kind: str = ""
    """Jobs of one kind take the same time for an epoch's pass."""
    passes: float = 0.0
    """Of an epoch, over the network."""
    judged: bool = False
    """Whether a judgment follows the training."""


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """What is known of a job now."""

    label: str
    state: str
    where: str = ""
    epoch: int = 0
    epochs: int = 0
    """Epochs, or shards of an evaluation."""
    seconds: float = 0.0
    """Spent on these."""
    silent: float | None = None
    """Seconds since it was heard of, where it runs."""
    why: str = ""
    left: float | None = 0.0
    """Seconds; None where nothing like it was measured."""


def planned_training(label: str, config: RunConfig, *, folder: str, run: str, **more: Any) -> PlannedJob:
    """A job that trains."""
    kind = digest_of(repr(config.model), config.data.name)[:12]
    passes = run_passes(config)["model"] / config.epochs
    return PlannedJob(label=label, folder=folder, run=run, epochs=config.epochs, kind=kind, passes=passes, **more)


def planned(task: Task, out: Path) -> PlannedJob:
    """A row with a seed, or a judgment of it."""
    job, folder = task.job, job_command(out, task.label, ()).folder.name
    place = job.folder.relative_to(out)
    if task.judgment is not None:
        return PlannedJob(label=task.label, folder=folder, result=str(place / task.judgment / REPORT))
    result, run = str(place / RESULT), str(job.trained_in.relative_to(out))
    found = planned_training(task.label, job.trained_config, folder=folder, run=run, result=result, judged=True)
    return found if job.trained is job.row.recipe else replace(found, epochs=0)  # another job's training


def write_plan(out: Path, planned: Sequence[PlannedJob]) -> None:
    """Beside what an earlier command on this folder planned."""
    known = {job.label: job for job in _read_plan(out)[0]} | {job.label: job for job in planned}
    content = {"host": socket.gethostname(), "process": os.getpid(), "jobs": [asdict(job) for job in known.values()]}
    write_text_atomic(make_folder(out / JOBS) / PLAN, json.dumps(content, indent=1))


def _read_plan(out: Path) -> tuple[list[PlannedJob], Mapping[str, Any]]:
    try:
        content = json.loads((out / JOBS / PLAN).read_text(encoding="utf-8"))
        names = {field.name for field in fields(PlannedJob)}
        jobs = [PlannedJob(**{key: value for key, value in job.items() if key in names}) for job in content["jobs"]]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return [], {}
    return jobs, content


def status(out: Path) -> list[JobStatus]:
    """Of every job that was planned in the folder, or of the one run it is."""
    jobs, content = _read_plan(out)
    if not jobs and (out / CONFIG).is_file():
        config = read_toml(out / CONFIG)
        jobs = [planned_training(config.name, config, folder="", run=".")]
    if not jobs:
        raise InputError(
            f"{out} holds no {JOBS}/{PLAN}, as reproduce, sweep and evaluate --launcher write it, and no run; give the "
            "folder that --out named"
        )
    begun_here = content.get("host") == socket.gethostname() and _is_alive(content.get("process"))
    found = [_status(out, job, begun_here=begun_here) for job in jobs]
    return _with_time_left(out, jobs, found)


def _status(out: Path, job: PlannedJob, *, begun_here: bool) -> JobStatus:
    folder = out / JOBS / job.folder
    record, lines = read_record(folder) if job.folder else {}, _epochs(out / job.run) if job.run else []
    known = JobStatus(
        label=job.label,
        state="waiting",
        where=" ".join(filter(None, [record.get("launcher", ""), record.get("id", "")[:12], record.get("host", "")])),
        epoch=len(lines),
        epochs=job.epochs,
        seconds=sum(lines),
    )
    if not job.run and (shard := _shard(folder / OUTPUT)) is not None:
        until = record.get("ended", time.time())
        known = replace(
            known, epoch=shard[0] - 1, epochs=shard[1], seconds=max(0.0, until - record.get("begun", until))
        )
    trained = 0 < job.epochs <= len(lines)
    if (out / job.result).is_file() if job.result else (record.get("code") == 0 or (trained and not record)):
        return replace(known, state="done", epoch=max(known.epoch, known.epochs))
    heard = _heard(folder / OUTPUT, out / job.run / METRICS)
    silent = None if heard is None else max(0.0, time.time() - heard)
    if "ended" in record:
        stopped = record.get("asked") or record.get("code") in STOPPED
        return replace(known, state="stopped" if stopped else "failed", why="" if stopped else _last_words(record))
    queued = _slurm_state(folder)
    if queued is not None and queued != "UNKNOWN":
        if queued in QUEUED:
            return replace(known, where=known.where or "slurm", why=queued.lower())
        if queued not in ("RUNNING", "COMPLETING", "COMPLETED"):
            return replace(known, state="failed", why=queued.lower())
    if record:
        here = record.get("host") == socket.gethostname()
        alive = _is_alive(record.get("process")) if here else silent is not None and silent < SILENT
        return replace(known, state="running" if alive else "stopped", silent=silent)
    if lines or (job.run and (out / job.run / CONFIG).is_file()):  # in the process of the command itself
        alive = begun_here if job.folder else silent is not None and silent < SILENT
        return replace(known, state="running" if alive else "stopped", silent=silent, where=socket.gethostname())
    return known


def _epochs(run: Path) -> list[float]:
    """The seconds of every epoch so far."""
    if not (run / METRICS).is_file():
        return []
    found = {line.get("epoch"): line.get("seconds", 0.0) for line in Lines(run / METRICS, bad=[])}
    return [value for value in found.values() if isinstance(value, int | float)]


def _shard(output: Path) -> tuple[int, int] | None:
    """(which shard is under way, of how many), as the evaluation says."""
    try:
        with output.open("rb") as stream:
            stream.seek(max(0, output.stat().st_size - 4096))
            found = re.findall(r"^shard (\d{1,9}) of (\d{1,9}): ", stream.read().decode(errors="replace"), re.MULTILINE)
    except OSError:
        return None
    return (int(found[-1][0]), int(found[-1][1])) if found else None


def _heard(*paths: Path) -> float | None:
    times = [path.stat().st_mtime for path in paths if path.is_file()]
    return max(times, default=None)


def _last_words(record: Mapping[str, Any]) -> str:
    return str(record.get("last") or f"exit code {record.get('code')}")


def _is_alive(process: Any) -> bool:
    if not isinstance(process, int) or process <= 0:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def _slurm_state(folder: Path) -> str | None:
    if not (folder / "submitted.json").is_file():
        return None
    try:
        from widemargin.integrations.slurm import state_of
    except ImportError:
        return None
    return state_of(folder)


def _with_time_left(out: Path, jobs: Sequence[PlannedJob], found: Sequence[JobStatus]) -> list[JobStatus]:
    """Each with the time it will take, from what was measured of its kind."""
    epochs: dict[str, list[float]] = {}
    judgments: dict[str, list[float]] = {}
    for job, status in zip(jobs, found, strict=True):
        if status.seconds and status.epoch and job.passes:
            epochs.setdefault(job.kind, []).append(status.seconds / status.epoch / job.passes)
        if status.state == "done" and job.judged:
            seconds = _judging_seconds(out / job.result)
            judgments.setdefault(job.kind, []).extend([] if seconds is None else [seconds])
    timed = []
    for job, status in zip(jobs, found, strict=True):
        left: float | None = 0.0
        if status.state not in ("done", "failed"):
            if not job.epochs and status.epoch:  # an evaluation, by what it has done so far
                timed.append(replace(status, left=status.seconds / status.epoch * (status.epochs - status.epoch)))
                continue
            speed, judging = epochs.get(job.kind), judgments.get(job.kind) or [0.0]
            left = None if not speed else fmean(speed) * job.passes * max(0, job.epochs - status.epoch) + fmean(judging)
        timed.append(replace(status, left=left))
    return timed


def _judging_seconds(path: Path) -> float | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("evaluation_seconds")
    except (OSError, ValueError, AttributeError):
        return None
    return float(found) if isinstance(found, int | float) else None


def time_left(found: Sequence[JobStatus]) -> tuple[float | None, int]:
    """(seconds until all that is left is done, as many at a time as run now; how many jobs are left out of it)."""
    left = [status.left for status in found if status.state not in ("done", "failed")]
    known = [seconds for seconds in left if seconds is not None]
    at_a_time = max(1, sum(status.state == "running" for status in found))
    if left and not known:
        return None, len(left)
    return max([sum(known) / at_a_time, *known], default=0.0), len(left) - len(known)
