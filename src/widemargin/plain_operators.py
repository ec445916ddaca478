"""No compiled code, no fused attention, no checkpointing: for passes that are recorded or differentiated twice.

None of the three has a second derivative that is right here: checkpointing would run parts of the model again in the
backward pass, when the model is back in its own mode. The switches are the whole process's. The first thread that needs
them sets them, the last one to leave puts back what was found.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch
import torch.utils.checkpoint
from torch.nn.attention import SDPBackend, sdpa_kernel

_HOOK = "_checkpoint_hook"
"""What makes torch's checkpointing forget activations; without it a checkpointed part is an ordinary one."""
_lock = threading.Lock()
_inside = 0
_undo = ExitStack()


@contextmanager
def plain_operators() -> Iterator[None]:
    """Inside, every thread's operators are plain ones."""
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _inside
    with _lock:
        if not _inside:
            with ExitStack() as entered:
                entered.enter_context(torch.compiler.set_stance("force_eager"))
                entered.enter_context(sdpa_kernel(SDPBackend.MATH))
                entered.enter_context(_without_checkpoints())
                _undo.push(entered.pop_all())
        _inside += 1


def _leave() -> None:
    global _inside
    with _lock:
        _inside -= 1
        if not _inside:
            _undo.close()


@contextmanager
def _without_checkpoints() -> Iterator[None]:
    before = getattr(torch.utils.checkpoint, _HOOK)
    setattr(torch.utils.checkpoint, _HOOK, _keep_everything)
    try:
        yield
    finally:
        setattr(torch.utils.checkpoint, _HOOK, before)


def _keep_everything(frame: object) -> AbstractContextManager[None]:
    del frame
    return nullcontext()
