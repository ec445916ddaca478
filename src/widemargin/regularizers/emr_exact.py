"""Exact effective margin regularization: sum_j ||dz_j/dx||^2, equation 5 of the paper, per sample.

The penalty's own graph holds a second-order graph for every class. Up to ``classes_at_once`` classes that graph is kept
(one batched pass, the fast way). Beyond, the classes are taken ``classes_at_once`` at a time and each chunk's graph is
built again when gradients are asked for: memory is that of ``classes_at_once`` classes for any K, at the price of one
more backward pass per class.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.checks import check_count
from widemargin.jacobian import class_chunks, logits_and_leaf, one_hot_cotangents, vector_jacobian_products
from widemargin.modes import copied_buffers, with_buffers
from widemargin.regularizers.squares import check_carries_gradient, check_gradient_is_possible, squared_lengths


@dataclass(frozen=True, kw_only=True)
class ExactEMR:
    """Penalizes the squared Frobenius norm of the logits' input Jacobian."""

    classes_at_once: int = 16

    def __post_init__(self) -> None:
        check_count("ExactEMR.classes_at_once", self.classes_at_once)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B,), differentiable in the parameters. Labels and generator are not used."""
        del y, generator
        check_gradient_is_possible("ExactEMR", model)
        logits, leaf = logits_and_leaf(model, x, owner="ExactEMR")
        num_classes = logits.shape[1]
        if num_classes <= self.classes_at_once:
            return check_carries_gradient("ExactEMR", _rows_squared(logits, leaf, range(num_classes)))
        del logits, leaf
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        penalty: Tensor = _Recomputed.apply(model, x, num_classes, self.classes_at_once, *parameters)  # type: ignore[no-untyped-call]
        return penalty

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def value(
        self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """(B,), without a graph."""
        del y, generator
        with torch.enable_grad():
            logits, leaf = logits_and_leaf(model, x, owner="ExactEMR")
        return _sum_of_chunks(logits, leaf, self.classes_at_once)


def _rows_squared(logits: Tensor, leaf: Tensor, classes: range) -> Tensor:
    rows = vector_jacobian_products(logits, leaf, one_hot_cotangents(logits, classes), create_graph=True)
    return squared_lengths(rows)


def _sum_of_chunks(logits: Tensor, leaf: Tensor, classes_at_once: int) -> Tensor:
    total = torch.zeros(len(logits), dtype=logits.dtype, device=logits.device)
    for chunk in class_chunks(logits.shape[1], classes_at_once):
        rows = vector_jacobian_products(logits, leaf, one_hot_cotangents(logits, chunk), keep_graph=True)
        total += squared_lengths(rows)
    return total


class _Recomputed(torch.autograd.Function):
    """The penalty of many classes: chunks of them are differentiated one after the other, forgetting each graph."""

    @staticmethod
    def forward(
        ctx: Any, model: nn.Module, x: Tensor, num_classes: int, classes_at_once: int, *parameters: Tensor
    ) -> Tensor:
        # Saved by torch, images and parameters that are changed before backward() raise; the statistics are copied.
        ctx.save_for_backward(x, *parameters)
        ctx.model, ctx.buffers = model, copied_buffers(model)
        ctx.autocast = torch.is_autocast_enabled(x.device.type), torch.get_autocast_dtype(x.device.type)
        ctx.chunks = class_chunks(num_classes, classes_at_once)
        with torch.enable_grad():
            logits, leaf = logits_and_leaf(model, x, owner="ExactEMR")
        return _sum_of_chunks(logits, leaf, classes_at_once)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        x, *parameters = ctx.saved_tensors
        enabled, dtype = ctx.autocast
        sums: list[Tensor | None] = [None] * len(parameters)
        for chunk in ctx.chunks:
            with torch.enable_grad():
                with with_buffers(ctx.buffers), torch.autocast(x.device.type, dtype=dtype, enabled=enabled):
                    logits, leaf = logits_and_leaf(ctx.model, x, owner="ExactEMR")
                penalty = check_carries_gradient("ExactEMR", _rows_squared(logits, leaf, chunk))
            gradients = torch.autograd.grad(penalty, parameters, weights, allow_unused=True)
            sums = [_add(total, gradient) for total, gradient in zip(sums, gradients, strict=True)]
        return None, None, None, None, *sums


def _add(total: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    if total is None or gradient is None:
        return gradient if total is None else total
    return total + gradient
