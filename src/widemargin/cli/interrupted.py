"""An interrupt (Ctrl-C) that says how the work goes on."""

from collections.abc import Iterator
from contextlib import contextmanager


class InterruptionError(Exception):
    """What a person who pressed Ctrl-C wants to know."""


@contextmanager
def told(message: str) -> Iterator[None]:
    """A KeyboardInterrupt inside ends with these words."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptionError(message) from None
