"""Epoch -> factor. The learning rate and the EMR weight use the same objects.

``epoch`` counts from zero and may be fractional (epochs passed so far), so a drop "after 30 epochs" is milestone 30.
A schedule that knows when it ends has that as ``epochs``; one that also sets the momentum has ``momentum(epoch)``.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from widemargin.core.checks import check_count, check_number
from widemargin.core.schema import one_of
from widemargin.errors import InputError


class Schedule(Protocol):
    """Epochs passed -> factor."""

    def __call__(self, epoch: float, /) -> float:
        """Return the factor after ``epoch`` epochs, a fraction in the middle of one."""


@runtime_checkable
class CyclesMomentum(Protocol):
    """A schedule of the learning rate that says what the momentum is, too."""

    def momentum(self, epoch: float, /) -> float:
        """Return the momentum after ``epoch`` epochs."""


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
        return _half_cosine(min(1.0, (epoch - self.peak) / (self.epochs - self.peak)))


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """1 until ``start`` epochs, then half a cosine down to ``floor`` at ``epochs``."""

    epochs: float
    start: float = 0.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.epochs < math.inf:
            raise InputError(
                f"Cosine.start must be from 0 to below epochs = {self.epochs}, got {self.start!r}; it is the epoch at "
                "which the factor begins to fall"
            )
        _check_share("Cosine.floor", self.floor, "0 is usual")

    def __call__(self, epoch: float) -> float:
        """Return the factor after ``epoch`` epochs."""
        passed = min(1.0, max(0.0, epoch - self.start) / (self.epochs - self.start))
        return self.floor + (1 - self.floor) * _half_cosine(passed)


@dataclass(frozen=True, kw_only=True)
class Triangular:
    """Rises linearly from 0 to 1 at ``peak`` epochs, then falls linearly to 0 at ``epochs`` ("cyclic", one cycle)."""

    epochs: float
    peak: float

    def __post_init__(self) -> None:
        if not 0 < self.peak < self.epochs < math.inf:
            raise InputError(
                f"Triangular.peak must be between 0 and epochs = {self.epochs}, got {self.peak!r}; it is the epoch at "
                "which the factor is 1"
            )

    def __call__(self, epoch: float) -> float:
        """Return the factor after ``epoch`` epochs."""
        if epoch < self.peak:
            return epoch / self.peak
        return max(0.0, (self.epochs - epoch) / (self.epochs - self.peak))


@dataclass(frozen=True, kw_only=True)
class OneCycleMomentum:
    """Torch's ``OneCycleLR`` as it is by default: the learning rate up and down on cosines, the momentum against it.

    From 1/``divide`` to 1 in the first ``rise`` of the ``epochs`` and down to 1/``divide``/``divide_last``, while the
    momentum goes from ``most`` to ``least`` and back, whatever the optimizer was given. Both change
    ``steps_per_epoch`` times an epoch: the default is once an epoch, as Wang et al. (2023) and the code they build on
    step it.
    """

    epochs: int
    rise: float = 0.3
    divide: float = 25.0
    divide_last: float = 1e4
    most: float = 0.95
    least: float = 0.85
    steps_per_epoch: int = 1

    def __post_init__(self) -> None:
        for name in ("epochs", "steps_per_epoch"):
            check_count(f"OneCycleMomentum.{name}", getattr(self, name))
        if not 0 < self.rise < 1:
            raise InputError(
                f"OneCycleMomentum.rise must be between 0 and 1, got {self.rise!r}; it is the share of the epochs in "
                "which the learning rate rises, such as 0.025"
            )
        for name in ("divide", "divide_last"):
            hint = "25 and 1e4 are usual"
            check_number(
                f"OneCycleMomentum.{name}", getattr(self, name), is_valid=lambda n: n >= 1, rule="at least 1", hint=hint
            )
        if not 0 <= self.least <= self.most < 1:
            raise InputError(
                f"OneCycleMomentum.least and most must be momenta, 0 <= least <= most < 1, got {self.least!r} and "
                f"{self.most!r}; 0.85 and 0.95 are usual"
            )
        if self._top == 0:  # torch's divides by it
            raise InputError(
                f"OneCycleMomentum.rise must not be {self.rise!r} of {self._last + 1} values, the first alone; "
                "change it a little"
            )

    @property
    def _last(self) -> int:
        """The number of the last value, from 0 on."""
        return self.epochs * self.steps_per_epoch - 1

    @property
    def _top(self) -> float:
        """The number of the highest; below 0 the run begins after it."""
        return self.rise * (self._last + 1) - 1

    def _on_the_way(self, epoch: float) -> tuple[float, bool]:
        """(how far, whether up) after ``epoch`` epochs."""
        number = min(self._last, math.floor(epoch * self.steps_per_epoch + 1e-6))  # a step is a sum of fractions
        if number <= self._top:
            return number / self._top, True
        return (number - self._top) / (self._last - self._top), False

    def __call__(self, epoch: float) -> float:
        """Return the factor after ``epoch`` epochs."""
        passed, up = self._on_the_way(epoch)
        first = 1 / self.divide
        return _between(first, 1.0, passed) if up else _between(1.0, first / self.divide_last, passed)

    def momentum(self, epoch: float) -> float:
        """Return the momentum after ``epoch`` epochs."""
        passed, up = self._on_the_way(epoch)
        return _between(self.most, self.least, passed) if up else _between(self.least, self.most, passed)


def _half_cosine(passed: float) -> float:
    """From 1 at 0 to 0 at 1."""
    return 0.5 * (1 + math.cos(math.pi * passed))


def _between(first: float, last: float, passed: float) -> float:
    """On half a cosine."""
    return last + (first - last) * _half_cosine(passed)


def _check_share(name: str, value: Any, hint: str) -> None:
    check_number(name, value, is_valid=lambda share: 0 <= share < 1, rule="in [0, 1)", hint=hint)


SCHEDULES: dict[str, type] = {
    "constant": Constant,
    "steps": Steps,
    "piecewise": Piecewise,
    "one-cycle": OneCycle,
    "one-cycle-momentum": OneCycleMomentum,
    "cosine": Cosine,
    "triangular": Triangular,
}


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """Another schedule times a factor that rises linearly from ``first`` to 1 in the first ``epochs``.

    The other one counts its epochs from the beginning of the run, so its milestones stay where they were.
    """

    epochs: float
    first: float = 0.0
    schedule: Schedule = one_of(SCHEDULES, default=Constant())

    def __post_init__(self) -> None:
        hint = "5 is usual"
        check_number("WarmUp.epochs", self.epochs, is_valid=lambda n: n > 0, rule="a positive number", hint=hint)
        _check_share("WarmUp.first", self.first, "0 begins with nothing")
        if isinstance(self.schedule, CyclesMomentum | WarmUp):
            raise InputError(
                f"WarmUp.schedule must not be {type(self.schedule).__name__}, which begins with a warm-up of its own; "
                "use it without this one"
            )

    def __call__(self, epoch: float) -> float:
        """Return the factor after ``epoch`` epochs."""
        risen = min(1.0, epoch / self.epochs)
        return (self.first + (1 - self.first) * risen) * self.schedule(epoch)


SCHEDULES["warm-up"] = WarmUp
