"""While a thread traces a network, no other thread of the process calls one: tracing changes ``nn.Module`` for all.

Any number of threads call networks at once; whoever traces waits until none does, and is then alone. Those who call do
not wait for one that waits: a long measurement holds up one thread, not all. Replaying a CUDA graph calls no network
and needs no turn. A turn comes before every other lock of the process (``capturing``).
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

_changed = threading.Condition()
_callers: set[int] = set()
_tracer: list[int] = []


def calling_networks() -> AbstractContextManager[None]:
    """Inside, the thread may call networks."""
    return _turn(alone=False)


def tracing_networks() -> AbstractContextManager[None]:
    """Inside, the thread may trace and compile networks too. What it was calling before is interrupted meanwhile."""
    return _turn(alone=True)


@contextmanager
def _turn(*, alone: bool) -> Iterator[None]:
    me = threading.get_ident()
    if me in _tracer or (me in _callers and not alone):  # the block around this one will do
        yield
        return
    called = me in _callers
    with _changed:
        _callers.discard(me)
        _changed.notify_all()
        _wait_to_trace(me) if alone else _wait_to_call(me)
    try:
        yield
    finally:
        with _changed:
            _tracer.remove(me) if alone else _callers.discard(me)
            _changed.notify_all()
            if called:  # the block around this one goes on
                _wait_to_call(me)


def _wait_to_call(me: int) -> None:
    _changed.wait_for(lambda: not _tracer)
    _callers.add(me)


def _wait_to_trace(me: int) -> None:
    _changed.wait_for(lambda: not _tracer and not _callers)
    _tracer.append(me)
