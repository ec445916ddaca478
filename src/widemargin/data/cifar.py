"""CIFAR-10 and CIFAR-100 as their authors publish them: binary or python batches, in a folder or in the tar file.

A binary batch is records of the label bytes (of CIFAR-100 the coarse and then the fine label; the fine one counts) and
3,072 pixel bytes (red, green, blue planes of 32 x 32). CIFAR-10 has 10,000 records in each of ``data_batch_1`` to
``data_batch_5``, which in this order are the training data, and in ``test_batch``; CIFAR-100 has 50,000 in ``train``
and 10,000 in ``test``. A tar file stays packed.

A python batch is a pickle, and a pickle is a program: loading one runs it. Here it can run nothing: its instructions
are checked against the few a batch needs, every name it mentions becomes an inert ``_Name``, and calling a name only
writes the call down. What comes out is a description of the array, from which we take the shape, the type and the bytes
ourselves.
"""

import gzip
import io
import pickle
import pickletools
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from widemargin.core.files import check_file, readable
from widemargin.data.image_set import ImageSet
from widemargin.errors import InputError

RECORDS_PER_BATCH = 10_000
_PIXELS = 3 * 32 * 32
_CHUNK = 1 << 16
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)
_WITHOUT_CONTENT = (
    *(tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE),
    *(tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE),
)
"""Members whose size is of nothing that follows."""
Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
"""Pixels (records, 3072) and labels (records,)."""


@dataclass(frozen=True)
class Cifar:
    """One of the two: what its files are called, and what is in them."""

    name: str
    title: str
    classes: int
    label_bytes: int
    labels: bytes
    """What a python batch calls them."""
    stems: dict[str, dict[str, int]]
    """By split and file, how many times 10,000 records it holds."""
    unpacked: tuple[str, str]
    """The folders in the tar files: of the binary version, of the python version."""

    @property
    def record(self) -> int:
        """Bytes of a record in a binary batch."""
        return self.label_bytes + _PIXELS

    @property
    def archives(self) -> tuple[str, str]:
        """The tar files: of the binary version, of the python version."""
        stem = self.name.replace("cifar", "cifar-")
        return f"{stem}-binary.tar.gz", f"{stem}-python.tar.gz"

    def python_sizes(self, records: int) -> tuple[int, int]:
        """The fewest and the most bytes of a python batch: Python 3 may spend two on one, and there are file names."""
        return records * _PIXELS, records * (2 * self.record + 256) + 4096


CIFAR10 = Cifar(
    name="cifar10",
    title="CIFAR-10",
    classes=10,
    label_bytes=1,
    labels=b"labels",
    stems={"train": {f"data_batch_{i}": 1 for i in range(1, 6)}, "test": {"test_batch": 1}},
    unpacked=("cifar-10-batches-bin", "cifar-10-batches-py"),
)
CIFAR100 = Cifar(
    name="cifar100",
    title="CIFAR-100",
    classes=100,
    label_bytes=2,
    labels=b"fine_labels",
    stems={"train": {"train": 5}, "test": {"test": 1}},
    unpacked=("cifar-100-binary", "cifar-100-python"),
)


def find_cifar(kind: Cifar, folder: Path, split: str) -> Path | None:
    """What in ``folder`` holds all batches of this split: the folder with its batch files, or a tar file."""
    if _batch_files(kind, folder, split):
        return folder
    return next((folder / archive for archive in kind.archives if (folder / archive).is_file()), None)


def read_cifar10(place: Path, split: str, *, records_per_batch: int = RECORDS_PER_BATCH) -> ImageSet:
    """The images of one split from a folder of batches or from a tar file."""
    return read_cifar(CIFAR10, place, split, records_per_batch=records_per_batch)


def read_cifar100(place: Path, split: str, *, records_per_batch: int = RECORDS_PER_BATCH) -> ImageSet:
    """The same of CIFAR-100, with its 100 fine labels; its ``train`` counts as five batches."""
    return read_cifar(CIFAR100, place, split, records_per_batch=records_per_batch)


def read_cifar(kind: Cifar, place: Path, split: str, *, records_per_batch: int = RECORDS_PER_BATCH) -> ImageSet:
    """The images of one split of either."""
    check_file(place)
    sizes = {stem: records_per_batch * times for stem, times in kind.stems[split].items()}
    read = _from_folder if place.is_dir() else _from_archive
    contents = read(kind, place, split, sizes)
    batches = [_decode(kind, contents[name], place / name, sizes[_stem(name)]) for name in contents]
    images = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([labels for _, labels in batches])
    return ImageSet(torch.from_numpy(images), torch.from_numpy(labels), num_classes=kind.classes, name=kind.name)


