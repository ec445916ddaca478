"""L-Softmax (Liu et al.): the label must win by an angle, m theta_y in place of theta_y, annealed from plain softmax.

Prediction uses plain logits w_j . f without a bias; training replaces the label's (``losses.large_margin_logits``):
lambda, the weight of its plain logit there, falls with the optimizer's steps, which a buffer counts. So a resumed run
goes on where it was, and extra forwards do not speed it up. m = 1 is plain softmax without a bias, which is what the
paper's CNN rows are.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from widemargin.core.checks import check_number
from widemargin.errors import InputError
from widemargin.losses import large_margin_logits


@dataclass(frozen=True, kw_only=True)
class PowerAnnealing:
    """lambda = max(minimum, base (1 + gamma step)^-power): the original schedule for MNIST, 30,000 steps long."""

    base: float = 1000.0
    gamma: float = 2.5e-5
    power: float = 35.0
    minimum: float = 0.0

    def __post_init__(self) -> None:
        _check_annealing(self, {"base": "1000", "gamma": "2.5e-5", "power": "35", "minimum": "0"})

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
        name, hint = "GeometricAnnealing.factor", "lambda is multiplied by it at every step, and 0.99 is usual"
        check_number(name, self.factor, is_valid=lambda value: 0 < value <= 1, rule="in (0, 1]", hint=hint)
        _check_annealing(self, {"start": "100", "minimum": "0"})

    def __call__(self, step: Tensor) -> Tensor:
        """The lambda of this step."""
        return (self.start * self.factor**step).clamp_min(self.minimum)


def _check_annealing(annealing: PowerAnnealing | GeometricAnnealing, usual: dict[str, str]) -> None:
    """None of these is negative, and the minimum not above the first of them, at which lambda begins."""
    owner, first = type(annealing).__name__, next(iter(usual))
    for name, value in usual.items():
        number, hint = getattr(annealing, name), f"{value} is usual"
        check_number(f"{owner}.{name}", number, is_valid=lambda value: value >= 0, rule="a number >= 0", hint=hint)
    if annealing.minimum > getattr(annealing, first):
        raise InputError(
            f"{owner}.minimum must be at most {first} = {getattr(annealing, first):g}, got {annealing.minimum!r}; "
            f"lambda falls from {first} to minimum, so lower minimum or raise {first}"
        )


MARGINS = (1, 2, 3, 4)


class LargeMarginHead(nn.Linear):
    """Plain logits without a bias; a margin for the label in training."""

    steps: Tensor

    def __init__(
        self, feature_size: int, num_classes: int, *, margin: int, annealing: PowerAnnealing | GeometricAnnealing
    ) -> None:
        super().__init__(feature_size, num_classes, bias=False)
        self.margin, self.annealing = margin, annealing
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def training_logits(self, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        """The logits with the label's angle multiplied."""
        del logits
        with torch.autocast(features.device.type, enabled=False):
            weight = self.weight
            annealing = self.annealing(self.steps.double()).to(weight.dtype)
            return large_margin_logits(features.to(weight.dtype), weight, y, self.margin, annealing)

    @torch.no_grad()
    def after_step(self) -> None:
        """Count one optimizer step."""
        self.steps += 1


@dataclass(frozen=True, kw_only=True)
class LargeMargin:
    """Makes a ``LargeMarginHead``."""

    margin: int = 4
    annealing: PowerAnnealing | GeometricAnnealing = field(default_factory=PowerAnnealing)

    def __post_init__(self) -> None:
        if self.margin not in MARGINS:
            raise InputError(f"LargeMargin.margin must be one of {', '.join(map(str, MARGINS))}, got {self.margin!r}")

    def __call__(self, feature_size: int, num_classes: int) -> LargeMarginHead:
        """The head for these sizes."""
        return LargeMarginHead(feature_size, num_classes, margin=self.margin, annealing=self.annealing)
