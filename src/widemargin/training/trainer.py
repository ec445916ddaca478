"""A run in its folder: begin or resume, train epoch by epoch, select the best, stop, keep checkpoints and metrics.

The folder holds ``config.toml`` (written before anything else), ``metrics.jsonl`` (a line per epoch),
``last.safetensors`` (everything a resumed run needs), ``previous.safetensors`` (the one before) and, where a validation
split selects, ``best.safetensors``; ``run_folder`` reads and writes them. The same call on the same folder goes on
where the run stopped, also in the middle of an epoch. A finished run of which only the best weights were kept stays
finished. A step that is not finite leaves ``nonfinite.json`` and ``nonfinite.safetensors`` (``nonfinite_step``).

From top to bottom: ``train`` -> ``begin`` -> ``train_epochs`` -> ``train_epoch`` -> ``finish_epoch`` (measure, select,
write down).
"""

import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from widemargin.config.checkpoint import AVERAGED
from widemargin.config.run import RunConfig
from widemargin.core.precision import deterministic_algorithms
from widemargin.core.screen import say
from widemargin.core.signals import Stop, StopNowError
from widemargin.distributed.group import Processes, training_processes
from widemargin.engine.plan import make_plan
from widemargin.errors import InputError, WidemarginWarning
from widemargin.optimizers import can_fuse, set_momentum
from widemargin.training.alarms import new_alarms
from widemargin.training.context import OnEpoch, OnStep, RunContext, RunOptions, StepReport, means_of
from widemargin.training.fine_tuning import load_initial_weights
from widemargin.training.graphed_step import make_steps
from widemargin.training.nonfinite import LOOK_EVERY, make_guard
from widemargin.training.nonfinite_step import check_finite, refuse_not_finite
from widemargin.training.progress import TrainingDisplay
from widemargin.training.run_folder import (
    Line,
    append_line,
    claim_for_group,
    digest_line,
    finished_without_last,
    has_checkpoint,
    read_metrics,
    resume,
    save,
    save_averaged,
)
from widemargin.training.setup import Splits, load_splits, make_batches, make_state, synchronize_batch_norms
from widemargin.training.state import (
    Best,
    TrainState,
    broadcast_state,
    check_same_weights,
    mean_loss,
    score_of,
    update_average,
)
from widemargin.training.step import set_learning_rate
from widemargin.training.tracking import Tracking
from widemargin.training.watch import Metrics, watch
from widemargin.types import Tracker

REFRESH_SECONDS = 0.5
"""Between two updates of what a person sees."""


@dataclass(frozen=True)
class RunResult:
    """How a call of ``train`` ended."""

    folder: Path
    finished: bool
    epoch: int
    metrics: list[Line]
    step: int = 0
    """Steps done of the epoch after."""


