"""What a run keeps in its folder: the claim on it, the metrics log, the checkpoints.

**Claim.** The folder is one run's, and one process's while it works there. It is locked first; then the run's
configuration is written before anything else, and another run is refused.

**Metrics.** One JSON line per epoch, on disk as soon as the epoch ends. Checkpoints hold a digest of each line, without
its times, so a line that is no longer what this run measured is noticed.

**Checkpoints** are written at the end of an epoch and in the middle of one, and read when the run goes on. Averaged
weights that are evaluated in addition to the trained ones have checkpoints of their own in the folder ``averaged``;
what resuming needs of them is in the run's own. A checkpoint also says what ``config.toml`` does not: the versions and
the engine that trained, and any option that changes the numbers, where it is not the default.
"""

import json
import os
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from widemargin.config.checkpoint import (
    AVERAGED,
    BEST,
    CONFIG,
    LAST,
    METRICS,
    PREVIOUS,
    Checkpoint,
    DamagedError,
    Description,
    Which,
    check_run,
    fitting,
    load_checkpoint,
    load_newest,
    load_weights,
    save_checkpoint,
    software_versions,
)
from widemargin.config.run import RunConfig
from widemargin.config.toml import differences, read_toml, to_dict, to_toml
from widemargin.core.files import folder_lock, is_partial, make_folder, refused, write_atomic, write_text_atomic
from widemargin.core.precision import convolutions_use_tf32
from widemargin.core.records import Lines, digest_of
from widemargin.distributed.group import Processes
from widemargin.distributed.sync_batch_norm import has_own_statistics
from widemargin.errors import InputError, WidemarginWarning
from widemargin.training.context import RunContext
from widemargin.training.state import Best, TrainState, score_of

INITIAL_WEIGHTS = "init_from"
"""What a checkpoint calls the weights its run began with, where it was fine-tuned."""
Line = dict[str, Any]
Scores = Mapping[str, float]


@contextmanager
def claim_for_group(out: Path, config: RunConfig, group: Processes) -> Iterator[None]:
    """The first process claims the folder for all; what it is refused, all are."""
    with ExitStack() as stack:
        with group.sync_errors():
            if group.first:
                stack.enter_context(claim_folder(out, config))
        yield


@contextmanager
def claim_folder(out: Path, config: RunConfig) -> Iterator[None]:
    """The folder is ours inside; where nothing but the configuration was written, an error gives it back.

    So the corrected command may have it.
    """
    existed = out.exists()
    with suppress(OSError):  # only made: what another process may be writing there is not ours to sweep away
        out.mkdir(parents=True, exist_ok=True)
    if not out.is_dir():
        make_folder(out)  # which says why there can be none
    with folder_lock(out):
        begun = (out / CONFIG).exists()
        try:
            _claim(out, config)
            yield
        except InputError:
            if not begun and {path.name for path in out.iterdir()} <= {CONFIG}:
                (out / CONFIG).unlink(missing_ok=True)
                if not existed:
                    out.rmdir()
            raise


def _claim(out: Path, config: RunConfig) -> None:
    make_folder(out)
    path = out / CONFIG
    if path.exists():
        changed = differences(config, read_toml(path))
        trained = any((out / name).exists() for name in (LAST, PREVIOUS, BEST))
        if changed and not trained:  # a corrected command may have the folder
            write_text_atomic(path, to_toml(config))
        elif changed:
            first = "; ".join(changed[:3])
            raise InputError(f"{out} holds another run ({first}); choose another --out, or --set what it has")
    elif not all(map(is_partial, out.iterdir())):
        raise InputError(f"{out} is not empty and holds no {CONFIG}; choose an empty folder for --out")
    else:
        config.check_watched()
        write_text_atomic(path, to_toml(config))


def read_metrics(folder: Path) -> list[Line]:
    """The lines that can be read, with a warning for each of the others but one cut off by a crash."""
    lines, trouble = _read_lines(folder)
    if trouble:
        warnings.warn(f"{folder / METRICS}: {'; '.join(trouble)}", WidemarginWarning, stacklevel=2)
    return [line for _, line in lines]


def read_complete_metrics(folder: Path) -> list[Line]:
    """The lines of a run that has nothing to make them again from: every epoch has one, or it is refused."""
    lines, trouble = _read_lines(folder)
    if not trouble and [line["epoch"] for _, line in lines] != list(range(1, len(lines) + 1)):
        trouble = ["its lines are not one for each epoch in order"]
    if trouble:
        raise InputError(
            f"{folder / METRICS}: {'; '.join(trouble)}, and there is no checkpoint to go on from; put back a copy of "
            "it, or choose another --out"
        )
    return [line for _, line in lines]


def digest_line(line: Line) -> int:
    """A number that tells what was measured from all else; how long it took is left out."""
    return int(digest_of({key: value for key, value in line.items() if not key.endswith("seconds")})[:15], 16)


