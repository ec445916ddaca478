"""TF32, on purpose: published numbers are plain float32, training may be quicker, and no thread changes another's.

The switches belong to the whole process. Threads that want them alike share them; one that wants them otherwise waits.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch

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
def allowing_tf32(allowed: bool = True) -> Iterator[None]:
    """Both with TF32 inside; not allowed means the user's own settings, which nobody changes meanwhile."""
    with _held(TF32 if allowed else None):
        yield


_changed = threading.Condition()
_holders: Counter[int] = Counter()
_users: Switches = (True, False)


@contextmanager
def _held(wanted: Switches | None) -> Iterator[None]:
    """The switches as wanted, None for as the user has them, until the block ends."""
    global _users
    me = threading.get_ident()
    with _changed:
        _changed.wait_for(lambda: _is_free(me, wanted))
        before = _read()
        if not _holders:
            _users = before
        _set(_users if wanted is None else wanted)
        _holders[me] += 1
    try:
        yield
    finally:
        with _changed:
            _holders[me] -= 1
            if not _holders[me]:
                del _holders[me]
            if not _holders:
                _set(_users)
            elif me in _holders:  # the block around this one
                _set(before)
            _changed.notify_all()


def _is_free(me: int, wanted: Switches | None) -> bool:
    return not any(holder != me for holder in _holders) or _read() == (_users if wanted is None else wanted)


def _read() -> Switches:
    return torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32


def _set(wanted: Switches) -> None:
    if wanted != _read():
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = wanted
