"""TF32, on purpose: published numbers are plain float32, training may be quicker, and no thread changes another's.

The switches belong to the whole process. Threads that want the same setting run together. A thread that wants the
other one waits and gives up its own hold meanwhile; otherwise two threads that change over to each other's setting
would wait for ever.

Torch has two ways to ask: ``allow_tf32`` with ``set_float32_matmul_precision``, and ``fp32_precision``. The first is
used unless the user has said something in the second: it cannot be read then, or what it sets is overruled. What an
operator inherited there is its own after. Both know of CPUs that multiply in less than float32 (mkldnn).
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch

Switches = tuple[bool | str, ...]
"""The first way: ``allow_tf32`` of convolutions, the precision of matrix products, and on CPUs of both. The second:
``fp32_precision`` of convolutions, matrix products, recurrent layers, and products and convolutions on CPUs."""
FULL, TF32 = (False, False), (True, True)
"""Whether convolutions, and whether matrix products, may use TF32."""
_WAYS: dict[tuple[bool, bool], tuple[Switches, Switches]] = {
    FULL: ((False, "highest", "ieee", "ieee"), ("ieee",) * 5),
    TF32: ((True, "high", "tf32", "ieee"), ("tf32", "tf32", "tf32", "ieee", "ieee")),
}


@contextmanager
def full_float32() -> Iterator[None]:
    """Convolutions and matrix products without TF32 inside, the user's settings restored after."""
    with _held(_WAYS[FULL]):
        yield


@contextmanager
def allowing_tf32() -> Iterator[None]:
    """Both with TF32 inside."""
    with _held(_WAYS[TF32]):
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
    return _read()[1] in ("high", "medium", "tf32")


_changed = threading.Condition()
_held_by: dict[int, Switches] = {}
"""What each thread inside a block has; all the same. While there is none the switches are the user's."""
_users: Switches = ()


@contextmanager
def _held(wanted: tuple[Switches, Switches] | None) -> Iterator[None]:
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
                _take(me, (around, around))


def _take(me: int, wanted: tuple[Switches, Switches] | None) -> None:
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


def _resolved(wanted: tuple[Switches, Switches] | None) -> Switches:
    """In the way that the user's own settings are read."""
    return _users if wanted is None else wanted[isinstance(_users[0], str)]


def _read() -> Switches:
    backends: Any = torch.backends
    with suppress(RuntimeError):  # which the older way raises where it cannot say what is set
        if backends.fp32_precision == backends.cudnn.fp32_precision == "none":  # else they overrule it
            cpu = backends.mkldnn.matmul.fp32_precision, backends.mkldnn.conv.fp32_precision
            return backends.cudnn.allow_tf32, _said_of_products(), *cpu
    return tuple(part.fp32_precision for part in _parts())


def _said_of_products() -> str:
    if not torch.backends.cuda.matmul.allow_tf32:
        return "highest"
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # if CPUs were told otherwise
        return "high"


def _set(wanted: Switches) -> None:
    backends: Any = torch.backends
    if isinstance(wanted[0], str):
        for part, value in zip(_parts(), wanted, strict=True):
            part.fp32_precision = value
    elif wanted != _read():
        backends.cudnn.allow_tf32, products, on_cpus, backends.mkldnn.conv.fp32_precision = wanted
        torch.set_float32_matmul_precision(str(products))
        backends.mkldnn.matmul.fp32_precision = on_cpus  # which that has set too


def _parts() -> tuple[Any, ...]:
    backends: Any = torch.backends
    cpu = backends.mkldnn.matmul, backends.mkldnn.conv
    return backends.cudnn.conv, backends.cuda.matmul, backends.cudnn.rnn, *cpu
