"""Signals that end work in good order: how a training run stops, and how the command line does.

``Stop`` is for a run: SIGTERM and SIGINT (Ctrl-C) wait for the step under way and its checkpoint; a second SIGINT stops
at once. The rest is for the process of a command. While it starts, which is mostly the import of torch, Ctrl-C ends it
at once: an exception would go through others' half-initialized modules. While a verb works the first Ctrl-C is a
KeyboardInterrupt that ends in a message (how to go on) and never in a traceback; the next one does not wait for what
the first one makes the verb do.

Handlers are set in the main thread only (Python allows no other) and put back afterwards. A signal that the process was
started to ignore stays ignored.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
NOT_BEGUN = "interrupted before the work began; nothing was changed"


class StopNowError(BaseException):
    """Ends a block that changes nothing and so need not be waited for; like KeyboardInterrupt, no ``Exception``."""


class Stop:
    """Whether a signal asked the run to stop; ``received`` is the first one that did."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._interrupting = False

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Inside, SIGTERM and SIGINT are noted in place of what they did before."""
        before = {}
        if threading.current_thread() is threading.main_thread():
            numbers = [number for number in STOP_SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
            before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Inside, a signal ends the block with a StopNowError; for measurements, which can be done again."""
        if self.received is not None:
            raise StopNowError
        self._interrupting = True
        try:
            yield
        finally:
            self._interrupting = False

    def deliver(self) -> None:
        """Now that all is written, the signal takes the course it would have taken."""
        if self.received is not None:
            signal.raise_signal(self.received)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.received is not None:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self.received = signal.Signals(number)
        if self._interrupting:
            self._interrupting = False
            raise StopNowError


class ExitOnSignal:
    """A signal handler that ends the process at once, with a message."""

    def __init__(self, message: str) -> None:
        self.message = message

    def __call__(self, number: int, _frame: FrameType | None = None) -> None:
        """Exit without clean-up; the streams may be in use, so the message goes straight to file descriptor 2."""
        with suppress(OSError):
            os.write(2, f"widemargin: {self.message}\n".encode() if self.message else b"")
        os._exit(128 + number)


class RaiseThenExit:
    """A signal handler that raises KeyboardInterrupt the first time and ends the process the next time."""

    def __init__(self, message: str) -> None:
        self.message = message

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        """The first time."""
        signal.signal(number, ExitOnSignal(self.message))
        raise KeyboardInterrupt


def install_handlers() -> None:
    """The process is a command, which starts up: Ctrl-C ends it."""
    if signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, None):
        signal.signal(signal.SIGINT, ExitOnSignal(NOT_BEGUN))
    sys.excepthook, sys.unraisablehook = _excepthook, _unraisablehook


def begin_work(message: str) -> None:
    """The verb begins, with its message for an interrupt; nothing where the process is no command of ours."""
    if isinstance(signal.getsignal(signal.SIGINT), ExitOnSignal):
        signal.signal(signal.SIGINT, RaiseThenExit(message))


def end_work() -> None:
    """The verb has ended and printed all: an interrupt has nothing to add."""
    if isinstance(signal.getsignal(signal.SIGINT), ExitOnSignal | RaiseThenExit):
        signal.signal(signal.SIGINT, ExitOnSignal(""))


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An interrupt that nobody caught gets no traceback."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def _unraisablehook(failure: Any) -> None:
    """An interrupt in a destructor, which Python lets out of none, ends the process all the same."""
    if isinstance(failure.exc_value, KeyboardInterrupt):
        ExitOnSignal("interrupted")(signal.SIGINT)
    sys.__unraisablehook__(failure)


class InterruptionError(Exception):
    """The message for a person who stopped the work; ``code`` is the exit code that shells know it by."""

    def __init__(self, message: str, number: signal.Signals) -> None:
        super().__init__(message)
        self.code = 128 + number


class TerminatedError(BaseException):
    """SIGTERM, where it came; like KeyboardInterrupt, no ``Exception``."""


@contextmanager
def on_interrupt(message: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM inside end with this message."""
    try:
        with _sigterm_raises():
            yield
    except KeyboardInterrupt:
        raise InterruptionError(message, signal.SIGINT) from None
    except TerminatedError:
        raise InterruptionError(message, signal.SIGTERM) from None


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before in (signal.SIG_IGN, None):
        yield
        return

    def terminate(_number: int, _frame: FrameType | None) -> None:
        raise TerminatedError

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
