"""The refusal to go on with numbers that are none: a run ends at such a step, and nothing of it is saved as weights."""

import math
from dataclasses import replace
from pathlib import Path

import torch

from widemargin.config import RunConfig
from widemargin.data import Batch
from widemargin.errors import InputError
from widemargin.training.epoch_metrics import mean_loss
from widemargin.training.nonfinite import Found
from widemargin.training.replay import save_step
from widemargin.training.state import TrainState
from widemargin.training.step import Moment
from widemargin.training.underway import Run

MOST = 8
"""So many indices of a batch are named in an error; ``nonfinite.json`` has all."""


def refuse_not_finite(state: TrainState, run: Run, *, wait: bool) -> None:
    """Stop at a step with a value that is not finite; the networks are as they were before it."""
    found = None if state.guard is None else state.guard.found(wait=wait)
    if found is None:
        return
    moment = run.moment(state.epoch, found.step - state.epoch * run.batches.steps_per_epoch)
    batch = next(replace(run.batches, rank=0, processes=1).epoch(moment.epoch, moment.step))
    classes, engine = run.splits.train.num_classes, run.plan.engine
    with run.group.agreeing():
        if run.group.first:
            save_step(run.folder, state.nets, run.config, batch, moment, found, num_classes=classes, engine=engine)
        raise _not_finite(run.config, run.folder, batch, moment, found)


def check_finite(state: TrainState, config: RunConfig) -> None:
    """Neither the loss nor what the last step made of the weights may go into a checkpoint unless it is a number."""
    loss = mean_loss(state)
    if not math.isfinite(loss) and state.sums["samples"] > 0:
        raise _diverged(config, f"the loss became {loss} in epoch {state.epoch + 1}")
    finite = [parameter.isfinite().all() for net in state.nets.all().values() for parameter in net.parameters()]
    if not torch.stack(finite).all():  # one wait for the device
        raise _diverged(config, f"a weight became infinite or not a number in epoch {state.epoch + 1}")


def _not_finite(config: RunConfig, folder: Path, batch: Batch, moment: Moment, found: Found) -> InputError:
    """The end of a run at a step that was not finite, after what it takes to repeat the step was saved."""
    first, *others = found.names
    what = f"the {first}" if first in ("loss", "gradient") else first
    also = f" (and {', '.join(others)})" if others else ""
    indices = ", ".join(map(str, batch.indices[:MOST].tolist())) + (", ..." if len(batch.indices) > MOST else "")
    step = f"epoch {moment.epoch + 1}, step {moment.step + 1} of {moment.steps_per_epoch}"
    diverged = _diverged(config, f"{what} became {_seen(found, first)}{also} in {step}, on training images {indices}")
    return InputError(
        f"{diverged}; widemargin.training.replay({str(folder)!r}) takes that step again, --on-nonfinite skip leaves "
        "such steps out"
    )


def _seen(found: Found, name: str) -> str:
    if name not in found.values:
        return "infinite or not a number"
    value = found.values[name]
    bad = value[~value.isfinite()]
    return str(float(bad[0])) if len(bad) else "infinite or not a number"  # it was another process that saw it


def _diverged(config: RunConfig, what: str) -> InputError:
    weights = "".join(f" or {penalty.name}.weight ({penalty.weight:g})" for penalty in config.penalties())
    return InputError(f"{config.name}: {what}; lower optimizer.lr ({config.optimizer.lr:g}){weights}")
