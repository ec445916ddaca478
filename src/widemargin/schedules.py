"""Epoch -> factor. The learning rate and the EMR weight use the same objects.

``epoch`` counts from zero and may be fractional (epochs passed so far), so a drop "after 30 epochs" is milestone 30.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from widemargin.errors import InputError


class Schedule(Protocol):
    """Epochs passed -> factor."""

    def __call__(self, epoch: float, /) -> float:
        """Return the factor after ``epoch`` epochs, a fraction in the middle of one."""


@dataclass(frozen=True, kw_only=True)
class Constant:
    """Always 1."""

    def __call__(self, epoch: float) -> float:
        """Return the factor."""
        del epoch
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Multiplied by ``factor`` after each of the ``milestones`` (in epochs passed)."""

    milestones: tuple[float, ...]
    factor: float = 0.1

    def __post_init__(self) -> None:
        legal = all(math.isfinite(m) and m >= 0 for m in self.milestones)
        if not legal or list(self.milestones) != sorted(set(self.milestones)):
            raise InputError(
                f"Steps.milestones must be increasing epochs, got {list(self.milestones)}; write them in order, each "
                "once, such as [30, 45]"
            )
        if not 0 < self.factor <= 1:
            raise InputError(f"Steps.factor must be in (0, 1], got {self.factor!r}; 0.1 is usual")

    def __call__(self, epoch: float) -> float:
        """Return the factor after ``epoch`` epochs."""
        return self.factor ** sum(milestone <= epoch for milestone in self.milestones)


@dataclass(frozen=True, kw_only=True)
class Piecewise:
    """Constant pieces: each point (epoch, factor) holds from that epoch on, 1 before the first."""

    points: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        legal = all(len(point) == 2 and all(math.isfinite(n) and n >= 0 for n in point) for point in self.points)
        epochs = [epoch for epoch, *_ in self.points if legal]
        if not legal or epochs != sorted(set(epochs)):
            raise InputError(
                "Piecewise.points must be [epoch, factor] with increasing epochs and finite factors, none below 0, got "
                f"{[list(point) for point in self.points]}; write them in order, such as [[0, 0.2], [1, 1.0]]"
            )

    def __call__(self, epoch: float) -> float:
        """Return the factor after ``epoch`` epochs."""
        return next((factor for start, factor in reversed(self.points) if start <= epoch), 1.0)


@dataclass(frozen=True, kw_only=True)
class OneCycle:
    """Rises linearly from 0 to 1 at ``peak`` epochs, then falls on a cosine to 0 at ``epochs``."""

    epochs: float
    peak: float

    def __post_init__(self) -> None:
        if not 0 < self.peak < self.epochs < math.inf:
            raise InputError(
                f"OneCycle.peak must be between 0 and epochs = {self.epochs}, got {self.peak!r}; it is the epoch at "
                "which the factor is 1"
            )

    def __call__(self, epoch: float) -> float:
        """Return the factor after ``epoch`` epochs."""
        if epoch < self.peak:
            return epoch / self.peak
        passed = min(1.0, (epoch - self.peak) / (self.epochs - self.peak))
        return 0.5 * (1 + math.cos(math.pi * passed))


SCHEDULES: dict[str, type] = {
    "constant": Constant,
    "steps": Steps,
    "piecewise": Piecewise,
    "one-cycle": OneCycle,
}
