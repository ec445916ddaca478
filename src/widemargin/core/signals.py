"""Signals that end a run in good order: SIGTERM, and SIGINT (Ctrl-C), wait for the step under way and its checkpoint.

A second SIGINT stops at once, as Ctrl-C usually does. Handlers are set in the main thread only (Python allows no other)
and put back afterwards; a signal that the process ignores stays ignored.

An interrupt (Ctrl-C, or SIGTERM from a scheduler) that says how the work goes on, and never ends in a traceback.

While the command starts, which is mostly the import of torch, Ctrl-C ends it at once: an exception would go through
others' half-initialized modules. While a verb works the first Ctrl-C is a KeyboardInterrupt, and the next one does not
wait for what the first one makes the verb do. A process that was started with SIGINT ignored goes on ignoring it.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

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


NOT_BEGUN = "interrupted before the work began; nothing was changed"


class AtOnce:
    """A handler of signals that ends the process with these words."""

    def __init__(self, words: str) -> None:
        self.words = words

    def __call__(self, number: int, _frame: FrameType | None = None) -> None:
        """End it; nobody cleans up, and the streams may be in use."""
        with suppress(OSError):
            os.write(2, f"widemargin: {self.words}\n".encode() if self.words else b"")
        os._exit(128 + number)


class Once:
    """A handler that raises KeyboardInterrupt; from then on Ctrl-C ends the process."""

    def __init__(self, words: str) -> None:
        self.words = words

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """The first time."""
        signal.signal(number, AtOnce(self.words))
        raise KeyboardInterrupt


def take_over() -> None:
    """The process is a command from now on, and it starts: Ctrl-C ends it."""
    if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
        signal.signal(signal.SIGINT, AtOnce(NOT_BEGUN))
    sys.excepthook, sys.unraisablehook = _told_already, _ended_in_a_destructor


def begin_work(words: str) -> None:
    """The verb begins, with these words for an interrupt; nothing where the process is no command of ours."""
    if isinstance(signal.getsignal(signal.SIGINT), AtOnce):
        signal.signal(signal.SIGINT, Once(words))


def end_work() -> None:
    """All is said: who asks to stop now waits for the process's end alone."""
    if isinstance(signal.getsignal(signal.SIGINT), AtOnce | Once):
        signal.signal(signal.SIGINT, AtOnce(""))


def _told_already(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What nobody caught: an interrupt is no mistake of ours."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def _ended_in_a_destructor(failure: Any) -> None:
    """An interrupt that came where Python lets none out ends the process all the same."""
    if isinstance(failure.exc_value, KeyboardInterrupt):
        AtOnce("interrupted")(signal.SIGINT)
    sys.__unraisablehook__(failure)


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