def truncate_metrics(folder: Path, epoch: int, digests: Mapping[int, int] | None = None) -> dict[int, int]:
    """Drop the lines after ``epoch``: they belong to work that is about to be done again.

    A file that lacks one of the lines before, or holds other ones, is set aside with a warning; every good line stays.
    Returns the digests of those.
    """
    lines, trouble = _read_lines(folder)
    good: dict[int, Line] = {}
    for number, line in ((number, line) for number, line in lines if line["epoch"] <= epoch):
        if digests is not None and digests.get(line["epoch"]) != digest_line(line):
            trouble.append(f"line {number} is not what this run measured in epoch {line['epoch']}")
        elif line["epoch"] in good:
            trouble.append(f"line {number} repeats epoch {line['epoch']}")
        else:
            good[line["epoch"]] = line
    if epoch == 0 and len(lines) > 1:  # a crash before the first checkpoint leaves one
        trouble.append(f"there is no checkpoint to go on from after its {len(lines)} epochs, so the run begins anew")
    ordered = sorted(good)
    if ordered != list(good):
        trouble.append("its lines are out of order")
    lost = [number for number in (range(1, epoch + 1) if digests is None else digests) if number not in good]
    text = "".join(json.dumps(good[number]) + "\n" for number in ordered)
    if trouble or lost:
        _set_aside_damaged(folder, [*trouble, *([f"nothing is left of {_epochs(lost)}"] if lost else [])], text)
    write_text_atomic(folder / METRICS, text)
    return {number: digest_line(good[number]) for number in ordered}


def append_line(folder: Path, line: Line) -> None:
    """Add one line and flush it to the disk."""
    path = folder / METRICS
    try:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise refused(f"write {path}", error) from None


def _read_lines(folder: Path) -> tuple[list[tuple[int, Line]], list[str]]:
    """The lines with their numbers, and what is wrong with the others."""
    path = folder / METRICS
    if not path.is_file():
        return [], []
    unread: list[int] = []
    whole: list[tuple[int, Line]] = []
    strange: list[int] = []
    for number, line in Lines(path, bad=unread).numbered():
        if type(line.get("epoch")) is int and line["epoch"] > 0:
            whole.append((number, line))
        else:
            strange.append(number)
    trouble = [f"line {number} cannot be read" for number in unread]
    return whole, trouble + [f"line {number} is not a metrics line" for number in strange]


def _set_aside_damaged(folder: Path, trouble: Sequence[str], goes_on: str) -> None:
    path, place = folder / METRICS, "put back a copy of it, if there is one"
    if path.is_file() and path.read_bytes() != goes_on.encode():
        aside = _unused_name(folder / f"{METRICS}.damaged")
        write_atomic(aside, partial(shutil.copyfile, path))
        place = f"the file as it was is now {aside.name}, and what could be read goes on"
    warnings.warn(f"{path}: {'; '.join(trouble)}; {place}", WidemarginWarning, stacklevel=4)


def _unused_name(path: Path) -> Path:
    """This name, or the first with a number that nothing has."""
    number, free = 1, path
    while free.exists():
        number, free = number + 1, path.with_name(f"{path.name}-{number + 1}")
    return free


def _epochs(numbers: Sequence[int]) -> str:
    """Runs of them as people say them: "epochs 1-4, 7"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return f"epoch{'s' * (len(numbers) > 1)} {', '.join('-'.join(map(str, part)) for part in parts)}"


def has_checkpoint(folder: Path) -> bool:
    """Whether there is one to go on from, damaged perhaps."""
    return any((folder / name).exists() for name in (LAST, PREVIOUS))


def resume(state: TrainState, folder: Path, config: RunConfig) -> None:
    """Take the newest checkpoint of the folder, if there is one; metrics of later epochs are dropped."""
    newest = load_newest(folder / LAST, folder / PREVIOUS)
    if newest is not None:
        checkpoint, path = newest
        check_run(path, checkpoint.description, config)
        load_weights(state.eval_model, checkpoint.weights, source=path)
        with fitting(path):
            state.restore(checkpoint.training, epoch=checkpoint.description.epoch, step=checkpoint.description.step)
        versions = checkpoint.description.versions
        state.initial_weights, state.engine = versions.get(INITIAL_WEIGHTS), versions.get("engine", "")
        _check_best(state.best, folder, config, averaged=state.eval_model is state.average)
        _check_best(state.best_averaged, folder / AVERAGED, config, averaged=True)
    state.metrics = truncate_metrics(folder, state.epoch, state.metrics or None)


def _check_best(best: Best | None, folder: Path, config: RunConfig, *, averaged: bool) -> None:
    """The best weights so far must be there and this run's; missing ones are saved again from a checkpoint of theirs.

    Where there is none, a warning says so: later epochs are still compared with the best.
    """
    path = folder / BEST
    if best is None:
        return
    if path.is_file():
        description = load_checkpoint(path).description
        check_run(path, description, _with_average_in_place(config) if averaged else config)
        if description.epoch == best.epoch and score_of(description.scores) != best.score:
            raise InputError(
                f"{path} is not what this run saved in epoch {best.epoch}; put that back, or remove it to go on without"
            )
        if description.epoch >= best.epoch:  # a later one is that of an epoch about to be trained again
            return
    for source in (folder / LAST, folder / PREVIOUS):
        found = _of_epoch(source, best)
        if found is not None:
            selection = describe_selection(config, "best", averaged=averaged)
            description = replace(found.description, which="best", selection=selection)
            save_checkpoint(path, Checkpoint(found.weights, {}, description))
            warnings.warn(f"{path} was missing and is saved again from {source.name}", WidemarginWarning, stacklevel=2)
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

    Only the weights to evaluate were left there; to begin anew would lose them.
    """
    if not (folder / BEST).is_file() or has_checkpoint(folder):
        return None
    description, metrics = load_checkpoint(folder / BEST).description, read_complete_metrics(folder)
    check_run(folder / BEST, description, config)
    done = metrics[-1]["epoch"] if metrics else 0
    over = config.stopping is not None and done - description.epoch >= config.stopping.patience * config.watch.every
    return metrics if done == config.epochs or over else None


