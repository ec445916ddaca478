"""CIFAR-10 as its authors publish it: binary or python batches, in a folder or in the tar file, which stays packed.

A binary batch is 10,000 records of one label byte and 3,072 pixel bytes (red, green, blue planes of 32 x 32). Training
data are ``data_batch_1`` to ``data_batch_5``, in this order, and the test data ``test_batch``.
"""

import gzip
import tarfile
from pathlib import Path, PurePosixPath

import numpy as np
import torch

from widemargin.data.cifar_pickle import Batch, read_python_batch
from widemargin.data.image_set import ImageSet
from widemargin.errors import InputError
from widemargin.files import check_file

RECORDS_PER_BATCH = 10_000
STEMS = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
_RECORD = 1 + 3 * 32 * 32
_CHUNK = 1 << 16
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)
_WITHOUT_CONTENT = (
    *(tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE),
    *(tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE),
)
"""Members whose size is of nothing that follows."""
_PYTHON_RECORD = 2 * _RECORD + 256  # at most: Python 3 may spend two bytes on one, and there are file names


def find_cifar10(folder: Path, split: str) -> Path | None:
    """What in ``folder`` holds all batches of this split: the folder with its batch files, or a tar file."""
    if _batch_files(folder, split):
        return folder
    archives = (folder / "cifar-10-binary.tar.gz", folder / "cifar-10-python.tar.gz")
    return next((archive for archive in archives if archive.is_file()), None)


def read_cifar10(place: Path, split: str, *, records_per_batch: int = RECORDS_PER_BATCH) -> ImageSet:
    """The images of one split from a folder of batches or from a tar file."""
    check_file(place)
    read = _from_folder if place.is_dir() else _from_archive
    contents = read(place, split, records_per_batch)
    batches = [_decode(contents[name], name, place, records_per_batch) for name in contents]
    images = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([labels for _, labels in batches])
    return ImageSet(torch.from_numpy(images), torch.from_numpy(labels), num_classes=10, name="cifar10")


def _file_names(split: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files of a split: in the binary version, in the python version."""
    return tuple(f"{stem}.bin" for stem in STEMS[split]), STEMS[split]


def _batch_files(folder: Path, split: str) -> list[Path] | None:
    """The batch files, directly in ``folder`` or in the sub-folder that unpacking the tar file makes."""
    for place in (folder / "cifar-10-batches-bin", folder, folder / "cifar-10-batches-py"):
        for names in _file_names(split):
            files = [place / name for name in names]
            if all(file.is_file() for file in files):
                return files
    return None


def _from_folder(folder: Path, split: str, records: int) -> dict[str, bytes]:
    files = _batch_files(folder, split)
    if files is None:
        wanted = ", ".join(_file_names(split)[0])
        raise InputError(f"{folder}: expected the CIFAR-10 files {wanted} (or without .bin), all of them")
    return {file.name: _read_file(file, records) for file in files}


def _read_file(path: Path, records: int) -> bytes:
    try:
        _check_size(path.stat().st_size, path.name, path.parent, records)
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error})") from error


def _from_archive(archive: Path, split: str, records: int) -> dict[str, bytes]:
    """The batches of one split. The tar file is streamed once, in memory; nothing is unpacked to disk."""
    binary, python = _file_names(split)
    try:
        with gzip.open(archive) as inflated:
            stream = _Capped(inflated, archive, 8 * records * _PYTHON_RECORD + 2**20)
            found = _read_members(stream, {*binary, *python}, archive, records)
            while stream.read(_CHUNK):  # gzip compares its checksum at the very end, so go there
                pass
    except InputError:
        raise
    except Exception as error:  # gzip and tarfile fail in many ways on bytes nobody wrote
        raise InputError(f"{archive}: cannot be read as a tar.gz file ({error}); fetch it again") from error
    return _complete(found, (binary, python), archive)


def _read_members(stream: "_Capped", names: set[str], archive: Path, records: int) -> dict[str, bytes]:
    """The members with these names, whatever folder they are in.

    Headers that extend others (pax, long names) are passed over: ours need none, and tarfile may take hours over them.
    """
    found: dict[str, bytes] = {}
    while header := stream.read(tarfile.BLOCKSIZE):
        try:
            member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # a block of zeros, which ends the archive
            break
        name = PurePosixPath(member.name).name
        if member.size < 0:
            raise ValueError(f"it has a member of {member.size} bytes")
        if member.type in _FILES and name in names:
            _check_size(member.size, name, archive, records)
            found[name] = stream.read_exactly(member.size)
            stream.skip(-member.size % tarfile.BLOCKSIZE)
        elif member.type not in _WITHOUT_CONTENT:
            stream.skip(member.size + -member.size % tarfile.BLOCKSIZE)
    return found


def _complete(found: dict[str, bytes], choices: tuple[tuple[str, ...], ...], archive: Path) -> dict[str, bytes]:
    for names in choices:
        if all(name in found for name in names):
            return {name: found[name] for name in names}
    wanted = " or ".join(", ".join(names) for names in choices)
    raise InputError(f"{archive}: expected the members {wanted}, found {sorted(found) or 'none of them'}")


def _check_size(size: int, name: str, place: Path, records: int) -> None:
    """Before a byte of the batch is read: the exact size of a binary batch, the plausible range of a python one."""
    if name.endswith(".bin"):
        low = high = records * _RECORD
    else:
        low, high = records * (_RECORD - 1), records * _PYTHON_RECORD + 4096
    if not low <= size <= high:
        expected = f"{low}" if low == high else f"{low} to {high}"
        raise InputError(f"{place / name}: expected {expected} bytes, got {size}; fetch the file again")


def _decode(content: bytes, name: str, place: Path, records: int) -> Batch:
    if not name.endswith(".bin"):
        return read_python_batch(content, str(place / name), records=records)
    if len(content) != records * _RECORD:
        raise InputError(f"{place / name}: expected {records * _RECORD} bytes, got {len(content)}; fetch it again")
    table = np.frombuffer(content, dtype=np.uint8).reshape(records, _RECORD)
    if table[:, 0].max() > 9:
        raise InputError(f"{place / name}: labels must be 0 to 9, found {table[:, 0].max()}; fetch the file again")
    return table[:, 1:], table[:, 0].astype(np.int64)


class _Capped:
    """A stream that stops a tar file from inflating without end."""

    def __init__(self, stream: gzip.GzipFile, archive: Path, limit: int) -> None:
        self._stream, self._archive, self._left = stream, archive, limit

    def read(self, size: int) -> bytes:
        """The next bytes, while the limit lasts."""
        content = self._stream.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise InputError(f"{self._archive}: inflates to more than CIFAR-10 holds; fetch the file again")
        return content

    def read_exactly(self, size: int) -> bytes:
        """So many bytes; fewer are an error."""
        content = self.read(size)
        if len(content) < size:
            raise EOFError("it ends in the middle of a member")
        return content

    def skip(self, size: int) -> None:
        """Read so many bytes and forget them."""
        while size:
            size -= len(self.read_exactly(min(size, _CHUNK)))
