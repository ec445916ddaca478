"""Street View House Numbers, cropped, as published: ``train_32x32.mat`` and ``test_32x32.mat``, in MATLAB's format 5.

Such a file is a header of 128 bytes and then elements: a tag (type and size in bytes) and content. Here an element is
an array, or an array deflated, as both are here. An array holds more elements: flags with its class, dimensions, name,
values; what is short stands inside the tag. Values lie in Fortran order, in whatever type they fit into. ``X`` holds
the images, (32, 32, 3, N) uint8, and ``y`` the labels, (N, 1), of which 10 stands for the digit 0.

Nothing else of the format is read: cells, structures, objects, sparse and complex arrays are refused.
"""

import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from widemargin.core.files import check_file, readable
from widemargin.data.idx import check_claim
from widemargin.data.image_set import ImageSet
from widemargin.errors import InputError

_HEADER, _TAG = 128, 8
_ARRAY, _DEFLATED = 14, 15
_TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
"""How values are stored, by the number of the type."""
_NUMBERS = range(6, 16)
"""Classes of arrays that are plain numbers: double, single, then the integers."""
_COMPLEX = 0x0800
_SHORT = 4096
"""Bytes at most of what is not values: flags, dimensions, a name."""
_CHUNK, _PIECE = 1 << 16, 1 << 20
"""Bytes read and inflated at once."""
Array = npt.NDArray[Any]


def read_svhn(path: Path) -> ImageSet:
    """The images of one file, digit 0 being class 0."""
    arrays = _read_arrays(path, ("X", "y"))
    for name in ("X", "y"):
        if name not in arrays:
            raise InputError(f"{path}: holds no array {name!r}; fetch the file again")
    images, labels = arrays["X"], arrays["y"].reshape(-1)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise InputError(
            f"{path}: X must be (32, 32, 3, N) uint8, got {images.shape} {images.dtype}; use the file of cropped digits"
        )
    if len(labels) != images.shape[3]:
        raise InputError(f"{path}: holds {images.shape[3]} images and {len(labels)} labels; fetch the file again")
    if not np.isin(labels, np.arange(1, 11)).all():
        raise InputError(f"{path}: labels must be 1 to 10, where 10 is the digit 0; fetch the file again")
    pixels = np.ascontiguousarray(images.transpose(3, 2, 0, 1))
    digits = torch.from_numpy(labels.astype(np.int64)) % 10
    return ImageSet(torch.from_numpy(pixels), digits, num_classes=10, name="svhn")


def _read_arrays(path: Path, names: tuple[str, ...]) -> dict[str, Array]:
    """The arrays of these names; others are passed over."""
    check_file(path)
    found: dict[str, Array] = {}
    with readable(f"{path}: cannot be read as a MATLAB 5 file", "fetch it again"), path.open("rb") as file:
        left = path.stat().st_size - _HEADER
        _check_header(file.read(_HEADER))
        while left > 0:
            kind, size = struct.unpack("<2I", _exactly(file, _TAG))
            left -= _TAG + size
            if left < 0:
                raise ValueError("it ends in the middle of an array")
            element: _Stored | _Inflated = _Stored(file, size)
            if kind == _DEFLATED:
                element = _Inflated(file, size)
                kind, told = struct.unpack("<2I", element.read(_TAG))
                element.left = told
            if kind != _ARRAY:
                raise ValueError(f"it holds an element of type {kind} where an array should be")
            name, values = _read_array(element, path, names)
            element.finish()
            if values is not None:
                found[name] = values
    return found


def _check_header(header: bytes) -> None:
    if len(header) < _HEADER:
        raise ValueError("it is shorter than a header")
    version, order = header[124:126], header[126:]
    if order != b"IM" or version != b"\x00\x01":
        newer = " (it is of the newer format 7.3)" if header.startswith(b"MATLAB 7.3") else ""
        raise ValueError(f"its header is that of no such file, or of another byte order{newer}")