def train(
    config: RunConfig,
    *,
    out: str | Path,
    data_dir: str | None = None,
    device: str = "auto",
    max_seconds: float = math.inf,
    console: Console | None = None,
    splits: Splits | None = None,
    engine: str = "auto",
    on_nonfinite: str = "stop",
    stop: Stop | None = None,
    sync_bn: bool | None = None,
    checkpoint_every: int | None = None,
    deterministic: bool = False,
    checkpoint_pause: float = 0.0,
    workers: int | None = None,
    on_step: OnStep | None = None,
    on_epoch: OnEpoch | None = None,
    trackers: Sequence[Tracker] = (),
) -> RunResult:
    """Train ``config`` in the folder ``out``, or go on with the run that is there.

    ``engine`` is auto, eager or fast (``widemargin.engine``). ``splits`` are images of your own in place of what
    ``config.data`` names, or DataLoaders (``Splits.from_loaders``). ``on_nonfinite`` is stop or skip (``nonfinite``).
    ``checkpoint_every`` saves in mid-epoch too, every so many steps; an epoch that ends within ``checkpoint_pause``
    seconds of the last one has none, unless the run stops there. ``deterministic`` makes a GPU repeat its bits
    (``core.precision``). ``workers`` processes decode streamed images, None one per CPU. Under torchrun the processes
    share each batch (``distributed``); ``sync_bn=False`` leaves batch norm to each of them.

    ``on_step`` gets a ``StepReport`` after every step, ``on_epoch`` the line of the metrics after every epoch; of
    several processes the first calls them. What they raise ends the run, which goes on from its last checkpoint.
    ``trackers`` are told what is measured (``tracking``).

    SIGTERM and SIGINT end the run at a step boundary, with a checkpoint. Then they take their usual course: Ctrl-C is a
    KeyboardInterrupt out of ``train``, SIGTERM ends the process unless it has a handler of its own. Whoever gives a
    ``stop`` gets the unfinished result instead, and finds the signal there.
    """
    out, deadline = Path(out), time.monotonic() + max_seconds
    signals = Stop() if stop is None else stop
    options = RunOptions(
        engine=engine,
        on_nonfinite=on_nonfinite,
        sync_bn=sync_bn,
        checkpoint_every=checkpoint_every,
        deterministic=deterministic,
        checkpoint_pause=checkpoint_pause,
    )
    with (
        deterministic_algorithms(deterministic),
        training_processes(device) as (group, own_device),
        claim_for_group(out, config, group),
    ):
        tracking = Tracking(trackers if group.first else ())
        metrics = group.on_first(lambda: finished_without_last(out, config))
        if metrics is not None:
            tracking.begin(config, metrics)
            tracking.finish()
            result = RunResult(out, finished=True, epoch=config.epochs, metrics=metrics)
        else:
            if splits is None:
                read = partial(load_splits, config.data, seed=config.seed, data_dir=data_dir, workers=workers)
                load = partial(read, device=own_device)
                splits = group.first_on_machine_first(load)
            state, run = begin(config, out, splits, own_device, options, group=group, deadline=deadline, stop=signals)
            if group.first:
                run = replace(run, on_step=on_step, on_epoch=on_epoch)
            tracking.begin(config, [] if not group.first else read_metrics(out))
            try:
                shown = console if console is not None and group.first else Console(quiet=True)
                train_epochs(state, replace(run, tracking=tracking), shown)
            finally:
                tracking.finish()
            metrics = group.on_first(lambda: read_metrics(out))
            result = RunResult(out, _finished(state, config), state.epoch, metrics, state.step)
    if stop is None:
        signals.deliver()
    return result


def begin(
    config: RunConfig,
    folder: Path,
    splits: Splits,
    device: torch.device,
    options: RunOptions,
    *,
    group: Processes,
    deadline: float,
    stop: Stop,
) -> tuple[TrainState, RunContext]:
    """The state, fresh or as the folder has it, the same in every process, and what does not change while it trains."""
    splits = splits.to(device)
    with group.sync_errors():
        batches = replace(make_batches(config, splits.train, splits.extra), rank=group.rank, processes=group.count)
        state = make_state(config, splits.train)
        synchronize_batch_norms(state.nets, group, sync_bn=options.sync_bn)
        if group.first and not has_checkpoint(folder):
            load_initial_weights(state, config)
        if group.first:
            resume(state, folder, config)
    broadcast_state(state, group)
    began_as, attacks = group.on_first(lambda: state.engine), config.objective.attacks
    plan = make_plan(
        options.engine, state.nets.model, splits.train.image_shape, device, attacks=attacks, began_as=began_as
    )
    if group.count > 1 or not can_fuse(state.optimizer):  # no CUDA graph holds messages between processes
        plan = replace(plan, graphs=False)
    steps = make_steps(plan, state, config)
    fuse = plan.engine == "fast" and device.type == "cuda"
    state.guard = make_guard(state.nets, state.optimizer, options.on_nonfinite, fuse=fuse)
    run = RunContext(config, folder, splits, batches, steps, plan, options, deadline, stop, group)
    if config.init_from is not None and state.epoch == state.step == 0:
        save(state, run, "last", {})  # which a resumed run goes on from, whatever has become of the file
    return state, run


