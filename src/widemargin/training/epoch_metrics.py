"""What an epoch of training added up to."""

from widemargin.errors import InputError
from widemargin.training.log import Line
from widemargin.training.nonfinite import SKIPPED
from widemargin.training.state import TrainState


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
