"""The checkpoints of a run: written at the end of an epoch and in the middle of one, read when the run goes on.

Averaged weights that are judged beside the trained ones have checkpoints of their own in the folder ``averaged``; what
resuming needs of them is in the run's own.

A checkpoint also says what ``config.toml`` does not: the versions and the engine that trained, and any option that
changes the numbers, where it is not the default.
"""

import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from widemargin.checkpoints import (
    PREVIOUS,
    Checkpoint,
    DamagedError,
    Description,
    Which,
    fitting,
    load_checkpoint,
    load_newest,
    load_weights,
    save_checkpoint,
    software_versions,
)
from widemargin.config import RunConfig
from widemargin.config_files import to_dict
from widemargin.errors import InputError, WidemarginWarning
from widemargin.evaluation.target import AVERAGED, BEST, LAST, check_run
from widemargin.files import make_folder
from widemargin.precision import convolutions_use_tf32
from widemargin.training.log import Line, keep_until, read_whole
from widemargin.training.refusal import check_finite, refuse_not_finite
from widemargin.training.selection import describe_selection, score_of
from widemargin.training.state import Best, TrainState
from widemargin.training.sync_batch_norm import has_own_statistics
from widemargin.training.underway import Run

Scores = Mapping[str, float]
NONE: Scores = {}


def resume(state: TrainState, folder: Path, config: RunConfig) -> None:
    """Take the newest checkpoint of the folder, if there is one; metrics of later epochs are dropped."""
    newest = load_newest(folder / LAST, folder / PREVIOUS)
    if newest is not None:
        checkpoint, path = newest
        check_run(path, checkpoint.description, config)
        load_weights(state.judged, checkpoint.weights, source=path)
        with fitting(path):
            state.restore(checkpoint.training, epoch=checkpoint.description.epoch, step=checkpoint.description.step)
        _check_best(state.best, folder, config, averaged=state.judged is state.average)
        _check_best(state.best_beside, folder / AVERAGED, config, averaged=True)
    state.metrics = keep_until(folder, state.epoch, state.metrics or None)


def _check_best(best: Best | None, folder: Path, config: RunConfig, *, averaged: bool) -> None:
    """The best weights so far must be there and this run's; missing ones are saved again from a checkpoint of theirs.

    Where there is none, that is told: later epochs are still compared with the best.
    """
    path = folder / BEST
    if best is None:
        return
    if path.is_file():
        description = load_checkpoint(path).description
        check_run(path, description, _whose_weights_count(config) if averaged else config)
        if description.epoch == best.epoch and score_of(description.scores) != best.score:
            raise InputError(
                f"{path} is not what this run saved in epoch {best.epoch}; put that back, or remove it to go on without"
            )
        if description.epoch >= best.epoch:  # a later one is that of an epoch about to be trained again
            return
    for kept in (folder / LAST, folder / PREVIOUS):
        found = _of_epoch(kept, best)
        if found is not None:
            selection = describe_selection(config, "best", averaged=averaged)
            description = replace(found.description, which="best", selection=selection)
            save_checkpoint(path, Checkpoint(found.weights, {}, description))
            warnings.warn(f"{path} was missing and is saved again from {kept.name}", WidemarginWarning, stacklevel=2)
            return
    warnings.warn(
        f"{path} is missing: the weights of epoch {best.epoch}, the best so far, are lost; the run goes on and keeps a "
        "later epoch only if it is better than that one; put back a copy, if there is one",
        WidemarginWarning,
        stacklevel=2,
    )


def _of_epoch(path: Path, best: Best) -> Checkpoint | None:
    """The checkpoint at the end of that epoch, if this is one."""
    try:
        found = load_checkpoint(path) if path.is_file() else None
    except DamagedError:
        return None
    at = (
        None if found is None else (found.description.epoch, found.description.step, score_of(found.description.scores))
    )
    return found if at == (best.epoch, 0, best.score) else None


