"""What stays the same while a run trains: its configuration, data and steps, and the options of this call."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from widemargin.config.run import RunConfig
from widemargin.core.checks import check_count, check_number, choice
from widemargin.core.signals import Stop
from widemargin.data.batches import Batches
from widemargin.distributed.group import SINGLE_PROCESS, Processes
from widemargin.engine.plan import Plan
from widemargin.schedules import CyclesMomentum
from widemargin.training.nonfinite import ON_NONFINITE
from widemargin.training.setup import Splits
from widemargin.training.step import StepContext, Steps
from widemargin.training.tracking import Tracking


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run trains, which ``config.toml`` does not hold; ``train`` says what each option means."""

    engine: str = "auto"
    on_nonfinite: str = "stop"
    sync_bn: bool | None = None
    checkpoint_every: int | None = None
    deterministic: bool = False
    checkpoint_pause: float = 0.0

    def __post_init__(self) -> None:
        choice("", "--on-nonfinite", self.on_nonfinite, ON_NONFINITE)
        if self.checkpoint_every is not None:
            check_count("--checkpoint-every", self.checkpoint_every)
        rule, hint = "a number of seconds, 0 or more", "0 saves at the end of every epoch"
        check_number("checkpoint_pause", self.checkpoint_pause, is_valid=lambda s: s >= 0, rule=rule, hint=hint)


@dataclass(frozen=True)
class RunContext:
    """What stays the same while a run trains, and whether it is to stop."""

    config: RunConfig
    folder: Path
    splits: Splits
    batches: Batches
    steps: Steps
    plan: Plan
    options: RunOptions
    deadline: float
    stop: Stop
    group: Processes = SINGLE_PROCESS
    tracking: Tracking = field(default_factory=Tracking)

    @property
    def must_stop(self) -> bool:
        """Whether to stop at the next step boundary: the time is over or a signal asked for it, in some process."""
        return self.group.any(time.monotonic() >= self.deadline or self.stop.received is not None)

    def step_context(self, epoch: int, step: int) -> StepContext:
        """That step of that epoch."""
        steps = self.batches.steps_per_epoch
        return StepContext(seed=self.config.seed, epoch=epoch, step=step, steps_per_epoch=steps)

    def learning_rate(self, context: StepContext) -> float:
        """The learning rate of that step."""
        return self.config.optimizer.lr * self.config.optimizer.schedule(context.passed)

    def momentum(self, context: StepContext) -> float | None:
        """The momentum of that step, where the schedule sets it."""
        schedule = self.config.optimizer.schedule
        return schedule.momentum(context.passed) if isinstance(schedule, CyclesMomentum) else None
