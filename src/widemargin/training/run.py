"""A whole run in its folder: begin or resume, train epoch by epoch, keep checkpoints and metrics.

The folder holds ``config.toml`` (written before anything else), ``metrics.jsonl`` (a line per epoch),
``last.safetensors``, ``previous.safetensors`` (the one before) and, where a validation split chooses,
``best.safetensors``. The same call on the same folder goes on where it stopped.
"""

import math
import time
from dataclasses import dataclass, replace
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
from widemargin.config import RunConfig
from widemargin.config_files import to_dict
from widemargin.data import Batches
from widemargin.engine import Plan, make_plan
from widemargin.evaluation.target import BEST, LAST
from widemargin.training.averaging import update_average
from widemargin.training.claim import claimed
from widemargin.training.epoch_metrics import check_finite, mean_loss, training_metrics
from widemargin.training.log import Line, append_line, keep_until, read_metrics
from widemargin.training.progress import TrainingDisplay
from widemargin.training.selection import describe_selection, note_score, patience_is_over
from widemargin.training.setup import Splits, choose_device, load_splits, make_batches, make_state
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

    @property
    def out_of_time(self) -> bool:
        """Whether the time given is over."""
        return time.monotonic() >= self.deadline


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
) -> RunResult:
    """Train ``config`` in the folder ``out``, or go on with the run that is there.

    ``engine`` is auto, eager or fast (``widemargin.engine``). ``splits`` are images of your own in place of what
    ``config.data`` names.
    """
    deadline = time.monotonic() + max_seconds
    chosen = choose_device(device)
    with claimed(out, config):
        if splits is None:
            splits = load_splits(config.data, seed=config.seed, data_dir=data_dir, device=chosen)
        splits = splits.to(chosen)
        batches = make_batches(config, splits.train)
        state = make_state(config, splits.train)
        plan = make_plan(engine, state.nets.model, splits.train.image_shape, chosen)
    _resume(state, out)
    steps = make_steps(plan, state, config)
    run = Run(
        config=config, folder=out, splits=splits, batches=batches, steps=steps, plan=plan, deadline=deadline
    )
    total = config.epochs * run.batches.steps_per_epoch
    done = state.epoch * run.batches.steps_per_epoch + state.step
    console = console or Console(quiet=True)
    if plan.engine == "fast":
        console.print(f"engine: {plan.describe()}", highlight=False)
    with TrainingDisplay(console, name=config.name, total_steps=total, done_steps=done) as display:
        while not _finished(state, config) and not run.out_of_time:
            _train_epoch(state, run, display)
    return RunResult(out, _finished(state, config), state.epoch, read_metrics(out))


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
    """The rest of the epoch under way; stops early, with a checkpoint, when time is out."""
    config, steps = run.config, run.batches.steps_per_epoch
    began = shown = time.monotonic()
    images = 0
    for batch in run.batches.epoch(state.epoch, state.step):
        moment = Moment(seed=config.seed, epoch=state.epoch, step=batch.step, steps_per_epoch=steps)
        set_learning_rate(state.optimizer, config.optimizer.lr * config.optimizer.schedule(moment.passed))
        run.steps(batch, moment)
        if state.average is not None and config.averaging is not None:
            decay = config.averaging.decay
            update_average(state.average, state.nets.model, decay=decay, updates=moment.total_steps)
        state.step, images = batch.step + 1, images + len(batch.labels)
        display.advance()
        if time.monotonic() - shown > REFRESH_SECONDS:
            shown = time.monotonic()
            display.show(loss=mean_loss(state, config), images_per_second=images / (shown - began))
        if run.out_of_time and state.step < steps:
            check_finite(state, config)
            _save(state, run, "last", {})
            return
    _finish_epoch(state, run, display, began=began)


def _finish_epoch(state: TrainState, run: Run, display: TrainingDisplay, *, began: float) -> None:
    config = run.config
    check_finite(state, config)  # waits for the device, so the time below is the whole epoch's
    line = training_metrics(state) | {"seconds": round(time.monotonic() - began, 3)}
    state.epoch, state.step, state.sums = state.epoch + 1, 0, {}
    if state.epoch % config.watch.every == 0 or state.epoch == config.epochs:
        display.busy("measuring")
        began = time.monotonic()
        line |= watch(replace(state.nets, model=state.judged), config, run.splits, epoch=state.epoch)
        line["watch_seconds"] = round(time.monotonic() - began, 3)
    scores = {key: value for key, value in line.items() if key.startswith(("validation_", "test_"))}
    if note_score(state, line):
        _save(state, run, "best", scores)
    append_line(run.folder, line)  # before the checkpoint: a crash between the two repeats the epoch and its line
    _save(state, run, "last", scores)
    display.epoch_line(line, config.epochs)


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
    save_checkpoint(run.folder / name, Checkpoint(dict(state.judged.state_dict()), training, description), previous)