def train_epochs(state: TrainState, run: RunContext, console: Console) -> None:
    """Epoch by epoch, until the run is finished, or must stop with a checkpoint to go on from."""
    config, per_epoch = run.config, run.batches.steps_per_epoch
    if run.plan.engine == "fast":
        say(console, f"engine: {run.plan.describe()}")
    if run.group.count > 1:
        graphs = ", without CUDA graphs" if run.splits.train.device.type == "cuda" else ""
        say(console, f"processes: {run.group.count}, which share every batch{graphs}")
    if state.initial_weights is not None and state.epoch == state.step == 0:
        say(console, f"begins with the weights of {config.init_from}: {state.initial_weights}")
    total, done = config.epochs * per_epoch, state.epoch * per_epoch + state.step
    with (
        run.stop.handle_signals(),
        TrainingDisplay(console, name=config.name, total_steps=total, done_steps=done) as display,
    ):
        while not _finished(state, config) and not run.must_stop:
            train_epoch(state, run, display)
        if state.unsaved is not None:
            save(state, run, "last", *state.unsaved)


def _finished(state: TrainState, config: RunConfig) -> bool:
    return state.epoch >= config.epochs or (state.step == 0 and patience_is_over(state, config))


def train_epoch(state: TrainState, run: RunContext, display: TrainingDisplay) -> None:
    """The rest of the current epoch; leaves it early, with a checkpoint, when time is out or a signal came."""
    steps, every = run.batches.steps_per_epoch, run.options.checkpoint_every
    began = shown = time.monotonic()
    images = 0
    for batch in run.batches.epoch(state.epoch, state.step):
        context = run.step_context(state.epoch, batch.step)
        state.guard.begin(context.total_steps)
        set_learning_rate(state.optimizer, run.learning_rate(context))
        if (momentum := run.momentum(context)) is not None:
            set_momentum(state.optimizer, momentum)
        before = {} if run.on_step is None else {name: value.clone() for name, value in state.sums.items()}
        run.steps(batch, context)
        refuse_not_finite(state, run, wait=context.total_steps % LOOK_EVERY == 0)
        if state.average is not None and run.config.averaging is not None:
            update_average(
                state.average,
                state.nets.model,
                decay=run.config.averaging.decay,
                updates=run.config.averaging.updates(context.total_steps, steps),
                copies_statistics=run.config.averaging.batch_norm == "copy",
            )
        state.step, images = batch.step + 1, images + batch.size
        display.advance()
        if run.on_step is not None:
            sums = {name: value - before.get(name, 0) for name, value in state.sums.items()}
            run.on_step(StepReport(state.epoch + 1, state.step, steps, run.learning_rate(context), sums))
        if time.monotonic() - shown > REFRESH_SECONDS:
            shown = time.monotonic()
            refuse_not_finite(state, run, wait=run.group.count == 1)  # each process has a clock of its own
            if display.shown:  # the loss waits for the device
                display.show(loss=mean_loss(state), images_per_second=images / (shown - began))
        if run.must_stop and (state.step < steps or run.group.any(run.stop.received is not None)):
            _save_in_mid_epoch(state, run)
            return
        if every is not None and state.step < steps and state.step % every == 0:
            _save_in_mid_epoch(state, run)
    finish_epoch(state, run, display, began=began)


def _save_in_mid_epoch(state: TrainState, run: RunContext) -> None:
    """Write the last checkpoint between two steps, unless something is not finite."""
    refuse_not_finite(state, run, wait=True)
    check_finite(state, run.config)
    save(state, run, "last", {})


def finish_epoch(state: TrainState, run: RunContext, display: TrainingDisplay, *, began: float) -> None:
    """Measure, select, write everything down, and go on to the next; a signal while measuring leaves it unfinished."""
    config, group = run.config, run.group
    refuse_not_finite(state, run, wait=True)
    check_finite(state, config)  # waits for the device, so the time below is the whole epoch's
    check_same_weights(state, group)
    lr = run.learning_rate(run.step_context(state.epoch, state.step - 1))
    line = training_metrics(state) | {"seconds": round(time.monotonic() - began, 3), "lr": lr}
    try:
        measured, of_averaged = _measure(state, run, display)
    except StopNowError:
        _save_in_mid_epoch(state, run)  # every step of the epoch is done; what was measured will be measured again
        return
    line |= measured | {f"{AVERAGED}_{name}": value for name, value in of_averaged.items()}
    state.end_epoch()
    scores, averaged_scores = (
        {key: value for key, value in found.items() if key.startswith(("validation_", "test_"))}
        for found in (measured, of_averaged)
    )
    if best := better(state.best, measured, state.epoch):
        state.best = best
        save(state, run, "best", scores)
    if best := better(state.best_averaged, of_averaged, state.epoch):
        state.best_averaged = best
        save_averaged(state, run, "best", averaged_scores)
    # before the checkpoint: a crash between the two repeats the epoch and its line
    state.metrics[state.epoch] = group.on_first(lambda: _write_line(run, line))
    _track(state, run, line, is_measured=bool(measured))
    state.unsaved = scores, averaged_scores
    if group.any(time.monotonic() - state.saved_at >= run.options.checkpoint_pause):
        save(state, run, "last", scores, averaged_scores)
    display.epoch_line(line, config.epochs)
    if run.on_epoch is not None:
        run.on_epoch(dict(line))


