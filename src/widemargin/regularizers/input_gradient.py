"""Input-gradient regularization (IGR): ||d CE(z(x), y) / dx||^2, per sample, in evaluation mode.

The original (Ross and Doshi-Velez) squares the gradient of a batch mean, halves it, and has weights to match; here it
is per sample, as EMR is, and ``Penalty(scaling="released")`` gives the 1/B^2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from widemargin.core.checks import check_labels
from widemargin.errors import InputError
from widemargin.gradients.penalties import Cotangents
from widemargin.regularizers.regularizer import InputGradientPenalty


@dataclass(frozen=True, kw_only=True)
class InputGradient(InputGradientPenalty):
    """Penalizes the input gradient of the label's cross-entropy; it needs labels. The generator is not used."""

    constant = False

    def _cotangents(self, x: Tensor, y: Tensor | None, generator: torch.Generator | None) -> Cotangents:
        """d CE / d logits = p - onehot(y)."""
        del generator
        if y is None:
            raise InputError("InputGradient: labels are missing; call it as regularizer(model, x, y)")

        def cotangents(logits: Tensor) -> Tensor:
            check_labels("InputGradient", y, batch=len(x), num_classes=logits.shape[1])
            return (torch.softmax(logits, dim=1) - one_hot(y.long(), logits.shape[1]).to(logits.dtype)).unsqueeze(0)

        return cotangents
