"""Input-gradient regularization (IGR): ||d CE(z(x), y) / dx||^2, per sample, in evaluation mode.

The original (Ross and Doshi-Velez) squares the gradient of a batch mean, halves it, and has weights to match; here it
is per sample, as EMR is, and ``Penalty(scaling="released")`` gives the 1/B^2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from widemargin.core.checks import check_labels
from widemargin.errors import InputError
from widemargin.gradients.double_backward import uncompiled
from widemargin.gradients.squared_norms import Cotangents, squared_input_gradients, squared_input_gradients_value


@dataclass(frozen=True, kw_only=True)
class InputGradient:
    """Penalizes the input gradient of the label's cross-entropy; it needs labels."""

    @uncompiled
    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B,), differentiable in the parameters. The generator is not used."""
        del generator
        return squared_input_gradients("InputGradient", model, x, _loss_gradients(x, y), constant=False)

    @uncompiled
    def value(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B,), without a graph."""
        del generator
        return squared_input_gradients_value("InputGradient", model, x, _loss_gradients(x, y))


def _loss_gradients(x: Tensor, y: Tensor | None) -> Cotangents:
    """d CE / d logits = p - onehot(y)."""
    if y is None:
        raise InputError("InputGradient: labels are missing; call it as regularizer(model, x, y)")

    def cotangents(logits: Tensor) -> Tensor:
        check_labels("InputGradient", y, batch=len(x), num_classes=logits.shape[1])
        return (torch.softmax(logits, dim=1) - one_hot(y.long(), logits.shape[1]).to(logits.dtype)).unsqueeze(0)

    return cotangents
