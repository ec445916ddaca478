"""What an epoch of training added up to, and the refusal to go on with numbers that are none."""

import math
from pathlib import Path

from widemargin.config import RunConfig
from widemargin.data import Batch
from widemargin.errors import InputError
from widemargin.training.log import Line
from widemargin.training.nonfinite import SKIPPED, Found
from widemargin.training.state import TrainState
from widemargin.training.step import Moment

MOST = 8
"""So many indices of a batch are named in an error; ``nonfinite.json`` has all."""


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


def mean_loss(state: TrainState) -> float:
    """The mean loss of the epoch so far; no number while every step was skipped."""
    return float(state.sums["total"] / state.sums["samples"])


def check_finite(state: TrainState, config: RunConfig) -> None:
    """Neither the loss nor what the last step made of the weights may go into a checkpoint unless it is a number."""
    loss = mean_loss(state)
    if not math.isfinite(loss) and state.sums["samples"] > 0:
        raise _diverged(config, f"the loss became {loss} in epoch {state.epoch + 1}")
    parameters = [parameter for net in state.nets.all().values() for parameter in net.parameters()]
    if not all(bool(parameter.isfinite().all()) for parameter in parameters):
        raise _diverged(config, f"a weight became infinite or not a number in epoch {state.epoch + 1}")


def not_finite(config: RunConfig, folder: Path, batch: Batch, moment: Moment, found: Found) -> InputError:
    """The end of a run at a step that was not finite, after what it takes to repeat the step was saved."""
    first, *others = found.names
    what = f"the {first}" if first in ("loss", "gradient") else first
    also = f" (and {', '.join(others)})" if others else ""
    indices = ", ".join(map(str, batch.indices[:MOST].tolist())) + (", ..." if len(batch.indices) > MOST else "")
    step = f"epoch {moment.epoch + 1}, step {moment.step + 1} of {moment.steps_per_epoch}"
    diverged = _diverged(config, f"{what} became {_seen(found, first)}{also} in {step}, on training images {indices}")
    return InputError(
        f"{diverged}; widemargin.training.replay({str(folder)!r}) takes that step again, --on-nonfinite skip leaves "
        "such steps out"
    )


def _seen(found: Found, name: str) -> str:
    if name not in found.values:
        return "infinite or not a number"
    value = found.values[name]
    bad = value[~value.isfinite()]
    return str(float(bad[0])) if len(bad) else "infinite or not a number"  # it was another process that saw it


def _diverged(config: RunConfig, what: str) -> InputError:
    weights = "".join(f" or {penalty.name}.weight ({penalty.weight:g})" for penalty in config.penalties())
    return InputError(f"{config.name}: {what}; lower optimizer.lr ({config.optimizer.lr:g}){weights}")
