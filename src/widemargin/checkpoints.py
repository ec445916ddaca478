"""A checkpoint that says what it is: safetensors, no pickle, with its whole description inside.

Weights are stored under the field's public key names; what only a resumed run needs (momentum, running sums) sits
beside them under ``train/``. The description holds the run's configuration, how these weights were chosen, and the
versions.
"""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from widemargin.config import RunConfig
from widemargin.config_files import from_dict
from widemargin.errors import InputError
from widemargin.files import write_whole
from widemargin.models import build_model

FORMAT = "widemargin-checkpoint-1"
TRAIN_PREFIX = "train/"
Which = Literal["last", "best"]


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a reader must know about these weights."""

    which: Which
    selection: str
    config: dict[str, Any]
    image_shape: tuple[int, int, int]
    num_classes: int
    epoch: int
    step: int
    scores: dict[str, float]
    versions: dict[str, str] = field(default_factory=dict)
    format: str = FORMAT

    def run_config(self) -> RunConfig:
        """The configuration of the run that made them."""
        return from_dict(self.config)


@dataclass(frozen=True)
class Checkpoint:
    """The weights, what resuming needs, and the description."""

    weights: dict[str, Tensor]
    training: dict[str, Tensor]
    description: Description


def software_versions() -> dict[str, str]:
    """The versions that made a number."""
    return {
        "widemargin": metadata_version("widemargin"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def metadata_version(package: str) -> str:
    """The installed version, or "source" where it runs without being installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "source"


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Write the file whole or not at all."""
    tensors = dict(checkpoint.weights) | {TRAIN_PREFIX + key: value for key, value in checkpoint.training.items()}
    stored = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    header = {"widemargin": json.dumps(asdict(checkpoint.description))}
    content = save(stored, metadata=header)  # not save_file: it hides the errors of the disk and the user's umask

    def write(partial: Path) -> None:
        partial.write_bytes(content)

    write_whole(path, write)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint of ours."""
    try:
        with safe_open(path, framework="pt") as stream:
            description = _described(path, stream.metadata())
            tensors = {key: stream.get_tensor(key) for key in stream.keys()}  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is not a readable checkpoint: {error}") from None
    return Checkpoint(
        weights={key: value for key, value in tensors.items() if not key.startswith(TRAIN_PREFIX)},
        training={k.removeprefix(TRAIN_PREFIX): v for k, v in tensors.items() if k.startswith(TRAIN_PREFIX)},
        description=description,
    )


def _described(path: Path, header: Mapping[str, str] | None) -> Description:
    try:
        table = json.loads((header or {})["widemargin"])
        if table["format"] != FORMAT:
            raise InputError(f"{path} has the format {table['format']!r}; this version reads {FORMAT!r}")
        return Description(**(table | {"image_shape": tuple(table["image_shape"])}))
    except (KeyError, TypeError, json.JSONDecodeError):
        raise InputError(
            f"{path} holds weights but no widemargin description; it was not written by widemargin"
        ) from None


def restore_model(checkpoint: Checkpoint, *, source: Path) -> nn.Module:
    """The model the checkpoint describes, with its weights, in evaluation mode."""
    description = checkpoint.description
    config = description.run_config()
    model = build_model(
        config.model,
        image_shape=description.image_shape,
        num_classes=description.num_classes,
        seed=0,
        make_head=config.head,
    )
    load_weights(model, checkpoint.weights, source=source)
    return model.eval()


def load_weights(model: torch.nn.Module, weights: Mapping[str, Tensor], *, source: Path) -> None:
    """Load weights that must fit, or say which do not."""
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    found = {key: tuple(value.shape) for key, value in weights.items()}
    wrong = [
        key for key in [*expected, *(k for k in found if k not in expected)] if expected.get(key) != found.get(key)
    ]
    if wrong:
        key = wrong[0]
        raise InputError(
            f"{source} does not fit a {type(model).__name__}: {key} is {found.get(key, 'missing')} in the file and "
            f"{expected.get(key, 'absent')} in the model ({len(wrong)} such); is it a checkpoint of another model?"
        )
    model.load_state_dict(dict(weights))