def save(
    state: TrainState, run: RunContext, which: Which, scores: Scores, averaged_scores: Scores | None = None
) -> None:
    """Write the best or the last checkpoint; the last one of averaged weights of their own goes with it."""
    if which == "last":
        save_averaged(state, run, "last", averaged_scores or {})  # first: a crash between the two writes both again
    description = _describe(state, run, which, scores, averaged=state.eval_model is state.average)
    weights = dict(state.eval_model.state_dict())
    if which == "best":
        run.group.on_first(lambda: save_checkpoint(run.folder / BEST, Checkpoint(weights, {}, description)))
        return
    checkpoint = Checkpoint(weights, state.tensors(), description)
    run.group.on_first(lambda: save_checkpoint(run.folder / LAST, checkpoint, run.folder / PREVIOUS))
    state.saved_at, state.unsaved = time.monotonic(), None


def save_averaged(state: TrainState, run: RunContext, which: Which, scores: Scores) -> None:
    """Write averaged weights that are evaluated in addition to the model, where there are any; for evaluation alone."""
    if state.averaged is None:
        return
    name, description = BEST if which == "best" else LAST, _describe(state, run, which, scores, averaged=True)
    checkpoint = Checkpoint(dict(state.averaged.state_dict()), {}, description)
    run.group.on_first(lambda: save_checkpoint(make_folder(run.folder / AVERAGED) / name, checkpoint))


def _describe(state: TrainState, run: RunContext, which: Which, scores: Scores, *, averaged: bool) -> Description:
    train = run.splits.train
    return Description(
        which=which,
        selection=describe_selection(run.config, which, averaged=averaged),
        config=to_dict(_with_average_in_place(run.config) if averaged else run.config),
        image_shape=train.image_shape,
        num_classes=train.num_classes,
        epoch=state.epoch,
        step=state.step,
        scores=dict(scores),
        versions=_versions(state, run),
    )


def _with_average_in_place(config: RunConfig) -> RunConfig:
    """The configuration under which the averaged weights would be evaluated in the model's place."""
    return config if config.averaging is None else replace(config, averaging=replace(config.averaging, beside=False))


def describe_selection(config: RunConfig, which: str, *, averaged: bool) -> str:
    """How these weights were selected, in words for the checkpoint."""
    average = f", weights averaged with decay {config.averaging.decay:g}" if averaged and config.averaging else ""
    if which == "last":
        return f"the last step trained{average}"
    rule = "clean accuracy" if config.watch.attack is None else f"accuracy under {config.watch.attack!r}"
    return f"highest {rule} on {config.data.held_out} held-out training images{average}"


def _versions(state: TrainState, run: RunContext) -> dict[str, str]:
    """What made the numbers; defaults are not named."""
    found = software_versions() | {"engine": run.plan.describe()}
    if run.splits.train.device.type == "cuda" and run.plan.precision == "float32" and convolutions_use_tf32():
        found["engine"] += ", convolutions with TF32, as torch has it by default"
    if state.initial_weights is not None:
        found[INITIAL_WEIGHTS] = state.initial_weights
    if run.options.on_nonfinite != "stop":
        found["on_nonfinite"] = run.options.on_nonfinite
    if run.options.deterministic:
        found["deterministic"] = "yes"
    if run.group.count > 1 and any(has_own_statistics(net) for net in state.nets.all().values()):
        found["batch_norm"] = "each process its own"
    return found
