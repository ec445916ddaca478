"""TF32, on purpose: published numbers are plain float32, training may be quicker.

The switches belong to the whole process: the block that was entered last decides, and the last one to be left puts
back what the user had, whichever threads they are in.

Torch has two ways to ask, ``allow_tf32`` and ``fp32_precision``. The first is used unless the user has said something
in the second: it cannot be read then, or what it sets is overruled. What an operator inherited there is its own after.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

Switches = tuple[bool | str, ...]
"""Whether convolutions, and whether matrix products, may use TF32, as ``allow_tf32``; or as ``fp32_precision``, which
has a third for recurrent layers."""
FULL: Switches = (False, False)
TF32: Switches = (True, True)
_NEWER: dict[Switches, Switches] = {FULL: ("ieee",) * 3, TF32: ("tf32",) * 3}
"""The same as ``fp32_precision``."""


@contextmanager
def full_float32() -> Iterator[None]:
    """Convolutions and matrix products without TF32 inside, the user's settings restored after."""
    with _switched(FULL):
        yield


@contextmanager
def allowing_tf32() -> Iterator[None]:
    """Both with TF32 inside."""
    with _switched(TF32):
        yield


def convolutions_use_tf32() -> bool:
    """Whether they do now."""
    return _read()[0] in (True, "tf32")


def products_use_tf32() -> bool:
    """Whether matrix products do now."""
    return _read()[1] in (True, "tf32")


_lock = threading.Lock()
_open: dict[object, Switches] = {}
"""What each block that somebody is in wants, in the order in which they were entered."""
_users: Switches = (True, False)


@contextmanager
def _switched(wanted: Switches) -> Iterator[None]:
    global _users
    block = object()
    with _lock:
        if not _open:
            _users = _read()
        _open[block] = wanted if not isinstance(_users[0], str) else _NEWER[wanted]
        _set(_open[block])
    try:
        yield
    finally:
        with _lock:
            del _open[block]
            _set(next(reversed(_open.values()), _users))


def _read() -> Switches:
    backends: Any = torch.backends
    with suppress(RuntimeError):  # which the older way raises where it cannot say what is set
        if backends.fp32_precision == backends.cudnn.fp32_precision == "none":  # else they overrule it
            return backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32
    return tuple(part.fp32_precision for part in (backends.cudnn.conv, backends.cuda.matmul, backends.cudnn.rnn))


def _set(wanted: Switches) -> None:
    backends: Any = torch.backends
    if isinstance(wanted[0], str):
        for part, value in zip((backends.cudnn.conv, backends.cuda.matmul, backends.cudnn.rnn), wanted, strict=True):
            part.fp32_precision = value
    elif wanted != _read():
        backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32 = wanted
