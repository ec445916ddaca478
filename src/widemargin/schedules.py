"""Epoch -> factor. The learning rate and the EMR weight use the same objects.

``epoch`` counts from zero and may be fractional (epochs passed so far), so a drop "after 30 epochs" is milestone 30.
"""

import math
from dataclasses import dataclass

from widemargin.errors import InputError


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
            raise InputError(f"Steps.milestones must be increasing epochs, got {list(self.milestones)}")
        if not 0 < self.factor <= 1:
            raise InputError(f"Steps.factor must be in (0, 1], got {self.factor!r}")

    def __call__(self, epoch: float) -> float:
        """Return the factor after ``epoch`` epochs."""
        return self.factor ** sum(milestone <= epoch for milestone in self.milestones)


@dataclass(frozen=True, kw_only=True)
class Piecewise:
    """Constant pieces: each point (epoch, factor) holds from that epoch on, 1 before the first."""

    points: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        epochs = [point[0] for point in self.points if len(point) == 2]
        if len(epochs) != len(self.points) or epochs != sorted(set(epochs)):
            raise InputError(
                f"Piecewise.points must be [epoch, factor] with increasing epochs, got {list(self.points)}"
            )
        if any(factor < 0 for _, factor in self.points):
            raise InputError(f"Piecewise.points must have factors >= 0, got {list(self.points)}")

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
            raise InputError(f"OneCycle.peak must be between 0 and epochs = {self.epochs}, got {self.peak!r}")

    def __call__(self, epoch: float) -> float:
        """Return the factor after ``epoch`` epochs."""
        if epoch < self.peak:
            return epoch / self.peak
        passed = min(1.0, (epoch - self.peak) / (self.epochs - self.peak))
        return 0.5 * (1 + math.cos(math.pi * passed))


Schedule = Constant | Steps | Piecewise | OneCycle
SCHEDULES: dict[str, type] = {
    "constant": Constant,
    "steps": Steps,
    "piecewise": Piecewise,
    "one-cycle": OneCycle,
}
