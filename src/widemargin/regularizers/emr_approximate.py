"""Approximate effective margin regularization: ||d/dx sum_j p_j z_j||^2 with p = softmax(z / t) held constant.

One input gradient in place of K. A small temperature t penalizes the predicted class's gradient; a large one the mean
logit's, which moves no margin (docs/paper-vs-code.md).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from widemargin.checks import check_number
from widemargin.plain_operators import uncompiled
from widemargin.regularizers.input_gradients import squared_input_gradients, squared_input_gradients_value


@dataclass(frozen=True, kw_only=True)
class ApproximateEMR:
    """Penalizes the input gradient of the probability-weighted logit."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_number(
            "ApproximateEMR.temperature",
            self.temperature,
            fits=lambda temperature: temperature > 0,
            rule="a positive number",
            hint="the paper uses 0.1 to 40",
        )

    @uncompiled
    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B,), differentiable in the parameters. Labels and generator are not used."""
        del y, generator
        return squared_input_gradients("ApproximateEMR", model, x, self._cotangents)

    @uncompiled
    def value(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B,), without a graph."""
        del y, generator
        return squared_input_gradients_value("ApproximateEMR", model, x, self._cotangents)

    def _cotangents(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits / self.temperature, dim=1).unsqueeze(0)