def finished_without_last(folder: Path, config: RunConfig) -> list[Line] | None:
    """The metrics of a run with all its epochs and its best weights, but no checkpoint to go on from; else None.

    Somebody kept what is judged and no more; to begin anew would lose that.
    """
    if not (folder / BEST).is_file() or any((folder / name).exists() for name in (LAST, PREVIOUS)):
        return None
    description, metrics = load_checkpoint(folder / BEST).description, read_whole(folder)
    check_run(folder / BEST, description, config)
    done = metrics[-1]["epoch"] if metrics else 0
    over = config.stopping is not None and done - description.epoch >= config.stopping.patience * config.watch.every
    return metrics if done == config.epochs or over else None


def save_in_mid_epoch(state: TrainState, run: Run) -> None:
    """Write the last checkpoint between two steps, unless something is not finite."""
    refuse_not_finite(state, run, wait=True)
    check_finite(state, run.config)
    save(state, run, "last", {})


def save_at_epoch_end(state: TrainState, run: Run, scores: Scores, beside: Scores) -> None:
    """Write the last checkpoint, unless the pause since the one before is not over; the end of the run makes up."""
    state.unsaved = scores, beside
    if run.group.any(time.monotonic() - state.saved_at >= run.options.checkpoint_pause):
        save(state, run, "last", scores, beside)


def save_the_rest(state: TrainState, run: Run) -> None:
    """Write the last checkpoint if an epoch is waiting for it."""
    if state.unsaved is not None:
        save(state, run, "last", *state.unsaved)


def save(state: TrainState, run: Run, which: Which, scores: Scores, beside: Scores = NONE) -> None:
    """Write that checkpoint; the first process does it for all. ``beside`` are the scores of weights beside."""
    training = {} if which == "best" else state.tensors()
    name, previous = (BEST, None) if which == "best" else (LAST, run.folder / PREVIOUS)
    description = _describe(state, run, which, scores, averaged=state.judged is state.average)
    checkpoint = Checkpoint(dict(state.judged.state_dict()), training, description)
    if which == "last":
        save_beside(state, run, "last", beside)  # first: a crash between the two writes both again
    with run.group.agreeing():
        if run.group.first:
            save_checkpoint(run.folder / name, checkpoint, previous)
    if which == "last":
        state.saved_at, state.unsaved = time.monotonic(), None


def save_beside(state: TrainState, run: Run, which: Which, scores: Scores) -> None:
    """Write the weights that are judged beside the model's, where there are any; for judging alone."""
    if state.beside is None:
        return
    description = _describe(state, run, which, scores, averaged=True)
    with run.group.agreeing():
        if run.group.first:
            folder = make_folder(run.folder / AVERAGED)
            save_checkpoint(
                folder / (BEST if which == "best" else LAST),
                Checkpoint(dict(state.beside.state_dict()), {}, description),
            )


def _describe(state: TrainState, run: Run, which: Which, scores: Scores, *, averaged: bool) -> Description:
    train = run.splits.train
    return Description(
        which=which,
        selection=describe_selection(run.config, which, averaged=averaged),
        config=to_dict(_whose_weights_count(run.config) if averaged else run.config),
        image_shape=train.image_shape,
        num_classes=train.num_classes,
        epoch=state.epoch,
        step=state.step,
        scores=dict(scores),
        versions=_versions(state, run),
    )


def _whose_weights_count(config: RunConfig) -> RunConfig:
    """The configuration under which the averaged weights would be the run's own."""
    return config if config.averaging is None else replace(config, averaging=replace(config.averaging, beside=False))


def _versions(state: TrainState, run: Run) -> dict[str, str]:
    """What made the numbers; defaults are not named."""
    found = software_versions() | {"engine": run.plan.describe()}
    if run.splits.train.device.type == "cuda" and run.plan.precision == "float32" and convolutions_use_tf32():
        found["engine"] += ", convolutions with TF32, as torch has it by default"
    if run.options.on_nonfinite != "stop":
        found["on_nonfinite"] = run.options.on_nonfinite
    if run.options.deterministic:
        found["deterministic"] = "yes"
    if run.group.count > 1 and any(has_own_statistics(net) for net in state.nets.all().values()):
        found["batch_norm"] = "each process its own"
    return found
