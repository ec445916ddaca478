"""Input-gradient regularization (IGR): ||d CE(z(x), y) / dx||^2, per sample, in evaluation mode.

The original (Ross and Doshi-Velez) squares the gradient of a batch mean, halves it, and has weights to match; here it
is per sample, as EMR is, and ``Penalty(scaling="released")`` gives the 1/B^2.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from widemargin.checks import check_labels
from widemargin.errors import InputError
from widemargin.jacobian import logits_and_leaf
from widemargin.losses import cross_entropy
from widemargin.regularizers.squares import check_carries_gradient, check_gradient_is_possible, squared_lengths


@dataclass(frozen=True, kw_only=True)
class InputGradient:
    """Penalizes the input gradient of the label's cross-entropy; it needs labels."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B,), differentiable in the parameters. The generator is not used."""
        del generator
        check_gradient_is_possible("InputGradient", model)
        return check_carries_gradient("InputGradient", _penalty(model, x, y, create_graph=True))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def value(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B,), without a graph."""
        del generator
        with torch.enable_grad():
            return _penalty(model, x, y, create_graph=False).detach()


def _penalty(model: nn.Module, x: Tensor, y: Tensor | None, *, create_graph: bool) -> Tensor:
    if y is None:
        raise InputError("InputGradient: labels are missing; call it as regularizer(model, x, y)")
    logits, leaf = logits_and_leaf(model, x, owner="InputGradient")
    check_labels("InputGradient", y, batch=len(x), num_classes=logits.shape[1])
    loss = cross_entropy(logits, y).sum()
    with torch.autocast(leaf.device.type, enabled=False):
        (gradient,) = torch.autograd.grad(loss, leaf, create_graph=create_graph)
    return squared_lengths(gradient.to(loss.dtype).unsqueeze(0))
