"""One training step, in the order that keeps batch norm right.

Attack (evaluation mode) -> train-mode forwards -> penalties (evaluation mode, after every train-mode forward, so they
see the statistics this batch has updated) -> the one mean of training -> backward -> update.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from widemargin import randomness
from widemargin.data import Batch
from widemargin.heads import after_update
from widemargin.regularizers import Penalty
from widemargin.training.state import TrainState
from widemargin.types import Objective


@dataclass(frozen=True)
class Moment:
    """Where in the run a step is: what its random numbers and schedules depend on."""

    seed: int
    epoch: int
    step: int
    steps_per_epoch: int

    @property
    def passed(self) -> float:
        """Epochs passed, with fraction."""
        return self.epoch + self.step / self.steps_per_epoch

    def generator(self, purpose: str) -> torch.Generator:
        """The random numbers of this step for one purpose."""
        return randomness.derived(self.seed, purpose, self.epoch, self.step)


def train_step(
    state: TrainState, objective: Objective, penalties: tuple[Penalty, ...], batch: Batch, moment: Moment
) -> dict[str, Tensor]:
    """Update the state's networks once; returns per-sample values (B,) for the log."""
    x, y = batch.images, batch.labels
    outcome = objective(state.nets, x, y, epoch=moment.epoch, generator=moment.generator("attack"))
    total, values = outcome.loss, {"loss": outcome.loss, "correct": outcome.logits.argmax(1) == y, **outcome.terms}
    for penalty in penalties:
        if penalty.due(moment.epoch * moment.steps_per_epoch + moment.step):
            generator = moment.generator(penalty.name)
            amount = penalty(state.nets.model, x, outcome.x_adv, y, generator=generator)
            total = total + penalty.factor(moment.passed, len(x)) * amount
            values |= {penalty.name: amount, f"{penalty.name}_samples": torch.ones_like(amount)}
    state.optimizer.zero_grad(set_to_none=True)
    total.mean().backward()
    state.optimizer.step()
    for net in state.nets.all().values():
        after_update(net)
    return values | {"total": total, "samples": torch.ones_like(total)}


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """The learning rate of the step to come."""
    for group in optimizer.param_groups:
        group["lr"] = lr
