"""TF32, on purpose: published numbers are plain float32, training may be quicker, and no thread changes another's.

The switches belong to the whole process. Threads that want them alike share them; one that wants them otherwise waits,
and holds nothing while it does, so that two which change over to each other's setting do not wait for ever.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from widemargin.errors import InputError

Switches = tuple[bool, bool]
"""Whether convolutions, and whether matrix products, may use TF32."""
FULL: Switches = (False, False)
TF32: Switches = (True, True)


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
    _changed.wait_for(lambda: not _held_by or _read() == _resolved(wanted))
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
    return _users if wanted is None else wanted


def _read() -> Switches:
    try:
        return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    except RuntimeError:  # torch does not mix its two ways of asking
        raise InputError(
            "TF32 is set by torch's fp32_precision here, which this package cannot read; set "
            "torch.backends.cudnn.allow_tf32 and torch.backends.cuda.matmul.allow_tf32 instead"
        ) from None


def _set(wanted: Switches) -> None:
    if wanted != _read():
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = wanted
