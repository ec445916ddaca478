"""Hypersphere embedding (HE): logits are scaled cosines between the feature and the class rows, s cos(theta_j).

The scale belongs to the logits at evaluation too: an attack on bare cosines sees a nearly uniform softmax and looks
weak (the published PGD columns of HE are inflated by that). In training the label's cosine is lowered by a margin m.

The class rows have unit length. As released, they are projected back after each update and no gradient flows through
that (``rows="projected"``); ``rows="differentiable"`` normalizes inside the forward pass instead.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from widemargin.core.checks import choice
from widemargin.errors import InputError
from widemargin.losses import hypersphere_logits

Rows = Literal["projected", "differentiable"]


class HypersphereHead(nn.Linear):
    """Cosine logits times ``scale``; no bias."""

    def __init__(self, feature_size: int, num_classes: int, *, scale: float, margin: float, rows: Rows) -> None:
        super().__init__(feature_size, num_classes, bias=False)
        self.scale, self.margin, self.rows = scale, margin, rows
        self.project()

    def forward(self, features: Tensor) -> Tensor:
        """s cos(theta), in the type of the class rows."""
        with torch.autocast(features.device.type, enabled=False):
            weight = self.weight if self.rows == "projected" else F.normalize(self.weight, dim=1)
            unit = F.normalize(features.to(weight.dtype), dim=1)
            return self.scale * F.linear(unit, weight)

    def training_logits(self, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        """s (cos(theta) - m onehot(y))."""
        del features
        return hypersphere_logits(logits / self.scale, y, self.scale, self.margin)

    def after_step(self) -> None:
        """An optimizer step leaves the sphere: go back."""
        self.project()

    def after_average(self) -> None:
        """So does the mean of two points of it."""
        self.project()

    @torch.no_grad()
    def project(self) -> None:
        """Put the class rows on the sphere."""
        if self.rows == "projected":
            self.weight.copy_(F.normalize(self.weight, dim=1))


@dataclass(frozen=True, kw_only=True)
class Hypersphere:
    """Makes a ``HypersphereHead``; the published settings are scale 10 with AT and 15 with TRADES, margin 0.2."""

    scale: float = 10.0
    margin: float = 0.2
    rows: Rows = "projected"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise InputError(f"Hypersphere.scale must be a positive number, got {self.scale!r}; 10 and 15 are usual")
        if not 0 <= self.margin < 1:
            raise InputError(f"Hypersphere.margin must be in [0, 1), got {self.margin!r}; 0.2 is usual")
        choice("Hypersphere", "rows", self.rows, ("projected", "differentiable"))

    def __call__(self, feature_size: int, num_classes: int) -> HypersphereHead:
        """The head for these sizes."""
        return HypersphereHead(feature_size, num_classes, scale=self.scale, margin=self.margin, rows=self.rows)