def _exactly(file: BinaryIO, size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise EOFError("it ends in the middle of an array")
    return content


@dataclass
class _Stored:
    """The content of an element as it lies in the file, of which ``left`` bytes were not read yet."""

    file: BinaryIO
    stored: int

    def __post_init__(self) -> None:
        self.left = self.stored

    def read(self, size: int) -> bytes:
        """So many bytes."""
        self.left -= size
        if self.left < 0:
            raise ValueError("an array holds less than it says")
        return _exactly(self.file, size)

    def finish(self) -> None:
        """Go to the next element."""
        self.file.seek(self.left, 1)


class _Inflated:
    """The content of a deflated element, inflated as far as it is asked for."""

    def __init__(self, file: BinaryIO, stored: int) -> None:
        self._file, self._stored, self.stored = file, stored, stored
        self._inflating, self._ready = zlib.decompressobj(), b""
        self.left = _TAG  # until the tag inside says how much there is

    def read(self, size: int) -> bytes:
        """So many bytes."""
        self.left -= size
        if self.left < 0:
            raise ValueError("an array holds less than it says")
        parts, missing = [], size
        while missing:
            part = self._inflate(min(missing, _PIECE))
            if not part:
                raise EOFError("a deflated array ends too early")
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _inflate(self, most: int) -> bytes:
        while True:
            if not self._ready and self._stored:
                self._ready = _exactly(self._file, min(self._stored, _CHUNK))
                self._stored -= len(self._ready)
            content = self._inflating.decompress(self._ready, most)
            self._ready = self._inflating.unconsumed_tail
            if content or self._inflating.eof or not (self._ready or self._stored):
                return content

    def finish(self) -> None:
        """Pass over what is left; the checksum stands at the very end."""
        while self.left:
            self.read(min(self.left, _CHUNK))
        if self._inflate(1) or not self._inflating.eof or self._stored or self._inflating.unused_data:
            raise ValueError("a deflated array holds more than it says")


def _read_array(element: _Stored | _Inflated, path: Path, names: tuple[str, ...]) -> tuple[str, Array | None]:
    """(name, values) of an array, no values where nobody asks for it."""
    flags = _read_values(element, "<u4")
    shape = _read_values(element, "<i4")
    name = _read_values(element, "i1").tobytes().decode("latin1")
    if name not in names:
        return name, None
    if int(flags[0]) & 0xFF not in _NUMBERS or int(flags[0]) & _COMPLEX:
        raise ValueError(f"{name} is not a plain array of real numbers")
    sizes = tuple(int(size) for size in shape)
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"{name} has the shape {sizes[:8]}")
    kind, size, short = _read_tag(element)
    claimed = math.prod(sizes) * np.dtype(kind).itemsize
    check_claim(f"{path}: {name}", claimed=claimed, stored=element.stored, deflated=isinstance(element, _Inflated))
    if size != claimed:
        raise ValueError(f"{name} is {size} bytes, for shape {sizes} of {kind} they should be {claimed}")
    content = element.read(size) if short is None else short
    return name, np.frombuffer(content, dtype=kind).reshape(sizes, order="F")


def _read_values(element: _Stored | _Inflated, expected: str) -> Array:
    """An element inside an array, before its values: flags, dimensions or a name."""
    kind, size, short = _read_tag(element)
    if kind != expected or size > _SHORT or size % np.dtype(kind).itemsize:
        raise ValueError(f"an element of type {kind} and {size} bytes stands in the place of another")
    content = element.read(size) if short is None else short
    if short is None:
        element.read(-size % _TAG)
    return np.frombuffer(content, dtype=kind)


def _read_tag(element: _Stored | _Inflated) -> tuple[str, int, bytes | None]:
    """(type, size in bytes, the values themselves where they are short enough to stand in the tag)."""
    first, second = struct.unpack("<2I", element.read(_TAG))
    kind, short = first & 0xFFFF, first >> 16
    if kind not in _TYPES or short > 4:
        raise ValueError(f"an element is of type {first}")
    return (_TYPES[kind], short, struct.pack("<I", second)[:short]) if short else (_TYPES[kind], second, None)
