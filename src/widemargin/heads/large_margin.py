"""L-Softmax: the label must win by an angle, m theta_y in place of theta_y, annealed from plain softmax.

Prediction uses plain logits w_j . f without a bias; training replaces the label's (``losses.large_margin_logits``).
The annealing (``annealing``) counts optimizer steps in a buffer, so a resumed run goes on where it was and extra
forwards do not speed it up. m = 1 is plain softmax without a bias, which is what the paper's CNN rows are.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from widemargin.errors import InputError
from widemargin.heads.annealing import GeometricAnnealing, PowerAnnealing
from widemargin.losses import large_margin_logits

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
