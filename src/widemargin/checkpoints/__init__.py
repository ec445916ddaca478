"""Checkpoints that say what they are, know when they are damaged, and keep the one before until the next is safe."""

from widemargin.checkpoints.checksum import DamagedError, read_checksum
from widemargin.checkpoints.description import FORMAT, Description, Which, software_versions
from widemargin.checkpoints.file import TRAIN_PREFIX, Checkpoint, load_checkpoint, save_checkpoint
from widemargin.checkpoints.previous import PREVIOUS, load_newest
from widemargin.checkpoints.restore import fitting, load_weights, restore_model

__all__ = [
    "FORMAT",
    "PREVIOUS",
    "TRAIN_PREFIX",
    "Checkpoint",
    "DamagedError",
    "Description",
    "Which",
    "fitting",
    "load_checkpoint",
    "load_newest",
    "load_weights",
    "read_checksum",
    "restore_model",
    "save_checkpoint",
    "software_versions",
]
