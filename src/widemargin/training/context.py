"""What stays the same while a run trains: its configuration, data and steps, and the options of this call."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from widemargin.config.run import RunConfig
from widemargin.core.checks import check_count, check_number, choice
from widemargin.core.signals import Stop
from widemargin.data.batches import Batches, LoaderBatches
from widemargin.distributed.group import SINGLE_PROCESS, Processes
from widemargin.engine.plan import Plan
from widemargin.schedules import CyclesMomentum
from widemargin.training.nonfinite import ON_NONFINITE, SKIPPED
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
class StepReport:
    """A step that has been taken, for ``on_step``."""

    epoch: int
    """Epochs count from 1, as in the metrics."""
    step: int
    """Steps taken in this epoch."""
    steps_per_epoch: int
    learning_rate: float
    sums: dict[str, Tensor]
    """Per-sample sums over this step, on the device."""

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """Means over the step's samples, named as in the metrics of an epoch; looking at them waits for the device."""
        return means_of(self.sums)


def means_of(sums: Mapping[str, Tensor]) -> dict[str, Any]:
    """The number of samples and the means of what was summed: the loss, its terms, penalties (over the steps that took
    them), accuracy; the number of samples alone where it is 0.
    """
    values = {name: float(value) for name, value in sums.items()}
    samples, skipped = values.pop("samples"), values.pop(SKIPPED, None)
    counts = {name: values.pop(name) for name in list(values) if name.endswith("_samples")}
    line: dict[str, Any] = {"samples": int(samples)}
    if samples:
        correct = values.pop("correct")
        over = {name: counts.get(f"{name}_samples", samples) for name in values}
        line |= {name: value / over[name] for name, value in values.items() if over[name]}
        line["train_accuracy"] = 100.0 * correct / samples
    return line if skipped is None else line | {SKIPPED: round(skipped)}


OnStep = Callable[[StepReport], object]
OnEpoch = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class RunContext:
    """What stays the same while a run trains, and whether it is to stop."""

    config: RunConfig
    folder: Path
    splits: Splits
    batches: Batches | LoaderBatches
    steps: Steps
    plan: Plan
    options: RunOptions
    deadline: float
    stop: Stop
    group: Processes = SINGLE_PROCESS
    on_step: OnStep | None = None
    on_epoch: OnEpoch | None = None
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
