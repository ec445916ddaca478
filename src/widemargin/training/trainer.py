"""From a configuration and its images to a run that is ready to train: fresh, or as its folder has it.

What an epoch of training added up to.

The end of an epoch: what it added up to, what is measured, its line of metrics with its alarms, its checkpoints.

An epoch of a run: its steps, with checkpoints between them where asked for, then what ends it (``epoch_end``).

A whole run in its folder: begin or resume, train epoch by epoch, keep checkpoints and metrics.

The folder holds ``config.toml`` (written before anything else), ``metrics.jsonl`` (a line per epoch),
``last.safetensors``, ``previous.safetensors`` (the one before) and, where a validation split chooses,
``best.safetensors``. The same call on the same folder goes on where it stopped; a finished run of which only the best
weights were kept stays finished. A step that is not finite leaves
``nonfinite.json`` and ``nonfinite.safetensors`` (``replay``).
"""

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

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
from widemargin.training.alarms import new_alarms
from widemargin.training.context import RunContext, RunOptions
from widemargin.training.graphed_step import make_steps
from widemargin.training.nonfinite import LOOK_EVERY, SKIPPED, make_guard
from widemargin.training.nonfinite_step import check_finite, refuse_not_finite
from widemargin.training.progress import TrainingDisplay
from widemargin.training.run_folder import (
    Line,
    append_line,
    claim_for_group,
    digest_line,
    finished_without_last,
    read_metrics,
    resume,
    save,
    save_at_epoch_end,
    save_averaged,
    save_in_mid_epoch,
    save_the_rest,
)
from widemargin.training.setup import Splits, by_turns, load_splits, make_batches, make_state, plan_for, share_networks
from widemargin.training.state import (
    TrainState,
    better,
    broadcast_state,
    check_same_weights,
    mean_loss,
    patience_is_over,
    update_average,
)
from widemargin.training.step import StepContext, set_learning_rate
from widemargin.training.watch import Metrics, watch


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
    """The state, the same in every process, and what does not change while it trains."""
    splits = splits.to(device)
    with group.sync_errors():
        batches = replace(make_batches(config, splits.train), rank=group.rank, processes=group.count)
        state = make_state(config, splits.train)
        share_networks(state.nets, group, sync_bn=options.sync_bn)
        plan = plan_for(group, make_plan(options.engine, state.nets.model, splits.train.image_shape, device))
        if group.first:
            resume(state, folder, config)
    broadcast_state(state, group)
    steps = make_steps(plan, state, config)
    fuse = plan.engine == "fast" and device.type == "cuda"
    state.guard = make_guard(state.nets, state.optimizer, options.on_nonfinite, fuse=fuse)
    run = RunContext(
        config=config,
        folder=folder,
        splits=splits,
        batches=batches,
        steps=steps,
        plan=plan,
        options=options,
        deadline=deadline,
        stop=stop,
        group=group,
    )
    return state, run


def training_metrics(state: TrainState) -> Line:
    """Means over the epoch under way: the loss, its terms, the penalties (over the steps that took them), accuracy."""
    sums = {name: float(value) for name, value in state.sums.items()}
    samples, skipped = sums.pop("samples"), sums.pop(SKIPPED, None)
    if samples == 0:
        raise InputError(
            f"every step of epoch {state.epoch + 1} was skipped, since none was finite; train with --on-nonfinite stop "
            "to see why"
        )
    counts = {name: sums.pop(name) for name in list(sums) if name.endswith("_samples")}
    line: Line = {"epoch": state.epoch + 1, "samples": int(samples)}
    line |= {name: value / counts.get(f"{name}_samples", samples) for name, value in sums.items() if name != "correct"}
    line["train_accuracy"] = 100.0 * sums["correct"] / samples
    return line if skipped is None else line | {SKIPPED: round(skipped)}


def finish_epoch(state: TrainState, run: RunContext, display: TrainingDisplay, *, began: float) -> None:
    """Measure, write everything down, and go on to the next; a signal while measuring leaves the epoch unfinished."""
    config = run.config
    refuse_not_finite(state, run, wait=True)
    check_finite(state, config)  # waits for the device, so the time below is the whole epoch's
    check_same_weights(state, run.group)
    rate = config.optimizer.schedule(run.step_context(state.epoch, state.step - 1).passed)
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
    if best := better(state.best_averaged, beside, state.epoch):
        state.best_averaged = best
        save_averaged(state, run, "best", scores_beside)
    with run.group.sync_errors():
        if run.group.first:
            state.metrics[state.epoch] = _note(
                run, line
            )  # before the checkpoint: a crash between the two repeats the epoch and its line
    save_at_epoch_end(state, run, scores, scores_beside)
    display.epoch_line(line, config.epochs)


def _scores(measured: Metrics) -> Metrics:
    return {key: value for key, value in measured.items() if key.startswith(("validation_", "test_"))}


def _watched(state: TrainState, run: RunContext, display: TrainingDisplay) -> tuple[Metrics, Metrics]:
    """The measurements after the epoch that was trained last, and those of weights beside; a signal need not wait."""
    config, epoch = run.config, state.epoch + 1
    if epoch % config.watch.every and epoch != config.epochs:
        return {}, {}
    display.busy("measuring")
    began = time.monotonic()
    with _interruptible(state, run):
        measured = _measure(state.eval_model, state, run, epoch)
        beside = {} if state.averaged is None else _measure(state.averaged, state, run, epoch)
    return measured | {"watch_seconds": round(time.monotonic() - began, 3)}, beside


def _measure(model: nn.Module, state: TrainState, run: RunContext, epoch: int) -> Metrics:
    nets, tf32 = replace(state.nets, model=model), run.plan.reduced is not None
    return watch(nets, run.config, run.splits, epoch=epoch, group=run.group, tf32=tf32)


