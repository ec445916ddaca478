"""One training step, in the order that keeps batch norm right.

Attack (evaluation mode) -> with AWP the weights are perturbed (``awp``) -> train-mode forwards -> penalties (evaluation
mode, after every train-mode forward, so they see the statistics this batch has updated) -> the one mean of training ->
backward -> update -> the perturbation is taken back. Processes that share the batch (``core.batch_share``) add up their
gradients before the update, so all of them make the same one.

``take_step`` is the step; ``EagerSteps`` takes a run's steps with it one by one, ``graphed_step`` captures it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor

from widemargin.config.run import AWPConfig, RunConfig
from widemargin.core import batch_share, randomness
from widemargin.core.batch_share import sharing, sums_over_processes
from widemargin.data.batches import Batch
from widemargin.distributed.sync_batch_norm import average_own_statistics, reduce_gradients
from widemargin.engine.fast_model import FastNetwork
from widemargin.engine.plan import Plan, choosing_kernels
from widemargin.heads.training import after_update
from widemargin.losses import share_predicted
from widemargin.regularizers.penalty import Penalty
from widemargin.training.awp import UNPERTURBED_LOSS, perturbed_weights
from widemargin.training.nonfinite import NO_GUARD, Guard
from widemargin.training.state import TrainState
from widemargin.types import LossAfterAttack, Nets, Objective, Outcome


class StepInputs(Protocol):
    """What a step takes besides the networks and the data: as plain numbers, or in tensors for a CUDA graph."""

    @property
    def epoch(self) -> int:
        """Epochs finished."""

    def generator(self, purpose: str) -> torch.Generator:
        """The random numbers of this step for one purpose."""

    def factor(self, penalty: Penalty, batch_size: int) -> float | Tensor:
        """What multiplies each sample's penalty."""


@dataclass(frozen=True)
class StepContext:
    """Which step of a run this is: what its random numbers and schedules depend on."""

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

    def started(self, awp: AWPConfig | None) -> AWPConfig | None:
        """AWP, where this step takes it."""
        return awp if awp is not None and self.epoch >= awp.start else None


def train_step(
    state: TrainState,
    objective: Objective,
    penalties: tuple[Penalty, ...],
    batch: Batch,
    context: StepContext,
    *,
    nets: Nets | None = None,
    awp: AWPConfig | None = None,
) -> dict[str, Tensor]:
    """Update the state's networks once; ``nets`` are these as a faster engine runs them."""
    nets = state.nets if nets is None else nets
    due, awp = context.due(penalties), context.started(awp)
    x, y = batch.images, batch.labels
    return take_step(nets, state.optimizer, objective, due, x, y, context, guard=state.guard, awp=awp)


def take_step(
    nets: Nets,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    penalties: tuple[Penalty, ...],
    x: Tensor,
    y: Tensor,
    context: StepInputs,
    *,
    guard: Guard = NO_GUARD,
    awp: AWPConfig | None = None,
) -> dict[str, Tensor]:
    """Update the networks once, if the guard lets it, with these penalties; returns per-sample values (B,)."""
    guard.remember()
    with _outcome(nets, objective, x, y, context, awp) as (outcome, values):
        total = outcome.loss
        values |= {"loss": total, "correct": share_predicted(outcome.logits, y), **outcome.terms}
        average_own_statistics(nets)
        for penalty in penalties:
            amount = penalty(nets.model, x, outcome.x_adv, y, generator=context.generator(penalty.name))
            total = total + context.factor(penalty, batch_share.batch_size(len(x))) * amount
            values |= {penalty.name: amount, f"{penalty.name}_samples": torch.ones_like(amount)}
        optimizer.zero_grad(set_to_none=True)
        batch_share.part_of_mean(total).backward()
        reduce_gradients(nets)
        values |= {"total": total, "samples": torch.ones_like(total)}
        updated = guard.passes(values)
        if updated:
            optimizer.step()
    for net in nets.all().values() if updated else ():
        after_update(net)
    return guard.settle(values)


@contextmanager
def _outcome(
    nets: Nets, objective: Objective, x: Tensor, y: Tensor, context: StepInputs, awp: AWPConfig | None
) -> Iterator[tuple[Outcome, dict[str, Tensor]]]:
    """The objective on this batch, and what else there is to log; with AWP the weights are perturbed inside."""
    epoch, generator = context.epoch, context.generator("attack")
    if awp is None:
        yield objective(nets, x, y, epoch=epoch, generator=generator), {}
        return
    x_adv = objective.perturb(nets, x, y, epoch=epoch, generator=generator)

    def outcome() -> Outcome:
        return cast(LossAfterAttack, objective).outcome(nets, x, x_adv, y, epoch=epoch)

    with perturbed_weights(nets, lambda: outcome().loss, gamma=awp.gamma) as before:
        refresh_networks(nets)
        yield outcome(), {UNPERTURBED_LOSS: before}


LR_WRITTEN = "lr_written"
"""The entry of an optimizer's group that says what its learning rate's tensor holds."""


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """The learning rate of the next step; one in a tensor is written when it changes."""
    for group in optimizer.param_groups:
        if not isinstance(group["lr"], Tensor):
            group["lr"] = lr
        elif group.get(LR_WRITTEN) != (group["lr"].data_ptr(), lr):
            group["lr"].fill_(lr)
            group[LR_WRITTEN] = group["lr"].data_ptr(), lr


Steps = Callable[[Batch, StepContext], None]
"""How a run takes its steps: it updates the state's networks and adds the step's values to the state's sums."""
EAGER = Plan()


class EagerSteps:
    """Every step runs its Python; the networks may still be fast ones."""

    def __init__(self, state: TrainState, nets: Nets, config: RunConfig, plan: Plan = EAGER) -> None:
        self._state, self._nets, self._plan = state, nets, plan
        self._objective, self._penalties, self._awp = config.objective, config.penalties(), config.awp

    def __call__(self, batch: Batch, context: StepContext) -> None:
        """Update the networks and the sums."""
        with choosing_kernels(self._plan, batch.labels.device), sharing(batch.share):
            refresh_networks(self._nets)
            values = train_step(
                self._state, self._objective, self._penalties, batch, context, nets=self._nets, awp=self._awp
            )
            self._state.add(sums_over_processes(values))


def refresh_networks(nets: Nets) -> None:
    """Let fast networks take over the weights as they are now."""
    for net in nets.all().values():
        if isinstance(net, FastNetwork):
            net.refresh()
