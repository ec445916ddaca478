"""A user's own data in one ``.npz`` file, as ``numpy.savez`` or ``numpy.savez_compressed`` write it.

It holds ``images`` and ``labels``, or ``train_images``, ``train_labels``, ``test_images`` and ``test_labels``; also,
if the labels do not show every class, a number ``num_classes``. Images are (N, H, W), (N, C, H, W) or (N, H, W, C),
C being 1 or 3. Array headers are compared with the zip directory before anything is allocated, and pickled objects
are refused.
"""

import math
import mmap
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch

from widemargin.core.files import check_file, readable
from widemargin.data.idx import check_claim
from widemargin.data.image_set import ImageSet
from widemargin.errors import InputError

_CHANNELS = (1, 3)
_HEADER_ROOM = 4096
_FEW, _SHOWN = 8, 40  # names of arrays that are told, and characters of one
_FORM = "numpy.savez(file, images=..., labels=...) or train_images/train_labels/test_images/test_labels"
_MOST_CLASSES = 2**20  # a label beyond is no class number, and a network for it could not be built
Array = npt.NDArray[Any]


def has_parts(path: Path) -> bool:
    """Whether the file holds a train and a test part, and not a single set."""
    with open_npz(path) as archive:
        return not {"images.npy", "labels.npy"} <= set(archive.namelist())


def read_npz(path: Path, split: str) -> ImageSet:
    """The images of one split, or of the single set that the file holds."""
    with open_npz(path) as archive:
        names = set(archive.namelist())
        prefix = "" if {"images.npy", "labels.npy"} <= names else f"{split}_"
        _check_names(names, prefix, path)
        labels = _labels(Member.of(archive, f"{prefix}labels", path))
        images = _images(Member.of(archive, f"{prefix}images", path))
        classes = _num_classes(archive, labels, path)
    return ImageSet(torch.from_numpy(images), torch.from_numpy(labels), num_classes=classes, name=path.name)


def open_npz(path: Path) -> zipfile.ZipFile:
    """The archive, or one line about why it is none."""
    check_file(path)
    with readable(f"{path}: cannot be read as an .npz file", f"write it with {_FORM}"):
        return zipfile.ZipFile(path)


def _check_names(names: set[str], prefix: str, path: Path) -> None:
    missing = sorted({f"{prefix}images.npy", f"{prefix}labels.npy"} - names)
    if missing:
        arrays = sorted(name.removesuffix(".npy")[:_SHOWN] for name in names)
        more = f" and {len(arrays) - _FEW} more" if len(arrays) > _FEW else ""
        held = (", ".join(arrays[:_FEW]) or "nothing") + more
        absent = ", ".join(name.removesuffix(".npy") for name in missing)
        raise InputError(f"{path}: has no array {absent}, it holds {held}; write it with {_FORM}")


@dataclass(frozen=True)
class Member:
    """One array of the file: what its header says, and how to get its values, in memory or mapped."""

    archive: zipfile.ZipFile
    where: str
    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    offset: int

    @staticmethod
    def of(archive: zipfile.ZipFile, name: str, path: Path, *, held: bool = True) -> "Member":
        """Read the header only, and check that the sizes in it can be true; ``held`` means in memory."""
        where = f"{path}: {name}"
        with readable(f"{where} cannot be read", "write the file again with numpy.savez"):
            info = archive.getinfo(f"{name}.npy")
            with archive.open(info) as stream:
                shape, fortran, dtype = _read_header(stream)  # which numpy parses as Python text
                member = Member(archive, where, info, shape, fortran, dtype, stream.tell())
        member._check_size(held=held)
        return member

    def _check_size(self, *, held: bool) -> None:
        if self.dtype.hasobject or self.dtype.fields is not None:
            raise InputError(f"{self.where} holds Python objects, not numbers; store uint8 or float32 arrays")
        if min(self.shape, default=1) < 1 or self.dtype.itemsize < 1:
            raise InputError(f"{self.where} must hold at least one value, got shape {self.shape} {self.dtype}")
        claimed = math.prod(self.shape) * self.dtype.itemsize + self.offset
        deflated = self.info.compress_type != zipfile.ZIP_STORED
        check_claim(self.where, claimed=claimed, stored=self.info.compress_size, deflated=deflated, held=held)
        if claimed != self.info.file_size:
            raise InputError(
                f"{self.where} should be {claimed} bytes for shape {self.shape} {self.dtype}, "
                f"but the archive says {self.info.file_size}; write the file again with numpy.savez"
            )

    def values(self) -> Array:
        """The values, in C order and native byte order."""
        size = math.prod(self.shape) * self.dtype.itemsize
        with readable(f"{self.where} is damaged", "write the file again"), self.archive.open(self.info) as stream:
            content = stream.read(self.offset + size)
            surplus = stream.read(1)  # reading to the end also makes zipfile compare the checksum
        if len(content) != self.offset + size or surplus:
            raise InputError(f"{self.where} should be {self.offset + size} bytes, got {len(content)}; write it again")
        flat = np.frombuffer(content, dtype=self.dtype, offset=self.offset)
        return flat.reshape(self.shape, order="F" if self.fortran else "C")

    def mapped(self, content: mmap.mmap) -> Array:
        """The values where they lie in the mapped file: nothing is read before it is looked at, and no checksum."""
        if self.info.compress_type != zipfile.ZIP_STORED or self.fortran:
            why = "in Fortran order" if self.fortran else "compressed"
            raise InputError(
                f"{self.where} is {why}, so it cannot be read image by image without holding all of it; write the file "
                "again with numpy.savez, of arrays in C order"
            )
        local = self.info.header_offset
        with readable(f"{self.where} is damaged", "write the file again with numpy.savez"):
            name, extra = struct.unpack("<2H", content[local + 26 : local + 30])  # of the file's own header, the last
            start, count = local + 30 + name + extra + self.offset, math.prod(self.shape)
            return np.frombuffer(content, self.dtype, count, start).reshape(self.shape)


