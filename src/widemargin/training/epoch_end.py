"""The end of an epoch: what it added up to, what is measured, its line of metrics with its alarms, its checkpoints."""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from widemargin.errors import WidemarginWarning
from widemargin.training.alarms import new_alarms
from widemargin.training.distributed import check_alike
from widemargin.training.epoch_metrics import training_metrics
from widemargin.training.log import Line, append_line, digest_line, read_metrics
from widemargin.training.progress import TrainingDisplay
from widemargin.training.refusal import check_finite, refuse_not_finite
from widemargin.training.run_checkpoint import save, save_at_epoch_end, save_beside, save_in_mid_epoch
from widemargin.training.selection import better
from widemargin.training.signals import StopNowError
from widemargin.training.state import TrainState
from widemargin.training.underway import Run
from widemargin.training.watch import AVERAGED, Metrics, watch


def finish_epoch(state: TrainState, run: Run, display: TrainingDisplay, *, began: float) -> None:
    """Measure, write everything down, and go on to the next; a signal while measuring leaves the epoch unfinished."""
    config = run.config
    refuse_not_finite(state, run, wait=True)
    check_finite(state, config)  # waits for the device, so the time below is the whole epoch's
    check_alike(state, run.group)
    rate = config.optimizer.schedule(run.moment(state.epoch, state.step - 1).passed)
    line = training_metrics(state) | {"seconds": round(time.monotonic() - began, 3), "lr": config.optimizer.lr * rate}
    try:
        measured, beside = _watched(state, run, display)
    except StopNowError:
        save_in_mid_epoch(state, run)  # every step of the epoch is done; what was measured will be measured again
        return
    line |= measured | {f"{AVERAGED}_{name}": value for name, value in beside.items()}
    state.epoch, state.step, state.sums = state.epoch + 1, 0, {}
    scores, scores_beside = _scores(measured), _scores(beside)
    if best := better(state.best, measured, state.epoch):
        state.best = best
        save(state, run, "best", scores)
    if best := better(state.best_beside, beside, state.epoch):
        state.best_beside = best
        save_beside(state, run, "best", scores_beside)
    with run.group.agreeing():
        if run.group.first:
            state.metrics[state.epoch] = _note(
                run, line
            )  # before the checkpoint: a crash between the two repeats the epoch and its line
    save_at_epoch_end(state, run, scores, scores_beside)
    display.epoch_line(line, config.epochs)


def _scores(measured: Metrics) -> Metrics:
    return {key: value for key, value in measured.items() if key.startswith(("validation_", "test_"))}


def _watched(state: TrainState, run: Run, display: TrainingDisplay) -> tuple[Metrics, Metrics]:
    """The measurements after the epoch that was trained last, and those of weights beside; a signal need not wait."""
    config, epoch = run.config, state.epoch + 1
    if epoch % config.watch.every and epoch != config.epochs:
        return {}, {}
    display.busy("measuring")
    began = time.monotonic()
    with _interruptible(state, run):
        measured = _measure(state.judged, state, run, epoch)
        beside = {} if state.beside is None else _measure(state.beside, state, run, epoch)
    return measured | {"watch_seconds": round(time.monotonic() - began, 3)}, beside


def _measure(model: nn.Module, state: TrainState, run: Run, epoch: int) -> Metrics:
    nets, tf32 = replace(state.nets, model=model), run.plan.reduced is not None
    return watch(nets, run.config, run.splits, epoch=epoch, group=run.group, tf32=tf32)


@contextmanager
def _interruptible(state: TrainState, run: Run) -> Iterator[None]:
    """A process alone may leave a measurement at a signal; buffers are then as before, whatever mode attacks run in."""
    if run.group.count > 1:  # the others would wait for one that stopped
        yield
        return
    networks = {*state.nets.all().values(), state.judged} | ({state.beside} if state.beside is not None else set())
    buffers = [buffer for net in networks for buffer in net.buffers()]
    kept = [buffer.clone() for buffer in buffers]
    try:
        with run.stop.at_once():
            yield
    except StopNowError:
        for buffer, before in zip(buffers, kept, strict=True):
            buffer.copy_(before)
        raise


def _note(run: Run, line: Line) -> int:
    """Write the epoch's line, with the alarms it raises, each told once in a run; returns its digest."""
    alarms = new_alarms([*read_metrics(run.folder), line], run.config)
    if alarms:
        line["alarms"] = [alarm.name for alarm in alarms]
    append_line(run.folder, line)
    for alarm in alarms:
        told = f"{run.config.name}: epoch {line['epoch']}: {alarm.message}; {alarm.suggestion}"
        warnings.warn(told, WidemarginWarning, stacklevel=2)
    return digest_line(line)
