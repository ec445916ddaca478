"""A run under way: what stays the same while it trains, and whether it is to stop."""

import time
from dataclasses import dataclass
from pathlib import Path

from widemargin.config import RunConfig
from widemargin.data import Batches
from widemargin.engine import Plan
from widemargin.evaluation.accuracy import ALONE
from widemargin.evaluation.processes import Processes
from widemargin.training.options import Options
from widemargin.training.setup import Splits
from widemargin.training.signals import Stop
from widemargin.training.step import Moment
from widemargin.training.steps import Steps


@dataclass(frozen=True)
class Run:
    """What stays the same while a run trains."""

    config: RunConfig
    folder: Path
    splits: Splits
    batches: Batches
    steps: Steps
    plan: Plan
    options: Options
    deadline: float
    stop: Stop
    group: Processes = ALONE

    @property
    def out_of_time(self) -> bool:
        """Whether the time given is over."""
        return time.monotonic() >= self.deadline

    @property
    def over(self) -> bool:
        """Whether to stop at the next step boundary: the time is over, or a signal asked for it, in some process."""
        return self.group.any(self.out_of_time or self.stop.asked is not None)

    @property
    def asked(self) -> bool:
        """Whether a signal asked to stop, in some process."""
        return self.group.any(self.stop.asked is not None)

    def moment(self, epoch: int, step: int) -> Moment:
        """That step of that epoch."""
        steps = self.batches.steps_per_epoch
        return Moment(seed=self.config.seed, epoch=epoch, step=step, steps_per_epoch=steps)