def _file_names(kind: Cifar, split: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The files of a split: in the binary version, in the python version."""
    return tuple(f"{stem}.bin" for stem in kind.stems[split]), tuple(kind.stems[split])


def _stem(name: str) -> str:
    return name.removesuffix(".bin")


def _batch_files(kind: Cifar, folder: Path, split: str) -> list[Path] | None:
    """The batch files, directly in ``folder`` or in the sub-folder that unpacking the tar file makes."""
    for place in (folder / kind.unpacked[0], folder, folder / kind.unpacked[1]):
        for names in _file_names(kind, split):
            files = [place / name for name in names]
            if all(file.is_file() for file in files):
                return files
    return None


def _from_folder(kind: Cifar, folder: Path, split: str, sizes: dict[str, int]) -> dict[str, bytes]:
    files = _batch_files(kind, folder, split)
    if files is None:
        wanted = ", ".join(_file_names(kind, split)[0])
        raise InputError(f"{folder}: expected the {kind.title} files {wanted} (or without .bin), all of them")
    contents = {}
    for path in files:
        with readable(f"{path}: cannot be read", "fetch it again"):
            _check_size(kind, path.stat().st_size, path, sizes[_stem(path.name)])
            contents[path.name] = path.read_bytes()
    return contents


def _from_archive(kind: Cifar, archive: Path, split: str, sizes: dict[str, int]) -> dict[str, bytes]:
    """The batches of one split. The tar file is streamed once, in memory; nothing is unpacked to disk."""
    binary, python = _file_names(kind, split)
    batches = sum(times for stems in kind.stems.values() for times in stems.values())
    records = batches * sum(sizes.values()) // sum(kind.stems[split].values())  # of both splits
    limit = kind.python_sizes(records)[1] * 4 // 3 + 2**20
    with readable(f"{archive}: cannot be read as a tar.gz file", "fetch it again"), gzip.open(archive) as inflated:
        stream = _LimitedStream(inflated, f"{archive}: inflates to more than {kind.title} holds", limit)
        found = _read_members(kind, stream, {*binary, *python}, archive, sizes)
        while stream.read(_CHUNK):  # gzip compares its checksum at the very end, so go there
            pass
    for names in (binary, python):
        if all(name in found for name in names):
            return {name: found[name] for name in names}
    wanted = " or ".join(", ".join(names) for names in (binary, python))
    raise InputError(f"{archive}: expected the members {wanted}, found {sorted(found) or 'none of them'}")


def _read_members(
    kind: Cifar, stream: "_LimitedStream", names: set[str], archive: Path, sizes: dict[str, int]
) -> dict[str, bytes]:
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
            _check_size(kind, member.size, archive / name, sizes[_stem(name)])
            found[name] = stream.read_exactly(member.size)
            stream.skip(-member.size % tarfile.BLOCKSIZE)
        elif member.type not in _WITHOUT_CONTENT:
            stream.skip(member.size + -member.size % tarfile.BLOCKSIZE)
    return found


def _check_size(kind: Cifar, size: int, where: Path, records: int) -> None:
    """Before a byte of the batch is read: the exact size of a binary batch, the plausible range of a python one."""
    low, high = (records * kind.record,) * 2 if where.suffix == ".bin" else kind.python_sizes(records)
    if not low <= size <= high:
        expected = f"{low}" if low == high else f"{low} to {high}"
        raise InputError(f"{where}: expected {expected} bytes, got {size}; fetch the file again")


def _decode(kind: Cifar, content: bytes, where: Path, records: int) -> Batch:
    if where.suffix != ".bin":
        return read_python_batch(content, str(where), records=records, kind=kind)
    _check_size(kind, len(content), where, records)  # a file may have changed since
    table = np.frombuffer(content, dtype=np.uint8).reshape(records, kind.record)
    labels = table[:, kind.label_bytes - 1]
    if labels.max() >= kind.classes:
        last = kind.classes - 1
        raise InputError(f"{where}: labels must be 0 to {last}, found {labels.max()}; fetch the file again")
    return table[:, kind.label_bytes :], labels.astype(np.int64)


class _LimitedStream:
    """A stream that stops a tar file from inflating without end."""

    def __init__(self, stream: gzip.GzipFile, fault: str, limit: int) -> None:
        self._stream, self._fault, self._left = stream, fault, limit

    def read(self, size: int) -> bytes:
        """The next bytes, while the limit lasts."""
        content = self._stream.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise InputError(f"{self._fault}; fetch the file again")
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


# Python batches

_MODULES = {
    "_reconstruct": ("numpy.core.multiarray", "numpy._core.multiarray"),
    **dict.fromkeys(("ndarray", "dtype"), ("numpy",)),
    "encode": ("_codecs",),
}
"""The names that a batch may mention, and where from."""
# What dicts, lists, tuples, numbers, strings and one array are written with; no persistent ids, no classes, no buffers.
# fmt: off
_INSTRUCTIONS = frozenset({
    "PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
    "EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1",
    "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINUNICODE", "SHORT_BINUNICODE",
    "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD",
})
# fmt: on
_NAMING = frozenset({"MEMOIZE", "BINPUT", "LONG_BINPUT"})
_SILENT = frozenset({"PROTO", "FRAME"})  # which leave the top of the stack as it is


def read_python_batch(content: bytes, where: str, *, records: int, kind: Cifar = CIFAR10) -> Batch:
    """((records, 3072) uint8, (records,) int64) from the bytes of one batch file."""
    with readable(f"{where}: not a {kind.title} python batch", "nothing in it was executed"):
        _check_instructions(content)
        batch = _InertUnpickler(io.BytesIO(content), encoding="bytes").load()
        return _pixels(_entry(batch, b"data"), records), _labels(batch, records, kind)


class _Name:
    """Stands for a name in the file. It leads nowhere."""

    __slots__ = ("dotted",)

    def __init__(self, dotted: str) -> None:
        self.dotted = dotted

    def __call__(self, *arguments: object) -> object:
        if self.dotted != "_codecs.encode":
            return _Call(self.dotted, arguments)
        text, *encoding = arguments or (None,)  # how Python 3 writes bytes in protocol 2
        if not isinstance(text, str) or encoding not in (["latin1"], [b"latin1"]):
            raise ValueError("it encodes something other than latin1 text")
        return text.encode("latin1")

    def __setstate__(self, state: object) -> NoReturn:
        raise ValueError(f"it tries to change {self.dotted}")


class _Call:
    """A call the file asks for, written down and not made."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, arguments: tuple[object, ...]) -> None:
        self.name, self.arguments = name, arguments
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _InertUnpickler(pickle.Unpickler):
    """Gives a stand-in for the names a batch needs and refuses all others."""

    def find_class(self, module: str, name: str) -> Any:
        if module not in _MODULES.get(name, ()):
            raise ValueError(f"it asks for {module}.{name}")
        return _Name(f"{module}.{name}")


def _check_instructions(content: bytes) -> None:
    """Every instruction is a known one, whole, and no memo number is larger than the file could have filled.

    No tuple is used twice either: tuples of tuples used twice grow without end when hashed, as keys of a dict are.
    """
    top, named, tuples = "", 0, set[int]()
    for count, (code, argument, _) in enumerate(pickletools.genops(content)):
        if code.name not in _INSTRUCTIONS:
            raise ValueError(f"it holds the pickle instruction {code.name}")
        if code.name in _NAMING:
            number = argument if isinstance(argument, int) else named
            if number > count:
                raise ValueError(f"it numbers an object {number} after {count} instructions")
            (tuples.add if top.startswith("TUPLE") else tuples.discard)(number)
            named += 1
        elif code.name.endswith("BINGET") and argument in tuples:
            raise ValueError("it uses a tuple twice")
        elif code.name not in _SILENT:
            top = code.name


def _entry(batch: object, key: bytes) -> object:
    """``batch[key]``; a batch rewritten by Python 3 may have str keys."""
    if not isinstance(batch, dict):
        raise ValueError(f"it holds a {type(batch).__name__}, not a dict")
    for name in (key, key.decode()):
        if name in batch:
            return batch[name]
    raise ValueError(f"it has no entry {key.decode()!r}")


def _pixels(array: object, records: int) -> npt.NDArray[np.uint8]:
    """The array that ``_reconstruct(ndarray, ...)`` and its state (version, shape, dtype, fortran, bytes) describe."""
    if not (isinstance(array, _Call) and array.name.endswith("_reconstruct")):
        raise ValueError("its 'data' is not an array")
    if not (isinstance(array.state, tuple) and len(array.state) == 5):
        raise ValueError("its array has no contents")
    _, shape, dtype, fortran, raw = array.state
    if shape != (records, _PIXELS):
        raise ValueError(f"its 'data' does not have the shape {(records, _PIXELS)}")  # theirs may be endless to print
    if not (isinstance(dtype, _Call) and dtype.arguments[:1] in ((b"u1",), ("u1",))) or fortran:
        raise ValueError("its 'data' is not a C-ordered uint8 array")
    if not isinstance(raw, bytes) or len(raw) != records * _PIXELS:
        raise ValueError(f"its 'data' does not hold {records * _PIXELS} bytes")
    return np.frombuffer(raw, dtype=np.uint8).reshape(records, _PIXELS)


def _labels(batch: object, records: int, kind: Cifar) -> npt.NDArray[np.int64]:
    labels, name = _entry(batch, kind.labels), kind.labels.decode()
    if not isinstance(labels, list) or len(labels) != records:
        raise ValueError(f"its {name!r} is not a list of {records}")
    if not all(type(label) is int and 0 <= label < kind.classes for label in labels):
        raise ValueError(f"its {name!r} are not whole numbers from 0 to {kind.classes - 1}")
    return np.array(labels, dtype=np.int64)
