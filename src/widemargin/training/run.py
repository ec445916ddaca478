"""A whole run in its folder: begin or resume, train epoch by epoch, keep checkpoints and metrics.

The folder holds ``config.toml`` (written before anything else), ``metrics.jsonl`` (a line per epoch),
``last.safetensors``, ``previous.safetensors`` (the one before) and, where a validation split chooses,
``best.safetensors``. The same call on the same folder goes on where it stopped. A step that is not finite leaves
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

from rich.console import Console

from widemargin.checkpoints import (
    PREVIOUS,
    Checkpoint,
    Description,
    Which,
    fitting,
    load_newest,
    load_weights,
    save_checkpoint,
    software_versions,
)
from widemargin.checks import check_count, choice
from widemargin.config import RunConfig
from widemargin.config_files import to_dict
from widemargin.data import Batches
from widemargin.engine import Plan, make_plan
from widemargin.errors import WidemarginWarning
from widemargin.evaluation.accuracy import ALONE
from widemargin.evaluation.processes import Processes
from widemargin.evaluation.target import BEST, LAST
from widemargin.training.alarms import new_alarms
from widemargin.training.averaging import update_average
from widemargin.training.distributed import (
    by_turns,
    check_alike,
    claimed_by_first,
    hand_out,
    plan_for,
    share_networks,
    training_processes,
)
from widemargin.training.epoch_metrics import check_finite, mean_loss, not_finite, training_metrics
from widemargin.training.log import Line, append_line, keep_until, read_metrics
from widemargin.training.nonfinite import LOOK_EVERY, ON_NONFINITE, make_guard
from widemargin.training.progress import TrainingDisplay
from widemargin.training.replay import save_step
from widemargin.training.selection import describe_selection, note_score, patience_is_over
from widemargin.training.setup import Splits, load_splits, make_batches, make_state
from widemargin.training.signals import Stop, StopNowError
from widemargin.training.state import TrainState
from widemargin.training.step import Moment, set_learning_rate
from widemargin.training.steps import Steps, make_steps
from widemargin.training.watch import watch

REFRESH_SECONDS = 0.5


@dataclass(frozen=True)
class RunResult:
    """How a call of ``train`` ended."""

    folder: Path
    finished: bool
    epoch: int
    metrics: list[Line]


@dataclass(frozen=True)
class Run:
    """What stays the same while a run trains."""

    config: RunConfig
    folder: Path
    splits: Splits
    batches: Batches
    steps: Steps
    plan: Plan
    deadline: float
    stop: Stop
    group: Processes = ALONE
    checkpoint_every: int | None = None

    @property
    def out_of_time(self) -> bool:
        """Whether the time given is over."""
        return time.monotonic() >= self.deadline

    @property
    def over(self) -> bool:
        """Whether to stop at the next step boundary: the time is over, or a signal asked for it, in some process."""
        return self.group.any(self.out_of_time or self.stop.asked is not None)

    @property
    def asked(self) -> bool:
        """Whether a signal asked to stop, in some process."""
        return self.group.any(self.stop.asked is not None)


def train(
    config: RunConfig,
    *,
    out: Path,
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
) -> RunResult:
    """Train ``config`` in the folder ``out``, or go on with the run that is there.

    ``engine`` is auto, eager or fast (``widemargin.engine``). ``splits`` are images of your own in place of what
    ``config.data`` names. ``on_nonfinite`` is stop or skip (``nonfinite``). ``checkpoint_every`` saves in mid-epoch
    too, every so many steps. Under torchrun the processes share each batch (``distributed``); ``sync_bn=False`` leaves
    batch norm to each of them.

    SIGTERM and SIGINT end the run at a step boundary, with a checkpoint. Then they take their usual course: Ctrl-C is a
    KeyboardInterrupt out of ``train``, SIGTERM ends the process unless it has a handler of its own. Whoever gives a
    ``stop`` gets the unfinished result instead, and finds the signal there.
    """
    deadline = time.monotonic() + max_seconds
    asked = Stop() if stop is None else stop
    choice("", "--on-nonfinite", on_nonfinite, ON_NONFINITE)
    if checkpoint_every is not None:
        check_count("--checkpoint-every", checkpoint_every)
    with training_processes(device) as (group, chosen), claimed_by_first(out, config, group):
        if splits is None:
            load = partial(load_splits, config.data, seed=config.seed, data_dir=data_dir, device=chosen)
            splits = by_turns(group, load)
        splits = splits.to(chosen)
        with group.agreeing():
            batches = replace(make_batches(config, splits.train), rank=group.rank, processes=group.count)
            state = make_state(config, splits.train)
            share_networks(state.nets, group, sync_bn=sync_bn)
            plan = plan_for(group, make_plan(engine, state.nets.model, splits.train.image_shape, chosen))
            if group.first:
                _resume(state, out)
        hand_out(state, group)
        steps = make_steps(plan, state, config)
        fuse = plan.engine == "fast" and chosen.type == "cuda"
        state.guard = make_guard(state.nets, state.optimizer, on_nonfinite, fuse=fuse)
        run = Run(
            config=config,
            folder=out,
            splits=splits,
            batches=batches,
            steps=steps,
            plan=plan,
            deadline=deadline,
            stop=asked,
            group=group,
            checkpoint_every=checkpoint_every,
        )
        _train(state, run, console if console is not None and group.first else Console(quiet=True))
        metrics = group.together({0: read_metrics(out)} if group.first else {})[0]
        result = RunResult(out, _finished(state, config), state.epoch, metrics)
    if stop is None:
        asked.deliver()
    return result


def _train(state: TrainState, run: Run, console: Console) -> None:
    """Epoch by epoch, until the run is finished or over."""
    config = run.config
    total = config.epochs * run.batches.steps_per_epoch
    done = state.epoch * run.batches.steps_per_epoch + state.step
    if run.plan.engine == "fast":
        console.print(f"engine: {run.plan.describe()}", highlight=False)
    if run.group.count > 1:
        graphs = ", without CUDA graphs" if run.splits.train.device.type == "cuda" else ""
        console.print(f"processes: {run.group.count}, which share every batch{graphs}", highlight=False)
    with (
        run.stop.heard(),
        TrainingDisplay(console, name=config.name, total_steps=total, done_steps=done) as display,
    ):
        while not _finished(state, config) and not run.over:
            _train_epoch(state, run, display)


def _finished(state: TrainState, config: RunConfig) -> bool:
    return state.epoch >= config.epochs or (state.step == 0 and patience_is_over(state, config))


def _resume(state: TrainState, folder: Path) -> None:
    newest = load_newest(folder / LAST, folder / PREVIOUS)
    if newest is not None:
        checkpoint, path = newest
        load_weights(state.judged, checkpoint.weights, source=path)
        with fitting(path):
            state.restore(checkpoint.training, epoch=checkpoint.description.epoch, step=checkpoint.description.step)
    keep_until(folder, state.epoch)


def _train_epoch(state: TrainState, run: Run, display: TrainingDisplay) -> None:
    """The rest of the epoch under way; stops early, with a checkpoint, when time is out or a signal asks for it."""
    config, steps = run.config, run.batches.steps_per_epoch
    began = shown = time.monotonic()
    images = 0
    for batch in run.batches.epoch(state.epoch, state.step):
        moment = _moment(state, run, batch.step)
        if state.guard is not None:
            state.guard.begin(moment.total_steps)
        set_learning_rate(state.optimizer, config.optimizer.lr * config.optimizer.schedule(moment.passed))
        run.steps(batch, moment)
        _refuse_not_finite(state, run, wait=moment.total_steps % LOOK_EVERY == 0)
        if state.average is not None and config.averaging is not None:
            decay = config.averaging.decay
            update_average(state.average, state.nets.model, decay=decay, updates=moment.total_steps)
        state.step, images = batch.step + 1, images + batch.size
        display.advance()
        if time.monotonic() - shown > REFRESH_SECONDS:
            shown = time.monotonic()
            _refuse_not_finite(state, run, wait=run.group.count == 1)  # each process has a clock of its own
            display.show(loss=mean_loss(state), images_per_second=images / (shown - began))
        if run.over and (state.step < steps or run.asked):
            _save_in_mid_epoch(state, run)
            return
        if run.checkpoint_every is not None and state.step < steps and state.step % run.checkpoint_every == 0:
            _save_in_mid_epoch(state, run)
    _finish_epoch(state, run, display, began=began)


def _moment(state: TrainState, run: Run, step: int) -> Moment:
    steps = run.batches.steps_per_epoch
    return Moment(seed=run.config.seed, epoch=state.epoch, step=step, steps_per_epoch=steps)


def _refuse_not_finite(state: TrainState, run: Run, *, wait: bool) -> None:
    """Stop at a step with a value that is not finite; the networks are as they were before it."""
    found = None if state.guard is None else state.guard.found(wait=wait)
    if found is None:
        return
    moment = _moment(state, run, found.step - state.epoch * run.batches.steps_per_epoch)
    batch = next(replace(run.batches, rank=0, processes=1).epoch(moment.epoch, moment.step))
    classes, engine = run.splits.train.num_classes, run.plan.engine
    with run.group.agreeing():
        if run.group.first:
            save_step(run.folder, state.nets, run.config, batch, moment, found, num_classes=classes, engine=engine)
        raise not_finite(run.config, run.folder, batch, moment, found)


def _save_in_mid_epoch(state: TrainState, run: Run) -> None:
    _refuse_not_finite(state, run, wait=True)
    check_finite(state, run.config)
    _save(state, run, "last", {})


def _finish_epoch(state: TrainState, run: Run, display: TrainingDisplay, *, began: float) -> None:
    config = run.config
    _refuse_not_finite(state, run, wait=True)
    check_finite(state, config)  # waits for the device, so the time below is the whole epoch's
    check_alike(state, run.group)
    rate = config.optimizer.schedule(_moment(state, run, state.step - 1).passed)
    line = training_metrics(state) | {"seconds": round(time.monotonic() - began, 3), "lr": config.optimizer.lr * rate}
    try:
        line |= _watched(state, run, display)
    except StopNowError:
        _save_in_mid_epoch(state, run)  # every step of the epoch is done; what was measured will be measured again
        return
    state.epoch, state.step, state.sums = state.epoch + 1, 0, {}
    scores = {key: value for key, value in line.items() if key.startswith(("validation_", "test_"))}
    if note_score(state, line):
        _save(state, run, "best", scores)
    with run.group.agreeing():
        if run.group.first:
            _note(run, line)  # before the checkpoint: a crash between the two repeats the epoch and its line
    _save(state, run, "last", scores)
    display.epoch_line(line, config.epochs)


def _watched(state: TrainState, run: Run, display: TrainingDisplay) -> Line:
    """What the epoch that was trained last is measured for; a signal need not wait for it."""
    config, epoch = run.config, state.epoch + 1
    if epoch % config.watch.every and epoch != config.epochs:
        return {}
    display.busy("measuring")
    began = time.monotonic()
    with _interruptible(state, run):
        measured = watch(replace(state.nets, model=state.judged), config, run.splits, epoch=epoch, group=run.group)
    return measured | {"watch_seconds": round(time.monotonic() - began, 3)}


@contextmanager
def _interruptible(state: TrainState, run: Run) -> Iterator[None]:
    """A process alone may leave a measurement at a signal; buffers are then as before, whatever mode attacks run in."""
    if run.group.count > 1:  # the others would wait for one that stopped
        yield
        return
    buffers = [buffer for net in {*state.nets.all().values(), state.judged} for buffer in net.buffers()]
    kept = [buffer.clone() for buffer in buffers]
    try:
        with run.stop.at_once():
            yield
    except StopNowError:
        for buffer, before in zip(buffers, kept, strict=True):
            buffer.copy_(before)
        raise


def _note(run: Run, line: Line) -> None:
    """Write the epoch's line, with the alarms it raises; each is told once in a run."""
    alarms = new_alarms([*read_metrics(run.folder), line], run.config)
    if alarms:
        line["alarms"] = [alarm.name for alarm in alarms]
    append_line(run.folder, line)
    for alarm in alarms:
        told = f"{run.config.name}: epoch {line['epoch']}: {alarm.message}; {alarm.suggestion}"
        warnings.warn(told, WidemarginWarning, stacklevel=2)


def _save(state: TrainState, run: Run, which: Which, scores: dict[str, float]) -> None:
    train = run.splits.train
    description = Description(
        which=which,
        selection=describe_selection(run.config, which),
        config=to_dict(run.config),
        image_shape=train.image_shape,
        num_classes=train.num_classes,
        epoch=state.epoch,
        step=state.step,
        scores=scores,
        versions=software_versions() | {"engine": run.plan.describe()},
    )
    training = {} if which == "best" else state.tensors()
    name, previous = (BEST, None) if which == "best" else (LAST, run.folder / PREVIOUS)
    checkpoint = Checkpoint(dict(state.judged.state_dict()), training, description)
    with run.group.agreeing():
        if run.group.first:
            save_checkpoint(run.folder / name, checkpoint, previous)
