"""How L-Softmax eases in its margin: lambda, the weight of the plain logit, falls with the optimizer's steps."""

from dataclasses import dataclass

from torch import Tensor

from widemargin.checks import check_number
from widemargin.errors import InputError


@dataclass(frozen=True, kw_only=True)
class PowerAnnealing:
    """lambda = max(minimum, base (1 + gamma step)^-power): the original schedule for MNIST, 30,000 steps long."""

    base: float = 1000.0
    gamma: float = 2.5e-5
    power: float = 35.0
    minimum: float = 0.0

    def __post_init__(self) -> None:
        for field, usual in (("base", "1000"), ("gamma", "2.5e-5"), ("power", "35"), ("minimum", "0")):
            _check_not_negative(f"PowerAnnealing.{field}", getattr(self, field), usual)
        _check_minimum("PowerAnnealing", "base", self.base, self.minimum)

    def __call__(self, step: Tensor) -> Tensor:
        """The lambda of this step."""
        return (self.base * (1 + self.gamma * step) ** -self.power).clamp_min(self.minimum)


@dataclass(frozen=True, kw_only=True)
class GeometricAnnealing:
    """lambda = max(minimum, start factor^step): the PyTorch port's, over in about an epoch."""

    start: float = 100.0
    factor: float = 0.99
    minimum: float = 0.0

    def __post_init__(self) -> None:
        for field, usual in (("start", "100"), ("minimum", "0")):
            _check_not_negative(f"GeometricAnnealing.{field}", getattr(self, field), usual)
        name, hint = "GeometricAnnealing.factor", "lambda is multiplied by it at every step, and 0.99 is usual"
        check_number(name, self.factor, fits=lambda value: 0 < value <= 1, rule="in (0, 1]", hint=hint)
        _check_minimum("GeometricAnnealing", "start", self.start, self.minimum)

    def __call__(self, step: Tensor) -> Tensor:
        """The lambda of this step."""
        return (self.start * self.factor**step).clamp_min(self.minimum)


def _check_not_negative(name: str, value: float, usual: str) -> None:
    check_number(name, value, fits=lambda value: value >= 0, rule="a number >= 0", hint=f"{usual} is usual")


def _check_minimum(owner: str, field: str, first: float, minimum: float) -> None:
    if minimum > first:
        raise InputError(
            f"{owner}.minimum must be at most {field} = {first:g}, got {minimum!r}; lambda falls from {field} to "
            f"minimum, so lower minimum or raise {field}"
        )
