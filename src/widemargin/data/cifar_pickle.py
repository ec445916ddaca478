"""Read a CIFAR-10 "python version" batch without trusting pickle.

A pickle is a program, and loading one runs it. Here it can run nothing: its instructions are checked against the few a
batch needs, every name it mentions becomes an inert ``_Name``, and calling a name only writes the call down. What comes
out is a description of the array, from which we take the shape, the type and the bytes ourselves.
"""

import io
import pickle
import pickletools
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from widemargin.errors import InputError

_PIXELS = 3 * 32 * 32
_NAMES = frozenset(
    {
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),
    }
)
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

Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def read_python_batch(content: bytes, where: str, *, records: int) -> Batch:
    """((records, 3072) uint8, (records,) int64) from the bytes of one batch file."""
    try:
        _check_instructions(content)
        batch = _InertUnpickler(io.BytesIO(content), encoding="bytes").load()
        return _pixels(_entry(batch, b"data"), records), _labels(_entry(batch, b"labels"), records)
    except Exception as error:  # a hostile file may fail anywhere, and nothing of ours runs in between
        raise InputError(f"{where}: not a CIFAR-10 python batch ({error}); nothing in it was executed") from error


class _Name:
    """Stands for a name in the file. It leads nowhere."""

    __slots__ = ("dotted",)

    def __init__(self, dotted: str) -> None:
        self.dotted = dotted

    def __call__(self, *arguments: object) -> object:
        if self.dotted == "_codecs.encode":  # how Python 3 writes bytes in protocol 2
            return _latin1(*arguments)
        return _Call(self.dotted, arguments)

    def __setstate__(self, state: object) -> NoReturn:
        raise ValueError(f"it tries to change {self.dotted}")


class _Call:
    """A call the file asks for, written down and not made."""

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, arguments: tuple[object, ...]) -> None:
        self.name = name
        self.arguments = arguments
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _InertUnpickler(pickle.Unpickler):
    """Gives a stand-in for the names a batch needs and refuses all others."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
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


def _latin1(text: object = None, encoding: object = None) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise ValueError("it encodes something other than latin1 text")
    return text.encode("latin1")


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


def _labels(labels: object, records: int) -> npt.NDArray[np.int64]:
    if not isinstance(labels, list) or len(labels) != records:
        raise ValueError(f"its 'labels' is not a list of {records}")
    if not all(type(label) is int and 0 <= label < 10 for label in labels):
        raise ValueError("its 'labels' are not whole numbers from 0 to 9")
    return np.array(labels, dtype=np.int64)