def training_metrics(state: TrainState) -> Line:
    """Means over the current epoch: the loss, its terms, the penalties (over the steps that took them), accuracy."""
    line = means_of(state.sums)
    if line["samples"] == 0:
        raise InputError(
            f"every step of epoch {state.epoch + 1} was skipped, since none was finite; train with --on-nonfinite stop "
            "to see why"
        )
    return {"epoch": state.epoch + 1} | line


def _measure(state: TrainState, run: RunContext, display: TrainingDisplay) -> tuple[Metrics, Metrics]:
    """What ``watch`` finds after this epoch: of the evaluation model, and of averaged weights evaluated besides."""
    config, epoch, tf32 = run.config, state.epoch + 1, run.plan.reduced is not None
    if epoch % config.watch.every and epoch != config.epochs:
        return {}, {}
    display.busy("measuring")
    began = time.monotonic()

    def measure(model: nn.Module | None) -> Metrics:
        if model is None:
            return {}
        nets = replace(state.nets, model=model)
        return watch(nets, config, run.splits, epoch=epoch, group=run.group, tf32=tf32)

    with _interruptible(state, run):
        measured, of_averaged = measure(state.eval_model), measure(state.averaged)
    return measured | {"watch_seconds": round(time.monotonic() - began, 3)}, of_averaged


@contextmanager
def _interruptible(state: TrainState, run: RunContext) -> Iterator[None]:
    """A single process may leave a measurement at a signal; buffers are then as they were before it."""
    if run.group.count > 1:  # the others would wait for one that stopped
        yield
        return
    networks = {*state.nets.all().values(), *([] if state.average is None else [state.average])}
    buffers = [buffer for net in networks for buffer in net.buffers()]
    before = [buffer.clone() for buffer in buffers]
    try:
        with run.stop.interrupting():
            yield
    except StopNowError:
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)
        raise


def better(best: Best | None, measured: Mapping[str, Any], epoch: int) -> Best | None:
    """This epoch, if it is better than the best so far on the validation split; never selected on the test set."""
    score = score_of(measured)
    if score is None or (best is not None and score <= best.score):
        return None
    return Best(score=score, epoch=epoch)


def patience_is_over(state: TrainState, config: RunConfig) -> bool:
    """Whether early stopping ends the run: no better epoch for as many watched epochs as it has patience for."""
    if config.stopping is None or state.best is None:
        return False
    return state.epoch - state.best.epoch >= config.stopping.patience * config.watch.every


def _track(state: TrainState, run: RunContext, line: Line, *, is_measured: bool) -> None:
    """Tell the trackers, whose pictures are of held-out images where there are any."""
    splits = run.splits
    if is_measured and run.tracking.shows_pictures:
        run.tracking.show(
            replace(state.nets, model=state.eval_model), splits.validation or splits.test, run.config, state.epoch
        )
    run.tracking.log(line)


def _write_line(run: RunContext, line: Line) -> int:
    """Write the epoch's line, with the alarms it raises, each once in a run; returns its digest."""
    alarms = new_alarms([*read_metrics(run.folder), line], run.config)
    if alarms:
        line["alarms"] = [alarm.name for alarm in alarms]
    append_line(run.folder, line)
    for alarm in alarms:
        message = f"{run.config.name}: epoch {line['epoch']}: {alarm.message}; {alarm.suggestion}"
        warnings.warn(message, WidemarginWarning, stacklevel=2)
    return digest_line(line)
