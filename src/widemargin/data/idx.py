"""The idx format of MNIST, gzipped or not: a big-endian header (magic, one size per dimension), then uint8 values.

The magic number's third byte is the type (8: uint8), its fourth the number of dimensions. Headers are read before
anything is allocated, here and in the other readers: a size that the file could not possibly hold, or that this machine
could not hold, ends in one line to the user and not in a ``MemoryError`` or a killed process.
"""

import gzip
import math
import os
import struct
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from widemargin.core.files import check_file, readable
from widemargin.errors import InputError

DEFLATE_LIMIT = 1032  # deflate (gzip, zip) cannot shrink data further than 1032 to 1
_FALLBACK_MEMORY = 16 * 2**30
_GZIP_MARK = b"\x1f\x8b"
_UINT8 = 0x08


def read_images(path: Path) -> Tensor:
    """(N, 1, H, W) uint8 from an ``idx3-ubyte`` file."""
    return _read(path, dimensions=3).unsqueeze(1)


def read_labels(path: Path) -> Tensor:
    """(N,) int64 from an ``idx1-ubyte`` file."""
    return _read(path, dimensions=1).to(torch.int64)


def _read(path: Path, *, dimensions: int) -> Tensor:
    check_file(path)
    header = 4 + 4 * dimensions
    with readable(f"{path}: cannot be read as an idx file", "fetch it again"):
        with path.open("rb") as stored:
            deflated = stored.read(2) == _GZIP_MARK
        with cast(BinaryIO, gzip.open(path) if deflated else path.open("rb")) as stream:
            shape = _read_shape(stream, path, dimensions)
            expected = math.prod(shape)
            check_claim(str(path), claimed=expected + header, stored=path.stat().st_size, deflated=deflated)
            content, surplus = stream.read(expected), len(stream.read(1))
    if len(content) != expected or surplus:
        actual = "more" if surplus else f"{len(content) + header}"
        raise InputError(
            f"{path}: expected {expected + header} bytes for shape {shape}, got {actual}; fetch the file again"
        )
    values = np.frombuffer(content, dtype=np.uint8).reshape(shape).copy()  # bytes are read-only, tensors are not
    return torch.from_numpy(values)


def _read_shape(stream: BinaryIO, path: Path, dimensions: int) -> tuple[int, ...]:
    """The sizes in the header, after checking the magic number."""
    size = 4 + 4 * dimensions
    header = stream.read(size)
    if len(header) != size:
        raise InputError(f"{path}: expected an idx header of {size} bytes, got {len(header)}; fetch it again")
    magic, *shape = struct.unpack(f">{1 + dimensions}I", header)
    wanted = (_UINT8 << 8) | dimensions
    if magic != wanted:
        kinds = {0x0803: "images", 0x0801: "labels"}
        found = f"an idx file of {kinds[magic]}" if magic in kinds else "not an MNIST idx file"
        raise InputError(
            f"{path}: expected magic number {wanted} ({kinds[wanted]}), got {magic}: this is {found}; "
            "put the right file there"
        )
    if 0 in shape:
        raise InputError(f"{path}: holds no values (shape {tuple(shape)}); fetch the file again")
    return tuple(shape)


def check_claim(where: str, *, claimed: int, stored: int, deflated: bool, held: bool = True) -> None:
    """``where`` says it holds ``claimed`` bytes in ``stored`` bytes of disk: possible, and (``held``) not too much?"""
    most = (stored + 1) * DEFLATE_LIMIT if deflated else stored
    if claimed > most:
        raise InputError(
            f"{where}: the header promises {claimed} bytes, more than {stored} stored bytes can hold; "
            "the file is damaged or cut short, fetch it again"
        )
    if held and claimed > memory_limit():
        raise InputError(
            f"{where}: the header promises {claimed} bytes, more than half of this machine's memory; "
            "use fewer or smaller images"
        )


def memory_limit() -> int:
    """Half of the physical memory, in bytes: images are held whole, and something must be left to work with."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):  # not a POSIX machine
        return _FALLBACK_MEMORY // 2
