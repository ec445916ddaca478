"""``gallery.npz``: a few images, their adversarial twins, and what the model called both."""

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from widemargin.errors import InputError
from widemargin.records import changed

GALLERY = "gallery.npz"
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Images (G, C, H, W) and classes (G,)."""

    images: Bytes
    adversarial: Bytes
    labels: Integers
    predictions: Integers
    adversarial_predictions: Integers
    attack: str


def read_gallery(path: Path, digest: str = "") -> Gallery | None:
    """Read the gallery, whose report may know its digest; None where there is none. Nothing is unpickled."""
    if not path.is_file():
        return None
    if digest and hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise changed(path, "remove it, and evaluate again")
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is not a readable .npz file ({error}); evaluate again, or move it away") from None
    return _gallery(path, arrays)


def _gallery(path: Path, arrays: "dict[str, np.ndarray[Any, Any]]") -> Gallery:
    classes = ("labels", "predictions", "adversarial_predictions")
    missing = [key for key in ("images", "adversarial", *classes) if key not in arrays]
    if missing:
        raise InputError(f"{path} has no {missing[0]!r}; evaluate again, or move it away")
    images = arrays["images"]
    fits = images.ndim == 4 and images.dtype == np.uint8 and images.shape[1] in (1, 3)
    if not fits or arrays["adversarial"].shape != images.shape or arrays["adversarial"].dtype != np.uint8:
        raise InputError(f"{path}: images and adversarial must be (G, 1 or 3, H, W) uint8, got {images.shape}")
    if any(arrays[key].shape != images.shape[:1] for key in classes):
        raise InputError(f"{path}: labels and predictions must be ({len(images)},), one for each image")
    return Gallery(
        images=images,
        adversarial=arrays["adversarial"],
        attack=str(arrays["attack"]) if "attack" in arrays else "",
        **{key: arrays[key].astype(np.int64) for key in classes},
    )
