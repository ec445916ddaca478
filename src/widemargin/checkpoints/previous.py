"""The checkpoint before the last: what a run goes on from when the last one is damaged or missing."""

import warnings
from pathlib import Path

from widemargin.checkpoints.checksum import DamagedError
from widemargin.checkpoints.file import Checkpoint, load_checkpoint
from widemargin.errors import InputError, WidemarginWarning

PREVIOUS = "previous.safetensors"


def load_newest(last: Path, previous: Path) -> tuple[Checkpoint, Path] | None:
    """The last checkpoint and its path, or the previous one and a warning; None where there is neither."""
    if not last.exists() and not previous.exists():
        return None
    trouble = f"{last} is missing"
    try:
        if last.exists():
            return load_checkpoint(last), last
    except DamagedError as error:
        trouble = f"{last} is damaged ({error.reason})"
    if not previous.exists():
        raise InputError(
            f"{trouble} and there is no {previous.name} to go on from; put back a copy, or remove it to begin anew"
        )
    try:
        checkpoint = load_checkpoint(previous)
    except DamagedError as error:
        raise InputError(
            f"{trouble} and {previous} is damaged ({error.reason}); put back a copy of one, or remove both to begin "
            "anew"
        ) from None
    warnings.warn(f"{trouble}; going on from {previous}, {_place(checkpoint)}", WidemarginWarning, stacklevel=2)
    return checkpoint, previous


def _place(checkpoint: Checkpoint) -> str:
    description = checkpoint.description
    return f"epoch {description.epoch} and step {description.step}; what was trained after it is trained again"
