"""What an epoch of training added up to, and the refusal to go on with numbers that are none."""

import math

from widemargin.config import RunConfig
from widemargin.errors import InputError
from widemargin.training.log import Line
from widemargin.training.state import TrainState


def training_metrics(state: TrainState) -> Line:
    """Means over the epoch under way: the loss, its terms, the penalties (over the steps that took them), accuracy."""
    sums = {name: float(value) for name, value in state.sums.items()}
    samples = sums.pop("samples")
    counts = {name: sums.pop(name) for name in list(sums) if name.endswith("_samples")}
    line: Line = {"epoch": state.epoch + 1, "samples": int(samples)}
    line |= {name: value / counts.get(f"{name}_samples", samples) for name, value in sums.items() if name != "correct"}
    line["train_accuracy"] = 100.0 * sums["correct"] / samples
    line["lr"] = float(state.optimizer.param_groups[0]["lr"])
    return line


def mean_loss(state: TrainState, config: RunConfig) -> float:
    """The mean loss of the epoch so far; a loss that is no number ends the run before it is saved."""
    loss = float(state.sums["total"] / state.sums["samples"])
    if not math.isfinite(loss):
        raise _diverged(state, config, f"the loss became {loss}")
    return loss


def check_finite(state: TrainState, config: RunConfig) -> None:
    """Neither the loss nor what the last step made of the weights may go into a checkpoint unless it is a number."""
    mean_loss(state, config)
    parameters = [parameter for net in state.nets.all().values() for parameter in net.parameters()]
    if not all(bool(parameter.isfinite().all()) for parameter in parameters):
        raise _diverged(state, config, "a weight became infinite or not a number")


def _diverged(state: TrainState, config: RunConfig, what: str) -> InputError:
    weights = "".join(f" or {penalty.name}.weight ({penalty.weight:g})" for penalty in config.penalties())
    return InputError(
        f"{config.name}: {what} in epoch {state.epoch + 1}; lower optimizer.lr ({config.optimizer.lr:g}){weights}"
    )
