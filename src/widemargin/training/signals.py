"""Signals that end a run in good order: SIGTERM, and SIGINT (Ctrl-C), wait for the step under way and its checkpoint.

A second SIGINT stops at once, as Ctrl-C usually does. Handlers are set in the main thread only (Python allows no other)
and put back afterwards; a signal that the process ignores stays ignored.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ASKING = (signal.SIGTERM, signal.SIGINT)


class StopNowError(BaseException):
    """Ends a block that changes nothing and so need not be waited for; like KeyboardInterrupt, no ``Exception``."""


class Stop:
    """Whether somebody asked the run to stop; ``asked`` is the first signal that did."""

    def __init__(self) -> None:
        self.asked: signal.Signals | None = None
        self._at_once = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Inside, signals ask in place of what they did before."""
        before = {}
        if threading.current_thread() is threading.main_thread():
            ours = [number for number in ASKING if signal.getsignal(number) not in (signal.SIG_IGN, None)]
            before = {number: signal.signal(number, self._hear) for number in ours}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, a signal ends the block with a StopNowError; for measurements, which can be done again."""
        if self.asked is not None:
            raise StopNowError
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def deliver(self) -> None:
        """What was asked for, now that all is written: the signal takes the course it would have taken."""
        if self.asked is not None:
            signal.raise_signal(self.asked)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.asked is not None:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self.asked = signal.Signals(number)
        if self._at_once:
            self._at_once = False
            raise StopNowError