def _read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream, max_header_size=_HEADER_ROOM)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream, max_header_size=_HEADER_ROOM)
    raise ValueError(f"unknown array format {version}")


def _images(member: Member) -> Array:
    """(N, C, H, W), uint8 or float32."""
    layout = image_layout(member.shape, member.where)
    if member.dtype != np.uint8 and member.dtype.kind != "f":
        raise InputError(
            f"{member.where} must be uint8, or float in [0, 1], got {member.dtype}; "
            "for 0..255 whole numbers use .astype('uint8')"
        )
    images = member.values()
    images = images[:, None] if layout == "NHW" else images
    images = images.transpose(0, 3, 1, 2) if layout == "NHWC" else images
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which ImageSet refuses
        return np.array(images, dtype=np.uint8 if member.dtype == np.uint8 else np.float32, order="C")


def image_layout(shape: tuple[int, ...], where: str) -> str:
    """Which axis is which: NHW, NCHW or NHWC."""
    if len(shape) == 3:
        return "NHW"
    if len(shape) == 4:
        first, last = shape[1] in _CHANNELS, shape[3] in _CHANNELS
        if first and last:
            raise InputError(
                f"{where} of shape {shape} may be (N, C, H, W) or (N, H, W, C); store one channel as (N, H, W), "
                "or build a widemargin.data.ImageSet from it"
            )
        if first or last:
            return "NCHW" if first else "NHWC"
    raise InputError(f"{where} must be (N, H, W), (N, C, H, W) or (N, H, W, C) with 1 or 3 channels, got {shape}")


def _labels(member: Member) -> npt.NDArray[np.int64]:
    if member.dtype.kind not in "iu" or len(member.shape) != 1 or member.shape[0] < 1:
        raise InputError(
            f"{member.where} must be (N,) whole numbers, at least one, got {member.shape} {member.dtype}; "
            "store class indices from 0, not one-hot rows"
        )
    labels = member.values()
    if labels.max() >= _MOST_CLASSES:
        raise InputError(f"{member.where} must be class indices from 0, below {_MOST_CLASSES}, found {labels.max()}")
    return labels.astype(np.int64)


def _num_classes(archive: zipfile.ZipFile, labels: npt.NDArray[np.int64], path: Path) -> int:
    """``num_classes`` if the file holds it, else the largest label of both parts, so that they agree."""
    names = set(archive.namelist())
    if "num_classes.npy" in names:
        member = Member.of(archive, "num_classes", path)
        if member.shape not in ((), (1,)) or member.dtype.kind not in "iu":
            raise InputError(f"{member.where} must be one whole number, got {member.shape} {member.dtype}")
        count = int(member.values().reshape(-1)[0])
        if count > _MOST_CLASSES:
            raise InputError(f"{member.where} must be at most {_MOST_CLASSES}, got {count}")
        return count
    parts = [name for name in ("train_labels", "test_labels") if f"{name}.npy" in names]
    both = [labels, *(_labels(Member.of(archive, name, path)) for name in parts)]
    return 1 + int(max(part.max() for part in both))
