"""An epoch of a run: its steps, with checkpoints between them where asked for, then what ends it (``epoch_end``)."""

import time

from widemargin.training.averaging import update_average
from widemargin.training.epoch_end import finish_epoch
from widemargin.training.epoch_metrics import mean_loss
from widemargin.training.nonfinite import LOOK_EVERY
from widemargin.training.progress import TrainingDisplay
from widemargin.training.refusal import refuse_not_finite
from widemargin.training.run_checkpoint import save_in_mid_epoch
from widemargin.training.state import TrainState
from widemargin.training.step import Moment, set_learning_rate
from widemargin.training.underway import Run

REFRESH_SECONDS = 0.5


def train_epoch(state: TrainState, run: Run, display: TrainingDisplay) -> None:
    """The rest of the epoch under way; stops early, with a checkpoint, when time is out or a signal asks for it."""
    steps, every = run.batches.steps_per_epoch, run.options.checkpoint_every
    began = shown = time.monotonic()
    images = 0
    for batch in run.batches.epoch(state.epoch, state.step):
        moment = run.moment(state.epoch, batch.step)
        _prepare(state, run, moment)
        run.steps(batch, moment)
        refuse_not_finite(state, run, wait=moment.total_steps % LOOK_EVERY == 0)
        _average(state, run, moment)
        state.step, images = batch.step + 1, images + batch.size
        display.advance()
        if time.monotonic() - shown > REFRESH_SECONDS:
            shown = time.monotonic()
            refuse_not_finite(state, run, wait=run.group.count == 1)  # each process has a clock of its own
            if display.shown:  # the loss waits for the device
                display.show(loss=mean_loss(state), images_per_second=images / (shown - began))
        if run.over and (state.step < steps or run.asked):
            save_in_mid_epoch(state, run)
            return
        if every is not None and state.step < steps and state.step % every == 0:
            save_in_mid_epoch(state, run)
    finish_epoch(state, run, display, began=began)


def _prepare(state: TrainState, run: Run, moment: Moment) -> None:
    """Tell the guard which step comes, and set its learning rate."""
    if state.guard is not None:
        state.guard.begin(moment.total_steps)
    optimizer = run.config.optimizer
    set_learning_rate(state.optimizer, optimizer.lr * optimizer.schedule(moment.passed))


def _average(state: TrainState, run: Run, moment: Moment) -> None:
    """Move the averaged weights, where there are any, towards those of the step."""
    averaging = run.config.averaging
    if state.average is not None and averaging is not None:
        update_average(state.average, state.nets.model, decay=averaging.decay, updates=moment.total_steps)
