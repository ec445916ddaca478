"""A whole run in its folder: begin or resume, train epoch by epoch, keep checkpoints and metrics.

The folder holds ``config.toml`` (written before anything else), ``metrics.jsonl`` (a line per epoch),
``last.safetensors``, ``previous.safetensors`` (the one before) and, where a validation split chooses,
``best.safetensors``. The same call on the same folder goes on where it stopped; a finished run of which only the best
weights were kept stays finished. A step that is not finite leaves
``nonfinite.json`` and ``nonfinite.safetensors`` (``replay``).
"""

import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from widemargin.config import RunConfig
from widemargin.screen import say
from widemargin.training.begin import begin
from widemargin.training.determinism import repeating
from widemargin.training.distributed import by_turns, claimed_by_first, training_processes
from widemargin.training.epoch import train_epoch
from widemargin.training.log import Line, read_metrics
from widemargin.training.options import Options
from widemargin.training.progress import TrainingDisplay
from widemargin.training.run_checkpoint import finished_without_last, save_the_rest
from widemargin.training.selection import patience_is_over
from widemargin.training.setup import Splits, load_splits
from widemargin.training.signals import Stop
from widemargin.training.state import TrainState
from widemargin.training.underway import Run


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
    options = Options(
        engine=engine,
        on_nonfinite=on_nonfinite,
        sync_bn=sync_bn,
        checkpoint_every=checkpoint_every,
        deterministic=deterministic,
        checkpoint_pause=checkpoint_pause,
    )
    with repeating(deterministic), training_processes(device) as (group, chosen), claimed_by_first(out, config, group):
        with group.agreeing():
            found = {0: finished_without_last(out, config)} if group.first else {}
        finished = group.together(found)[0]
        if finished is None:
            if splits is None:
                load = partial(load_splits, config.data, seed=config.seed, data_dir=data_dir, device=chosen)
                splits = by_turns(group, load)
            state, run = begin(config, out, splits, chosen, options, group=group, deadline=deadline, stop=asked)
            _train(state, run, console if console is not None and group.first else Console(quiet=True))
            metrics = group.together({0: read_metrics(out)} if group.first else {})[0]
            result = RunResult(out, _finished(state, config), state.epoch, metrics, state.step)
        else:
            result = RunResult(out, finished=True, epoch=config.epochs, metrics=finished)
    if stop is None:
        asked.deliver()
    return result


def _train(state: TrainState, run: Run, console: Console) -> None:
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
        run.stop.heard(),
        TrainingDisplay(console, name=config.name, total_steps=total, done_steps=done) as display,
    ):
        while not _finished(state, config) and not run.over:
            train_epoch(state, run, display)
        save_the_rest(state, run)


def _finished(state: TrainState, config: RunConfig) -> bool:
    return state.epoch >= config.epochs or (state.step == 0 and patience_is_over(state, config))
