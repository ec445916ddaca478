"""The end of a run at a step that was not finite: it is refused, saved, and can be taken again.

Nothing of such a step is saved as weights. ``nonfinite.safetensors`` holds the networks' weights before the step, the
batch as the step saw it and, where they were looked at, the step's values; ``nonfinite.json`` holds the step context
(``moment``), the configuration and what was at fault. ``replay`` takes the step again, up to the update, with the same
random numbers.
"""

import json
import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save

from widemargin.config.checkpoint import software_versions
from widemargin.config.run import RunConfig
from widemargin.config.toml import from_dict, to_dict
from widemargin.core.device import choose_device
from widemargin.core.files import write_atomic, write_text_atomic
from widemargin.data.batches import Batch
from widemargin.data.image_set import ImageSet
from widemargin.engine.plan import make_plan
from widemargin.errors import InputError
from widemargin.training.context import RunContext
from widemargin.training.graphed_step import make_steps
from widemargin.training.nonfinite import GRADIENT, Guard, NonfiniteStep, Tensors
from widemargin.training.setup import make_state
from widemargin.training.state import TrainState, mean_loss
from widemargin.training.step import StepContext
from widemargin.types import Nets

TENSORS, TABLE = "nonfinite.safetensors", "nonfinite.json"
FORMAT = "widemargin-nonfinite-1"
MOST = 8
"""So many indices of a batch are named in an error; ``nonfinite.json`` has all."""


def refuse_not_finite(state: TrainState, run: RunContext, *, wait: bool) -> None:
    """Stop at a step with a value that is not finite; the networks are as they were before it."""
    found = state.guard.found(wait=wait)
    if found is None:
        return
    context = run.step_context(state.epoch, found.step - state.epoch * run.batches.steps_per_epoch)
    batch = next(replace(run.batches, rank=0, processes=1).epoch(context.epoch, context.step))
    with run.group.sync_errors():
        if run.group.first:
            _save_step(state, run, batch, context, found)
        raise _not_finite(run, batch, context, found)


def check_finite(state: TrainState, config: RunConfig) -> None:
    """Neither the loss nor the weights after the last step may go into a checkpoint unless they are finite."""
    loss = mean_loss(state)
    if not math.isfinite(loss) and state.sums["samples"] > 0:
        raise _diverged(config, f"the loss became {loss} in epoch {state.epoch + 1}")
    finite = torch.stack([parameter.isfinite().all() for parameter in state.nets.parameters()])
    if not finite.all():  # one wait for the device
        raise _diverged(config, f"a weight became infinite or not a number in epoch {state.epoch + 1}")


def _not_finite(run: RunContext, batch: Batch, context: StepContext, found: NonfiniteStep) -> InputError:
    """The end of a run at a step that was not finite, after what it takes to repeat the step was saved."""
    first, *others = found.names
    what = f"the {first}" if first in ("loss", GRADIENT) else first
    value = "infinite or not a number"
    if first in found.values:
        bad = found.values[first][~found.values[first].isfinite()]
        value = str(float(bad[0])) if len(bad) else value  # none here: it was in another process
    also = f" (and {', '.join(others)})" if others else ""
    step = f"epoch {context.epoch + 1}, step {context.step + 1} of {context.steps_per_epoch}"
    indices = ", ".join(map(str, batch.indices[:MOST].tolist())) + (", ..." if len(batch.indices) > MOST else "")
    diverged = _diverged(run.config, f"{what} became {value}{also} in {step}, on training images {indices}")
    return InputError(
        f"{diverged}; widemargin.training.replay({str(run.folder)!r}) takes that step again, --on-nonfinite skip "
        "leaves such steps out"
    )


def _diverged(config: RunConfig, what: str) -> InputError:
    weights = "".join(f" or {penalty.name}.weight ({penalty.weight:g})" for penalty in config.penalties())
    return InputError(f"{config.name}: {what}; lower optimizer.lr ({config.optimizer.lr:g}){weights}")


