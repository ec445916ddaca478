"""An interrupt (Ctrl-C, or SIGTERM from a scheduler) that says how the work goes on."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class InterruptionError(Exception):
    """What a person who stopped the work wants to know; ``code`` is the exit code that shells know it by."""

    def __init__(self, message: str, number: signal.Signals) -> None:
        super().__init__(message)
        self.code = 128 + number


class TerminatedError(BaseException):
    """SIGTERM, where it came; like KeyboardInterrupt, no ``Exception``."""


@contextmanager
def told(message: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM inside end with these words."""
    try:
        with _sigterm_heard():
            yield
    except KeyboardInterrupt:
        raise InterruptionError(message, signal.SIGINT) from None
    except TerminatedError:
        raise InterruptionError(message, signal.SIGTERM) from None


@contextmanager
def _sigterm_heard() -> Iterator[None]:
    """Inside, SIGTERM is an exception; in the main thread alone, for Python allows no other to hear signals."""
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield
        return
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _raise(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise TerminatedError
