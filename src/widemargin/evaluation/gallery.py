"""A few images with their adversarial twins: ``gallery.npz`` of an evaluation, written and read.

Whoever reads may be given anything: the sizes that an archive and its arrays claim are checked before anything is
inflated, and nothing is unpickled.
"""

import io
import math
import zipfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from widemargin.core.files import write_atomic
from widemargin.core.records import MIB, changed, digest_of_file
from widemargin.errors import InputError

GALLERY = "gallery.npz"
MOST = 24
"""So many examples are kept."""
INFLATED, SIDE = 32 * MIB, 1024
"""Bytes of an array, and pixels along a side of an image: more is no small picture on a page."""
Array = np.ndarray[Any, np.dtype[Any]]
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

    def write(self, path: Path) -> None:
        """Write ``gallery.npz``, whole or not at all."""
        content = io.BytesIO()
        np.savez_compressed(content, **vars(self))
        write_atomic(path, lambda partial: partial.write_bytes(content.getvalue()))


ARRAYS = tuple(field.name for field in fields(Gallery))
CLASSES = ("labels", "predictions", "adversarial_predictions")


def read_gallery(path: Path, digest: str = "") -> Gallery | None:
    """Read the gallery, whose report may know its digest; None where there is none."""
    if not path.is_file():
        return None
    if digest and digest_of_file(path) != digest:
        raise changed(path, "remove it, and evaluate again")
    try:
        with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
            held = {name.removesuffix(".npy"): archive.getinfo(name) for name in archive.namelist()}
            arrays = {name: _array(archive, held[name]) for name in ARRAYS if name in held}
    except Exception as error:  # zipfile, zlib and numpy fail in many ways on bytes nobody wrote
        raise InputError(f"{path} is not a readable .npz file ({error}); evaluate again, or move it away") from None
    return _gallery(path, arrays)


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """One array, whose header tells the truth about its size."""
    if member.file_size > INFLATED:
        raise ValueError(f"{member.filename} has {member.file_size:,} bytes, more than the {INFLATED:,} of a gallery")
    with archive.open(member) as packed:
        stream = io.BytesIO(packed.read(INFLATED))
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError(f"{member.filename} is no array of a gallery")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    content = stream.read()
    if dtype.hasobject or dtype.fields is not None or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"{member.filename} claims {shape} {dtype} and has {len(content):,} bytes")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


def _gallery(path: Path, arrays: dict[str, Array]) -> Gallery:
    missing = [key for key in ("images", "adversarial", *CLASSES) if key not in arrays]
    if missing:
        raise InputError(f"{path} has no {missing[0]!r}; evaluate again, or move it away")
    images, adversarial = arrays["images"], arrays["adversarial"]
    fits = images.ndim == 4 and images.dtype == np.uint8 and images.shape[1] in (1, 3)
    if not fits or adversarial.shape != images.shape or adversarial.dtype != np.uint8:
        raise InputError(f"{path}: images and adversarial must be (G, 1 or 3, H, W) uint8, got {images.shape}")
    if not all(1 <= side <= SIDE for side in images.shape[2:]):
        raise InputError(f"{path}: images must have 1 to {SIDE} pixels along each side, got {images.shape}")
    if any(arrays[key].shape != images.shape[:1] or arrays[key].dtype.kind not in "iu" for key in CLASSES):
        raise InputError(f"{path}: labels and predictions must be ({len(images)},) whole numbers, one for each image")
    return Gallery(
        images=images[:MOST].copy(),
        adversarial=adversarial[:MOST].copy(),
        attack=str(arrays["attack"])[:80] if arrays.get("attack", images).shape == () else "",
        **{key: arrays[key][:MOST].astype(np.int64) for key in CLASSES},
    )
