"""No compiled code, no checkpointing, no fused attention: for passes that are recorded or differentiated twice.

None of the three has a second derivative that is right here: checkpointing would run parts of the model again in the
backward pass, when the model is back in its own mode. Compilation and attention are switches of the whole process: the
first thread that needs one sets it, the last one to leave puts back what was found. Meanwhile other threads run eagerly
and with plain attention too; their checkpoints stay checkpoints.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar, cast

import torch
import torch.utils.checkpoint
from torch.nn.attention import SDPBackend, sdpa_kernel

Function = TypeVar("Function", bound=Callable[..., Any])

_HOOK = "_checkpoint_hook"
"""What makes torch's checkpointing forget activations; without it a checkpointed part is an ordinary one."""


def uncompiled(function: Function) -> Function:
    """It runs as it is inside a compiled function. Torch's own decorator would hide its signature."""
    return cast(Function, torch.compiler.disable(function))


class _Shared:
    """A setting of the whole process, which holds while any thread is inside."""

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make, self._lock, self._inside, self._undo = make, threading.Lock(), 0, ExitStack()

    @contextmanager
    def held(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._undo.enter_context(self._make())
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._undo.close()


class _Depth(threading.local):
    """How often this thread is inside."""

    value = 0


_depth = _Depth()


@contextmanager
def _without_checkpoints() -> Iterator[None]:
    """In the threads that are inside; those of others stay."""
    usual = getattr(torch.utils.checkpoint, _HOOK, None)
    if usual is None:  # a torch that does it otherwise
        yield
        return
    setattr(torch.utils.checkpoint, _HOOK, lambda frame: nullcontext() if _depth.value else usual(frame))
    try:
        yield
    finally:
        setattr(torch.utils.checkpoint, _HOOK, usual)


_EAGER = _Shared(lambda: torch.compiler.set_stance("force_eager"))
_UNCHECKPOINTED = _Shared(_without_checkpoints)
_PLAIN_ATTENTION = _Shared(lambda: sdpa_kernel(SDPBackend.MATH))


@contextmanager
def eager_operators() -> Iterator[None]:
    """Inside, nothing is compiled and nothing of this thread is checkpointed."""
    with _EAGER.held(), _UNCHECKPOINTED.held():
        _depth.value += 1
        try:
            yield
        finally:
            _depth.value -= 1


@contextmanager
def plain_operators() -> Iterator[None]:
    """Inside, attention is plain as well."""
    with eager_operators(), _PLAIN_ATTENTION.held():
        yield
