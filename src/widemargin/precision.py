"""TF32, on purpose: published numbers are plain float32, training may be quicker, and no thread changes another's.

The switches belong to the whole process. Threads that want the same setting run together. A thread that wants the
other one waits and gives up its own hold meanwhile; otherwise two threads that change over to each other's setting
would wait for ever.

Torch has two ways to ask, ``allow_tf32`` and ``fp32_precision``. The first is used unless the user has said something
in the second: it cannot be read then, or what it sets is overruled. What an operator inherited there is its own after.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

Switches = tuple[bool | str, ...]
"""Whether convolutions, and whether matrix products, may use TF32, as ``allow_tf32``; or as ``fp32_precision``, which
has a third for recurrent layers."""
FULL: Switches = (False, False)
TF32: Switches = (True, True)
NEWER: dict[bool | str, str] = {False: "ieee", True: "tf32"}


@contextmanager
def full_float32() -> Iterator[None]:
    """Convolutions and matrix products without TF32 inside, the user's settings restored after."""
    with _held(FULL):
        yield


@contextmanager
def allowing_tf32() -> Iterator[None]:
    """Both with TF32 inside."""
    with _held(TF32):
        yield


@contextmanager
def as_the_user_has_it() -> Iterator[None]:
    """The user's own settings, which nobody changes meanwhile."""
    with _held(None):
        yield


@contextmanager
def no_autocast() -> Iterator[None]:
    """Operators compute in the type of their tensors inside, whatever is around."""
    with ExitStack() as inside:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                inside.enter_context(torch.autocast(kind, enabled=False))
        yield


@contextmanager
def default_type(wanted: torch.dtype) -> Iterator[None]:
    """New tensors are of this type inside; the user's own default, which the whole process has, is restored after."""
    before = torch.get_default_dtype()
    if before == wanted:
        yield
        return
    torch.set_default_dtype(wanted)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def convolutions_use_tf32() -> bool:
    """Whether they do now."""
    return _read()[0] in (True, "tf32")


def products_use_tf32() -> bool:
    """Whether matrix products do now."""
    return _read()[1] in (True, "tf32")


_changed = threading.Condition()
_held_by: dict[int, Switches] = {}
"""What each thread inside a block has; all the same. While there is none the switches are the user's."""
_users: Switches = (True, False)


@contextmanager
def _held(wanted: Switches | None) -> Iterator[None]:
    """The switches as wanted, None for as the user has them, until the block ends."""
    me = threading.get_ident()
    with _changed:
        around = _let_go(me)
        _take(me, wanted)
    try:
        yield
    finally:
        with _changed:
            _let_go(me)
            if around is not None:  # the block around this one goes on
                _take(me, around)


def _take(me: int, wanted: Switches | None) -> None:
    global _users
    _changed.wait_for(lambda: not _held_by or _resolved(wanted) in _held_by.values())
    if not _held_by:
        _users = _read()
    _held_by[me] = _resolved(wanted)
    _set(_held_by[me])


def _let_go(me: int) -> Switches | None:
    """Returns what this thread had."""
    had = _held_by.pop(me, None)
    if had is not None and not _held_by:
        _set(_users)
    _changed.notify_all()
    return had


def _resolved(wanted: Switches | None) -> Switches:
    """In the way that the user's own settings are read."""
    if wanted is None:
        return _users
    if not isinstance(_users[0], str) or isinstance(wanted[0], str):
        return wanted
    convolutions, products = (NEWER[value] for value in wanted)
    return convolutions, products, convolutions


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