@contextmanager
def _interruptible(state: TrainState, run: RunContext) -> Iterator[None]:
    """A process alone may leave a measurement at a signal; buffers are then as before, whatever mode attacks run in."""
    if run.group.count > 1:  # the others would wait for one that stopped
        yield
        return
    networks = {*state.nets.all().values(), state.eval_model} | (
        {state.averaged} if state.averaged is not None else set()
    )
    buffers = [buffer for net in networks for buffer in net.buffers()]
    kept = [buffer.clone() for buffer in buffers]
    try:
        with run.stop.interrupting():
            yield
    except StopNowError:
        for buffer, before in zip(buffers, kept, strict=True):
            buffer.copy_(before)
        raise


def _note(run: RunContext, line: Line) -> int:
    """Write the epoch's line, with the alarms it raises, each told once in a run; returns its digest."""
    alarms = new_alarms([*read_metrics(run.folder), line], run.config)
    if alarms:
        line["alarms"] = [alarm.name for alarm in alarms]
    append_line(run.folder, line)
    for alarm in alarms:
        told = f"{run.config.name}: epoch {line['epoch']}: {alarm.message}; {alarm.suggestion}"
        warnings.warn(told, WidemarginWarning, stacklevel=2)
    return digest_line(line)


REFRESH_SECONDS = 0.5


def train_epoch(state: TrainState, run: RunContext, display: TrainingDisplay) -> None:
    """The rest of the epoch under way; stops early, with a checkpoint, when time is out or a signal asks for it."""
    steps, every = run.batches.steps_per_epoch, run.options.checkpoint_every
    began = shown = time.monotonic()
    images = 0
    for batch in run.batches.epoch(state.epoch, state.step):
        context = run.step_context(state.epoch, batch.step)
        _prepare(state, run, context)
        run.steps(batch, context)
        refuse_not_finite(state, run, wait=context.total_steps % LOOK_EVERY == 0)
        _average(state, run, context)
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


def _prepare(state: TrainState, run: RunContext, context: StepContext) -> None:
    """Tell the guard which step comes, and set its learning rate."""
    if state.guard is not None:
        state.guard.begin(context.total_steps)
    optimizer = run.config.optimizer
    set_learning_rate(state.optimizer, optimizer.lr * optimizer.schedule(context.passed))


def _average(state: TrainState, run: RunContext, context: StepContext) -> None:
    """Move the averaged weights, where there are any, towards those of the step."""
    averaging = run.config.averaging
    if state.average is not None and averaging is not None:
        update_average(state.average, state.nets.model, decay=averaging.decay, updates=context.total_steps)


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
) -> RunResult:
    """Train ``config`` in the folder ``out``, or go on with the run that is there.

    ``engine`` is auto, eager or fast (``widemargin.engine``). ``splits`` are images of your own in place of what
    ``config.data`` names. ``on_nonfinite`` is stop or skip (``nonfinite``). ``checkpoint_every`` saves in mid-epoch
    too, every so many steps; an epoch that ends within ``checkpoint_pause`` seconds of the last one has none, unless
    the run stops there. ``deterministic`` makes a GPU repeat its bits (``determinism``). Under torchrun the processes
    share each batch (``distributed``); ``sync_bn=False`` leaves batch norm to each of them.

    SIGTERM and SIGINT end the run at a step boundary, with a checkpoint. Then they take their usual course: Ctrl-C is a
    KeyboardInterrupt out of ``train``, SIGTERM ends the process unless it has a handler of its own. Whoever gives a
    ``stop`` gets the unfinished result instead, and finds the signal there.
    """
    out, deadline = Path(out), time.monotonic() + max_seconds
    asked = Stop() if stop is None else stop
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
        training_processes(device) as (group, chosen),
        claim_for_group(out, config, group),
    ):
        with group.sync_errors():
            found = {0: finished_without_last(out, config)} if group.first else {}
        finished = group.all_gather(found)[0]
        if finished is None:
            if splits is None:
                load = partial(load_splits, config.data, seed=config.seed, data_dir=data_dir, device=chosen)
                splits = by_turns(group, load)
            state, run = begin(config, out, splits, chosen, options, group=group, deadline=deadline, stop=asked)
            _train(state, run, console if console is not None and group.first else Console(quiet=True))
            metrics = group.all_gather({0: read_metrics(out)} if group.first else {})[0]
            result = RunResult(out, _finished(state, config), state.epoch, metrics, state.step)
        else:
            result = RunResult(out, finished=True, epoch=config.epochs, metrics=finished)
    if stop is None:
        asked.deliver()
    return result


def _train(state: TrainState, run: RunContext, console: Console) -> None:
    """Epoch by epoch, until the run is finished or over."""
    config = run.config
    total = config.epochs * run.batches.steps_per_epoch
    done = state.epoch * run.batches.steps_per_epoch + state.step
    if run.plan.engine == "fast":
        say(console, f"engine: {run.plan.describe()}")
    if run.group.count > 1:
        graphs = ", without CUDA graphs" if run.splits.train.device.type == "cuda" else ""
        say(console, f"processes: {run.group.count}, which share every batch{graphs}")
    with (
        run.stop.handle_signals(),
        TrainingDisplay(console, name=config.name, total_steps=total, done_steps=done) as display,
    ):
        while not _finished(state, config) and not run.over:
            train_epoch(state, run, display)
        save_the_rest(state, run)


def _finished(state: TrainState, config: RunConfig) -> bool:
    return state.epoch >= config.epochs or (state.step == 0 and patience_is_over(state, config))
