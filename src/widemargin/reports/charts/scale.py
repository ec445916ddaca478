"""From numbers to places on a chart, and which numbers to write on an axis."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
TINY = 1e-200
"""A range below is none: its steps would be lost in the last bits of a float."""


@dataclass(frozen=True)
class Scale:
    """A linear scale from ``low``..``high`` to ``start``..``end`` in the units of the picture."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Where a value lies."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


@dataclass(frozen=True)
class Tick:
    """A marked value and what is written there."""

    value: float
    text: str


def span(values: Sequence[float], *, zero: bool = False) -> tuple[float, float]:
    """The range of the values, never empty."""
    low, high = min(values), max(values)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    size = max(abs(low), abs(high))
    if high - low <= max(1e-9 * size, TINY):
        pad = abs(high) * 0.05 if size > TINY else 0.5
        return low - pad, high + pad
    return low, high


def ticks(low: float, high: float, wanted: int = 5) -> list[Tick]:
    """Round values that cover low..high; the first and last are the ends of the axis."""
    step = nice_step((high - low) / wanted)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [Tick(number * step, _written(number * step, step)) for number in range(first, last + 1)]


def _written(value: float, step: float) -> str:
    """A value with as many digits as its step needs; very large and very small ones with an exponent."""
    if not 5e-4 <= step < 2e4:
        return f"{value:.3g}"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9) + (1 if _is_quarter(step) else 0))
    return f"{value:.{decimals}f}"


def whole_ticks(low: float, high: float, wanted: int = 5) -> list[Tick]:
    """Whole numbers inside low..high, for epochs."""
    step = max(1, round(nice_step((high - low) / wanted)))
    first = math.ceil(low / step) * step
    inside = range(first, math.floor(high) + 1, step)
    values = [low, *(v for v in inside if v - low >= step / 2)] if low == 1 and step > 1 else list(inside)
    return [Tick(float(value), f"{value:g}") for value in values]


def nice_step(rough: float) -> float:
    """The round number just above."""
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next((step * power for step in STEPS if rough <= step * power * (1 + 1e-9)), 10 * power)


def _is_quarter(step: float) -> bool:
    """Whether the step is 2.5, 0.25 and so on, which needs a digit more."""
    return math.isclose(step / 10 ** math.floor(math.log10(step) + 1e-9), 2.5)
