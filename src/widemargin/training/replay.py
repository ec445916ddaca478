"""A step that was not finite, kept so that it can be taken again and looked at.

``nonfinite.safetensors`` holds the networks' weights before the step, the batch as the step saw it and, where they were
looked at, the step's values; ``nonfinite.json`` holds the moment, the configuration and what was at fault. ``replay``
takes the step again, up to the update, with the same random numbers.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save

from widemargin.checkpoints import software_versions
from widemargin.config import RunConfig
from widemargin.config_files import from_dict, to_dict
from widemargin.data import Batch, ImageSet
from widemargin.engine import make_plan
from widemargin.errors import InputError
from widemargin.files import write_text_whole, write_whole
from widemargin.training.nonfinite import GRADIENT, Found, Tensors
from widemargin.training.setup import choose_device, make_state
from widemargin.training.step import Moment
from widemargin.training.steps import make_steps
from widemargin.types import Nets

TENSORS, TABLE = "nonfinite.safetensors", "nonfinite.json"
FORMAT = "widemargin-nonfinite-1"


@dataclass(frozen=True)
class Replayed:
    """What a step computed: the values of each sample (B,), and the gradient of each parameter."""

    moment: Moment
    indices: list[int]
    """Where in the training images the samples are."""
    values: Tensors
    gradients: Tensors

    @property
    def at_fault(self) -> list[str]:
        """The values and gradients that are not finite."""
        gradients = {f"{GRADIENT} of {name}": value for name, value in self.gradients.items()}
        return [name for name, value in (self.values | gradients).items() if not bool(value.isfinite().all())]


@dataclass
class _Recorder:
    """A guard that lets no update through and keeps what it is shown."""

    nets: Nets
    values: Tensors = field(default_factory=dict)
    gradients: Tensors = field(default_factory=dict)

    def begin(self, step: int) -> None:
        """Nothing to note."""

    def remember(self) -> None:
        """Nothing to keep: the networks are thrown away."""

    def passes(self, values: Tensors) -> bool:
        """Keep everything; never update."""
        self.values = {name: value.detach().clone() for name, value in values.items()}
        for name, net in self.nets.all().items():
            found = {f"{name}/{key}": p.grad.clone() for key, p in net.named_parameters() if p.grad is not None}
            self.gradients |= found
        return False

    def settle(self, values: Tensors) -> Tensors:
        """As they are."""
        return values

    def found(self, *, wait: bool) -> Found | None:
        """Nothing stops a replay."""
        del wait
        return None


def save_step(
    folder: Path,
    nets: Nets,
    config: RunConfig,
    batch: Batch,
    moment: Moment,
    found: Found,
    *,
    num_classes: int,
    engine: str,
) -> None:
    """Write both files; the networks are as they were before the step."""
    stored = {"images": batch.images, "labels": batch.labels, "indices": batch.indices}
    stored |= {f"values/{name}": value for name, value in found.values.items()}
    for name, net in nets.all().items():
        stored |= {f"nets/{name}/{key}": value for key, value in net.state_dict().items()}
    content = save({key: value.detach().cpu().contiguous().clone() for key, value in stored.items()})
    table = {
        "format": FORMAT,
        "at_fault": found.names,
        "moment": asdict(moment),
        "indices": batch.indices.tolist(),
        "num_classes": num_classes,
        "engine": engine,
        "device": batch.images.device.type,
        "versions": software_versions(),
        "config": to_dict(config),
    }
    write_whole(folder / TENSORS, lambda partial: _write(partial, content))
    write_text_whole(folder / TABLE, json.dumps(table, indent=2) + "\n")


def _write(partial: Path, content: bytes) -> None:
    partial.write_bytes(content)


def replay(folder: str | Path, *, device: str = "auto", engine: str | None = None) -> Replayed:
    """Take the kept step of a run folder again, up to the update, with the engine the run had unless told otherwise.

    On the same kind of device, with the same versions, the values are those of the run.
    """
    table, tensors = _read(Path(folder))
    config, moment, chosen = from_dict(table["config"]), Moment(**table["moment"]), choose_device(device)
    images, labels, indices = (tensors[name].to(chosen) for name in ("images", "labels", "indices"))
    state = make_state(config, ImageSet(torch.zeros_like(images[:1]), labels[:1], table["num_classes"], "replay"))
    for name, net in state.nets.all().items():
        prefix = f"nets/{name}/"
        net.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
    plan = make_plan(engine or table["engine"], state.nets.model, tuple(images.shape[1:]), chosen)
    steps = make_steps(plan, state, config)
    recorder = _Recorder(state.nets)
    state.guard = recorder
    steps(Batch(moment.step, indices, images, labels), moment)
    return Replayed(moment, indices.tolist(), recorder.values, recorder.gradients)


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
