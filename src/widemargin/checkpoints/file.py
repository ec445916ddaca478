"""One checkpoint file: safetensors, no pickle, with its whole description and its checksum inside.

Weights are stored under the field's public key names; what only a resumed run needs (momentum, running sums) sits
beside them under ``train/``. The description holds the run's configuration, how these weights were chosen, and the
versions.
"""

import errno
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from widemargin.checkpoints.checksum import BLANK, KEY, DamagedError, check_whole, seal
from widemargin.checkpoints.description import Description, other_version, read_description
from widemargin.errors import InputError
from widemargin.files import drop_cached, write_whole

TRAIN_PREFIX = "train/"
METADATA = "widemargin"


@dataclass(frozen=True)
class Checkpoint:
    """The weights, what resuming needs, and the description."""

    weights: dict[str, Tensor]
    training: dict[str, Tensor]
    description: Description


def save_checkpoint(path: Path, checkpoint: Checkpoint, previous: Path | None = None) -> None:
    """Write the file whole or not at all; with ``previous``, the file that was there goes on under that name.

    The new file takes the old one's place only after it was read back from the disk and its checksum fits. An old file
    that is damaged is not kept, since it would push out a good one.
    """
    tensors = dict(checkpoint.weights) | {TRAIN_PREFIX + key: value for key, value in checkpoint.training.items()}
    stored = {key: _copied(value) for key, value in tensors.items()}
    table = {KEY: BLANK} | asdict(checkpoint.description)
    # not save_file: it hides the errors of the disk and the user's umask
    pieces = seal(save(stored, metadata={METADATA: json.dumps(table)}))

    def write(partial: Path) -> None:
        with partial.open("wb") as stream:
            for piece in pieces:
                stream.write(piece)

    keep = previous if previous is not None and _is_whole(path) else None
    write_whole(path, write, verify=_read_back, keep=keep)


def _copied(value: Tensor) -> Tensor:
    """On the host, contiguous, and sharing memory with no other, by one copy."""
    return value.detach().to("cpu", memory_format=torch.contiguous_format, copy=True)


def _read_back(partial: Path) -> None:
    drop_cached(partial)
    try:
        check_whole(partial)
    except DamagedError as error:
        raise OSError(f"what was read back is not what was written ({error.reason})") from None


def _is_whole(path: Path) -> bool:
    try:
        load_description(path)
    except InputError:
        return False
    return True


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint of ours."""
    description = load_description(path)
    try:
        with safe_open(path, framework="pt") as stream:
            tensors = {key: stream.get_tensor(key) for key in stream.keys()}  # noqa: SIM118 - not a dict
    except Exception as error:  # a file without a checksum may hold anything
        raise DamagedError(path, str(error)) from None
    return Checkpoint(
        weights={key: value for key, value in tensors.items() if not key.startswith(TRAIN_PREFIX)},
        training={k.removeprefix(TRAIN_PREFIX): v for k, v in tensors.items() if k.startswith(TRAIN_PREFIX)},
        description=description,
    )


def load_description(path: Path) -> Description:
    """What the file says about itself, after a look at every byte."""
    try:
        sealed = check_whole(path)
        with safe_open(path, framework="pt") as stream:
            header = stream.metadata()
    except InputError:
        raise
    except OSError as error:
        if error.errno == errno.EIO:
            raise DamagedError(path, "the disk cannot read it") from None
        raise InputError(f"{path} is not a readable checkpoint: {error.strerror or error}") from None
    except Exception as error:  # whatever the reader makes of bytes nobody wrote
        raise DamagedError(path, str(error)) from None
    return _described(path, header, sealed=sealed)


def _described(path: Path, header: Mapping[str, str] | None, *, sealed: bool) -> Description:
    try:
        table: dict[str, Any] = json.loads((header or {})[METADATA])
        if table.pop(KEY, None) is not None and not sealed:
            raise ValueError("its checksum cannot be read")
        other = other_version(table, sealed=sealed)
        if other is None:
            return read_description(table)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = f"it holds weights but no widemargin description; it was not written by widemargin ({error})"
        raise DamagedError(path, reason) from None
    raise InputError(f"{path} {other}")