def _save_step(state: TrainState, run: RunContext, batch: Batch, context: StepContext, found: NonfiniteStep) -> None:
    """Write both files; the networks are as they were before the step."""
    stored = {"images": batch.images, "labels": batch.labels, "indices": batch.indices}
    stored |= {f"values/{name}": value for name, value in found.values.items()}
    for name, net in state.nets.all().items():
        stored |= {f"nets/{name}/{key}": value for key, value in net.state_dict().items()}
    content = save({key: value.detach().cpu().contiguous().clone() for key, value in stored.items()})
    table = {
        "format": FORMAT,
        "at_fault": found.names,
        "moment": asdict(context),
        "indices": batch.indices.tolist(),
        "num_classes": run.splits.train.num_classes,
        "engine": run.options.engine,
        "plan": run.plan.describe(),
        "device": batch.images.device.type,
        "versions": software_versions(),
        "config": to_dict(run.config),
    }
    write_atomic(run.folder / TENSORS, lambda partial: partial.write_bytes(content))
    write_text_atomic(run.folder / TABLE, json.dumps(table, indent=2) + "\n")


@dataclass(frozen=True)
class ReplayedStep:
    """What a step computed: the values of each sample (B,), and the gradient of each parameter."""

    context: StepContext
    indices: list[int]
    """Where in the training images the samples are; from their number on, in the second source."""
    values: Tensors
    gradients: Tensors

    @property
    def at_fault(self) -> list[str]:
        """The values and gradients that are not finite."""
        gradients = {f"{GRADIENT} of {name}": value for name, value in self.gradients.items()}
        return [name for name, value in (self.values | gradients).items() if not bool(value.isfinite().all())]


@dataclass
class _Recorder(Guard):
    """Lets no update through and keeps what it is shown."""

    nets: Nets
    values: Tensors = field(default_factory=dict)
    gradients: Tensors = field(default_factory=dict)

    def passes(self, values: Tensors) -> bool:
        self.values = {name: value.detach().clone() for name, value in values.items()}
        for name, net in self.nets.all().items():
            found = {f"{name}/{key}": p.grad.clone() for key, p in net.named_parameters() if p.grad is not None}
            self.gradients |= found
        return False


def replay(folder: str | Path, *, device: str = "auto", engine: str | None = None) -> ReplayedStep:
    """Take the saved step of a run folder again, up to the update, with the engine the run had unless told otherwise.

    On the same kind of device, with the same versions, the values are those of the run.
    """
    table, tensors = _read(Path(folder))
    config, context, chosen = from_dict(table["config"]), StepContext(**table["moment"]), choose_device(device)
    images, labels, indices = (tensors[name].to(chosen) for name in ("images", "labels", "indices"))
    label = torch.zeros(1, dtype=torch.int64, device=chosen)
    state = make_state(config, ImageSet(torch.zeros_like(images[:1]), label, table["num_classes"], "replay"))
    for name, net in state.nets.all().items():
        prefix = f"nets/{name}/"
        net.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
    shape, attacks = tuple(images.shape[1:]), config.objective.attacks
    asked, began_as = engine or table["engine"], table.get("plan")
    plan = make_plan(asked, state.nets.model, shape, chosen, attacks=attacks, began_as=began_as)
    steps = make_steps(plan, state, config)
    recorder = _Recorder(state.nets)
    state.guard = recorder
    steps(Batch(context.step, indices, images, labels), context)
    return ReplayedStep(context, indices.tolist(), recorder.values, recorder.gradients)


def _read(folder: Path) -> tuple[dict[str, Any], Tensors]:
    path = folder / TABLE
    if not path.is_file():
        raise InputError(f"{folder} has no {TABLE}: no step of this run was stopped for a value that is not finite")
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        if table["format"] != FORMAT:
            raise ValueError(f"the format is {table['format']!r}, this version reads {FORMAT!r}")
        return table, load_file(folder / TENSORS)
    except Exception as error:  # whatever a reader makes of files nobody wrote
        reason = " ".join(str(error).split())
        raise InputError(f"{folder}: {TABLE} and {TENSORS} cannot be read: {reason}; put back a copy of both") from None
