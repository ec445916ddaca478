"""A whole run in its folder: begin or resume, train epoch by epoch, keep checkpoints and metrics.

The folder holds ``config.toml`` (written before anything else), ``metrics.jsonl`` (a line per epoch),
``last.safetensors`` and, where a validation split chooses, ``best.safetensors``. The same call on the same folder
goes on where it stopped.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from widemargin.checkpoints import (
    Checkpoint,
    Description,
    load_checkpoint,
    load_weights,
    save_checkpoint,
    software_versions,
)
from widemargin.config import RunConfig
from widemargin.config_files import differences, read_toml, to_dict, to_toml
from widemargin.data import Batches
from widemargin.errors import InputError
from widemargin.evaluation.target import BEST, LAST
from widemargin.files import make_folder, write_text_whole
from widemargin.training.log import Line, append_line, keep_until, read_metrics
from widemargin.training.progress import TrainingDisplay
from widemargin.training.setup import Splits, choose_device, load_splits, make_batches, make_state
from widemargin.training.state import TrainState
from widemargin.training.step import Moment, set_learning_rate, train_step
from widemargin.training.watch import watch

CONFIG = "config.toml"
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
) -> RunResult:
    """Train ``config`` in the folder ``out``, or go on with the run that is there."""
    deadline = time.monotonic() + max_seconds
    chosen = choose_device(device)
    with _claimed(out, config):
        splits = load_splits(config.data, seed=config.seed, data_dir=data_dir, device=chosen)
        batches = make_batches(config, splits.train)
        state = make_state(config, splits.train)
    run = Run(config=config, folder=out, splits=splits, batches=batches, deadline=deadline)
    _resume(state, run)
    total = config.epochs * run.batches.steps_per_epoch
    done = state.epoch * run.batches.steps_per_epoch + state.step
    console = console or Console(quiet=True)
    with TrainingDisplay(console, name=config.name, total_steps=total, done_steps=done) as display:
        while state.epoch < config.epochs and not run.out_of_time:
            _train_epoch(state, run, display)
    return RunResult(out, state.epoch >= config.epochs, state.epoch, read_metrics(out))


@contextmanager
def _claimed(out: Path, config: RunConfig) -> Iterator[None]:
    """The folder is ours while we set up; where that fails it is given back, so that the corrected run may have it."""
    existed, begun = out.exists(), (out / CONFIG).exists()
    _claim(out, config)
    try:
        yield
    except InputError:
        if not begun:
            (out / CONFIG).unlink()
        if not existed:
            out.rmdir()
        raise


def _claim(out: Path, config: RunConfig) -> None:
    """Write the configuration first; refuse a folder that holds another run."""
    make_folder(out)
    path = out / CONFIG
    if path.exists():
        changed = differences(config, read_toml(path))
        if changed:
            raise InputError(f"{out} holds another run ({'; '.join(changed[:3])}); choose another --out")
    elif any(out.iterdir()):
        raise InputError(f"{out} is not empty and holds no {CONFIG}; choose an empty folder for --out")
    else:
        write_text_whole(path, to_toml(config))


def _resume(state: TrainState, run: Run) -> None:
    path = run.folder / LAST
    if path.exists():
        checkpoint = load_checkpoint(path)
        load_weights(state.judged, checkpoint.weights, source=path)
        state.restore(checkpoint.training, epoch=checkpoint.description.epoch, step=checkpoint.description.step)
    keep_until(run.folder, state.epoch)


def _train_epoch(state: TrainState, run: Run, display: TrainingDisplay) -> None:
    """The rest of the epoch under way; stops early, with a checkpoint, when time is out."""
    config, steps = run.config, run.batches.steps_per_epoch
    began = shown = time.monotonic()
    images = 0
    objective, penalties = config.objective, config.penalties()
    for batch in run.batches.epoch(state.epoch, state.step):
        moment = Moment(seed=config.seed, epoch=state.epoch, step=batch.step, steps_per_epoch=steps)
        set_learning_rate(state.optimizer, config.optimizer.lr * config.optimizer.schedule(moment.passed))
        state.add(train_step(state, objective, penalties, batch, moment))
        state.step, images = batch.step + 1, images + len(batch.labels)
        display.advance()
        if time.monotonic() - shown > REFRESH_SECONDS:
            shown = time.monotonic()
            display.show(loss=_mean_loss(state, config), images_per_second=images / (shown - began))
        if run.out_of_time and state.step < steps:
            _check_finite(state, config)
            _save(state, run, "last", {})
            return
    _finish_epoch(state, run, display, seconds=time.monotonic() - began)


def _finish_epoch(state: TrainState, run: Run, display: TrainingDisplay, *, seconds: float) -> None:
    config = run.config
    _check_finite(state, config)
    line = _training_metrics(state) | {"seconds": round(seconds, 3)}
    state.epoch, state.step, state.sums = state.epoch + 1, 0, {}
    if state.epoch % config.watch.every == 0 or state.epoch == config.epochs:
        display.busy("measuring")
        began = time.monotonic()
        line |= watch(replace(state.nets, model=state.judged), config, run.splits, epoch=state.epoch)
        line["watch_seconds"] = round(time.monotonic() - began, 3)
    scores = {key: value for key, value in line.items() if key.startswith(("validation_", "test_"))}
    better = _is_better(state, line)
    if better:
        _save(state, run, "best", scores)
    append_line(run.folder, line)  # before the checkpoint: a crash between the two repeats the epoch and its line
    _save(state, run, "last", scores)
    display.epoch_line(line, config.epochs)


def _training_metrics(state: TrainState) -> Line:
    sums = {name: float(value) for name, value in state.sums.items()}
    samples = sums.pop("samples")
    counts = {name: sums.pop(name) for name in list(sums) if name.endswith("_samples")}
    line: Line = {"epoch": state.epoch + 1, "samples": int(samples)}
    line |= {name: value / counts.get(f"{name}_samples", samples) for name, value in sums.items() if name != "correct"}
    line["train_accuracy"] = 100.0 * sums["correct"] / samples
    line["lr"] = float(state.optimizer.param_groups[0]["lr"])
    return line


def _mean_loss(state: TrainState, config: RunConfig) -> float:
    """The mean loss of the epoch so far; a loss that is no number ends the run before it is saved."""
    loss = float(state.sums["total"] / state.sums["samples"])
    if not math.isfinite(loss):
        raise _diverged(state, config, f"the loss became {loss}")
    return loss


def _check_finite(state: TrainState, config: RunConfig) -> None:
    """Neither the loss nor what the last step made of the weights may go into a checkpoint unless it is a number."""
    _mean_loss(state, config)
    if not all(bool(parameter.isfinite().all()) for parameter in state.nets.model.parameters()):
        raise _diverged(state, config, "a weight became infinite or not a number")


def _diverged(state: TrainState, config: RunConfig, what: str) -> InputError:
    weight = "" if config.emr is None else f" or emr.weight ({config.emr.weight:g})"
    return InputError(
        f"{config.name}: {what} in epoch {state.epoch + 1}; lower optimizer.lr ({config.optimizer.lr:g}){weight}"
    )


def _is_better(state: TrainState, line: Line) -> bool:
    """Whether this epoch is the best so far on the validation split, by robust accuracy where an attack is watched."""
    score = line.get("validation_robust", line.get("validation_clean"))
    if score is None or (state.best_score is not None and score <= state.best_score):
        return False
    state.best_score, state.best_epoch = score, state.epoch
    return True


def _save(state: TrainState, run: Run, which: str, scores: dict[str, float]) -> None:
    train = run.splits.train
    description = Description(
        which="best" if which == "best" else "last",
        selection=_selection(run, which),
        config=to_dict(run.config),
        image_shape=train.image_shape,
        num_classes=train.num_classes,
        epoch=state.epoch,
        step=state.step,
        scores=scores,
        versions=software_versions(),
    )
    training = {} if which == "best" else state.tensors()
    path = run.folder / (BEST if which == "best" else LAST)
    save_checkpoint(path, Checkpoint(dict(state.judged.state_dict()), training, description))


def _selection(run: Run, which: str) -> str:
    if which == "last":
        return "the last step trained"
    count = 0 if run.splits.validation is None else len(run.splits.validation)
    rule = "clean accuracy" if run.config.watch.attack is None else f"accuracy under {run.config.watch.attack!r}"
    return f"highest {rule} on {count} held-out training images"
