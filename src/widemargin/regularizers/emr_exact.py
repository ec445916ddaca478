"""Exact effective margin regularization: sum_j ||dz_j/dx||^2, equation 5 of the paper, per sample.

Up to ``classes_at_once`` classes are swept as one batch and all that their gradient needs is kept. Beyond, the classes
are taken that many at a time, and a chunk's backward pass is done again when gradients are asked for: memory is that
of ``classes_at_once`` classes for any K.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from widemargin.checks import check_count
from widemargin.jacobian import EveryClass
from widemargin.plain_operators import uncompiled
from widemargin.regularizers.input_gradients import squared_input_gradients, squared_input_gradients_value


@dataclass(frozen=True, kw_only=True)
class ExactEMR:
    """Penalizes the squared Frobenius norm of the logits' input Jacobian."""

    classes_at_once: int = 16

    def __post_init__(self) -> None:
        check_count("ExactEMR.classes_at_once", self.classes_at_once)

    @uncompiled
    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B,), differentiable in the parameters. Labels and generator are not used."""
        del y, generator
        return squared_input_gradients("ExactEMR", model, x, EveryClass, at_once=self.classes_at_once)

    @uncompiled
    def value(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B,), without a graph."""
        del y, generator
        return squared_input_gradients_value("ExactEMR", model, x, EveryClass, at_once=self.classes_at_once)
