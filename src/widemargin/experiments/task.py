"""A task: a job to train and judge, or a finished job to judge once more. A task that is done is not done again."""

from dataclasses import dataclass

from rich.console import Console

from widemargin.experiments.job import Job
from widemargin.experiments.judging import judge, judge_with
from widemargin.experiments.kept import weights_of
from widemargin.training import train
from widemargin.training.setup import choose_device, load_splits

CHECKPOINT_PAUSE = 30.0
"""Seconds: an epoch of a small network takes no longer than its checkpoint; a kill costs half a minute at most."""


@dataclass(frozen=True)
class Task:
    """``judgment`` is None for the job itself."""

    job: Job
    judgment: str | None = None

    @property
    def label(self) -> str:
        """For people."""
        return self.job.name + (f", {self.judgment}" if self.judgment else "")

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do."""
        if self.judgment is None:
            return self.job.result() is not None
        return self.job.judged_with(self.judgment) is not None


@dataclass(frozen=True, kw_only=True)
class Means:
    """Where the data is and what computes; ``workers`` jobs share it."""

    data_dir: str | None
    device: str
    workers: int = 1


def perform(task: Task, means: Means, *, max_seconds: float, console: Console) -> None:
    """Do it, or as much of it as the time allows."""
    job, device = task.job, choose_device(means.device)
    if task.judgment is not None:
        judge_with(job, task.judgment, data_dir=means.data_dir, device=device)
        return
    config = job.trained_config
    splits = load_splits(config.data, seed=config.seed, data_dir=means.data_dir, device=device)
    run = train(
        config,
        out=job.trained_in,
        device=means.device,
        splits=splits,
        max_seconds=max_seconds,
        console=console,
        checkpoint_pause=CHECKPOINT_PAUSE,
    )
    if run.finished:
        judge(job, weights_of(job, run), splits, device=device, workers=means.workers)
