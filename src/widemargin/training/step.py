"""One training step, in the order that keeps batch norm right.

Attack (evaluation mode) -> train-mode forwards -> penalties (evaluation mode, after every train-mode forward, so they
see the statistics this batch has updated) -> the one mean of training -> backward -> update. Processes that share the
batch (``shares``) add up their gradients before the update, so all of them make the same one.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from widemargin.core import batch_share, randomness
from widemargin.data.batches import Batch
from widemargin.distributed.sync_batch_norm import average_own_statistics, reduce_gradients
from widemargin.heads.training import after_update
from widemargin.regularizers.penalty import Penalty
from widemargin.training.nonfinite import Guard
from widemargin.training.state import TrainState
from widemargin.types import Nets, Objective

WRITTEN = "lr_written"
"""The entry of an optimizer's group that says what its tensor holds."""


class Circumstances(Protocol):
    """What a step is told besides the data."""

    @property
    def epoch(self) -> int:
        """Epochs finished."""
        ...

    def generator(self, purpose: str) -> torch.Generator:
        """The random numbers of this step for one purpose."""
        ...

    def factor(self, penalty: Penalty, batch_size: int) -> float | Tensor:
        """What multiplies each sample's penalty."""
        ...


@dataclass(frozen=True)
class StepContext:
    """Where in the run a step is: what its random numbers and schedules depend on."""

    seed: int
    epoch: int
    step: int
    steps_per_epoch: int

    @property
    def passed(self) -> float:
        """Epochs passed, with fraction."""
        return self.epoch + self.step / self.steps_per_epoch

    @property
    def total_steps(self) -> int:
        """Steps done since the beginning."""
        return self.epoch * self.steps_per_epoch + self.step

    def derived_seed(self, purpose: str) -> int:
        """The seed of this step for one purpose."""
        return randomness.derived_seed(self.seed, purpose, self.epoch, self.step)

    def generator(self, purpose: str) -> torch.Generator:
        """The random numbers of this step for one purpose."""
        return torch.Generator().manual_seed(self.derived_seed(purpose))

    def factor(self, penalty: Penalty, batch_size: int) -> float:
        """What multiplies each sample's penalty now."""
        return penalty.factor(self.passed, batch_size)

    def due(self, penalties: tuple[Penalty, ...]) -> tuple[Penalty, ...]:
        """The penalties that this step takes."""
        return tuple(penalty for penalty in penalties if penalty.due(self.total_steps))


def train_step(
    state: TrainState,
    objective: Objective,
    penalties: tuple[Penalty, ...],
    batch: Batch,
    context: StepContext,
    *,
    nets: Nets | None = None,
) -> dict[str, Tensor]:
    """Update the state's networks once; ``nets`` are these as a faster engine runs them."""
    nets = state.nets if nets is None else nets
    due = context.due(penalties)
    return take_step(nets, state.optimizer, objective, due, batch.images, batch.labels, context, guard=state.guard)


def take_step(
    nets: Nets,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    penalties: tuple[Penalty, ...],
    x: Tensor,
    y: Tensor,
    now: Circumstances,
    *,
    guard: Guard | None = None,
) -> dict[str, Tensor]:
    """Update the networks once, if the guard lets it, with these penalties; returns per-sample values (B,)."""
    if guard is not None:
        guard.remember()
    outcome = objective(nets, x, y, epoch=now.epoch, generator=now.generator("attack"))
    total, values = outcome.loss, {"loss": outcome.loss, "correct": outcome.logits.argmax(1) == y, **outcome.terms}
    average_own_statistics(nets)
    for penalty in penalties:
        amount = penalty(nets.model, x, outcome.x_adv, y, generator=now.generator(penalty.name))
        total = total + now.factor(penalty, batch_share.batch_size(len(x))) * amount
        values |= {penalty.name: amount, f"{penalty.name}_samples": torch.ones_like(amount)}
    optimizer.zero_grad(set_to_none=True)
    batch_share.part_of_mean(total).backward()
    reduce_gradients(nets)
    values |= {"total": total, "samples": torch.ones_like(total)}
    if guard is None or guard.passes(values):
        optimizer.step()
        for net in nets.all().values():
            after_update(net)
    return values if guard is None else guard.settle(values)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """The learning rate of the step to come; one in a tensor is written when it changes."""
    for group in optimizer.param_groups:
        if not isinstance(group["lr"], Tensor):
            group["lr"] = lr
        elif group.get(WRITTEN) != (group["lr"].data_ptr(), lr):
            group["lr"].fill_(lr)
            group[WRITTEN] = group["lr"].data_ptr(), lr
