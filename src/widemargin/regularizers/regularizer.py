"""The base of the penalties on input gradients: sum_m ||J^T c_m||^2 per sample, each penalty with its own vectors c.

J = dz/dx is the logits' input Jacobian (K, D). The norm is dual to that of the threat the penalty is meant for: L2
against L2, L1 against Linf (``gradients.norms``). How the norms and their gradient are computed: ``gradients``.
"""

from typing import get_args

import torch
from torch import Tensor, nn

from widemargin.core.checks import check_targets, choice
from widemargin.errors import InputError
from widemargin.gradients.double_backward import uncompiled
from widemargin.gradients.norms import DualNorm
from widemargin.gradients.penalties import Cotangents, input_gradient_penalty, input_gradient_penalty_value
from widemargin.losses import label_shares
from widemargin.types import Norm


def cross_entropy_cotangents(owner: str, x: Tensor, y: Tensor | None, label_smoothing: float) -> Cotangents:
    """d CE / d logits = p - target, the vectors c with which c J is the input gradient of the label's cross-entropy."""
    if y is None:
        raise InputError(f"{owner}: labels are missing; call it as regularizer(model, x, y)")

    def cotangents(logits: Tensor) -> Tensor:
        num_classes = logits.shape[1]
        check_targets(owner, y, batch=len(x), num_classes=num_classes)
        target = (1 - label_smoothing) * label_shares(y, logits) + label_smoothing / num_classes
        return (torch.softmax(logits, dim=1) - target).unsqueeze(0)

    return cotangents


class InputGradientPenalty:
    """A subclass says which vectors; the owner in messages is its name."""

    norm: Norm = "l2"
    """That of the threat; the penalty takes the norm dual to it."""
    squared: bool = True
    constant = True
    """Whether the vectors, though computed from the logits, count as constants for the gradient."""

    @uncompiled
    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B,), differentiable in the parameters."""
        return input_gradient_penalty(
            type(self).__name__,
            model,
            x,
            self._cotangents(x, y, generator),
            norm=self._dual_norm(),
            at_once=self._at_once(training=True),
            constant=self.constant,
        )

    @uncompiled
    def value(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B,), without a graph."""
        cotangents, at_once = self._cotangents(x, y, generator), self._at_once(training=False)
        return input_gradient_penalty_value(
            type(self).__name__, model, x, cotangents, norm=self._dual_norm(), at_once=at_once
        )

    def __post_init__(self) -> None:
        choice(type(self).__name__, "norm", self.norm, get_args(Norm))

    def _dual_norm(self) -> DualNorm:
        return DualNorm(norm=self.norm, squared=self.squared)

    def _cotangents(self, x: Tensor, y: Tensor | None, generator: torch.Generator | None) -> Cotangents:
        """logits (B, K) -> the vectors c (M, B, K)."""
        raise NotImplementedError

    def _at_once(self, *, training: bool) -> int:
        """How many of the M vectors memory is asked for at a time."""
        del training
        return 16
