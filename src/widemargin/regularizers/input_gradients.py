"""Squared input gradients per sample, sum_m ||J^T c_m||^2: what every penalty here is, for its own cotangents c.

By forward and reverse sweeps over the model's layers (``linearize``) where all of them are known; by double backward
(``double_backward``) for any other model. Both are exact; a test holds one against the other.
"""

from typing import Any

import torch
from torch import Tensor, nn

from widemargin.checks import check_batch, check_logits
from widemargin.jacobian import logits_and_leaf, vector_jacobian_products
from widemargin.linearize import Cotangents, NotLinear, PlainStages, Stages, squared_lengths, squared_products
from widemargin.modes import copied_buffers, evaluating, with_buffers
from widemargin.regularizers.constancy import check_carries_gradient, check_gradient_is_possible


def squared_input_gradients(
    owner: str, model: nn.Module, x: Tensor, cotangents: Cotangents, *, at_once: int = 16, constant: bool = True
) -> Tensor:
    """(B,), differentiable in the parameters; the model runs in evaluation mode and is left as it was.

    ``constant``: the cotangents, though computed from the logits, are not differentiated. Memory is that of ``at_once``
    cotangents, however many there are.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module  # its own forward would mark parameters as unused: no graph is made here
    check_gradient_is_possible(owner, model)
    check_batch(owner, x)

    def checked(logits: Tensor) -> Tensor:
        check_logits(owner, logits, batch=len(x))
        return cotangents(logits)

    try:
        with evaluating(model):
            parameters = dict(model.named_parameters())
            return squared_products(stages_of(model), parameters, x, checked, at_once=at_once, constant=constant)
    except NotLinear as exception:
        reason = str(exception)  # and forget the exception: it holds what was recorded
    note: Any = getattr(model, "note_double_backward", None)
    if note is not None:
        note(owner, reason)
    return by_double_backward(owner, model, x, checked, at_once=at_once, constant=constant)


def stages_of(model: nn.Module) -> Stages:
    """The sweeps of a model: its own where it brings some (the fast engine's networks do), else plain ones."""
    own: Any = getattr(model, "penalty_stages", None)
    if own is not None:
        stages: Stages = own()
        return stages
    return PlainStages(model, frozenset(name for name, p in model.named_parameters() if p.requires_grad))


def squared_input_gradients_value(
    owner: str, model: nn.Module, x: Tensor, cotangents: Cotangents, *, at_once: int = 16
) -> Tensor:
    """(B,), without a graph."""
    with torch.enable_grad():
        logits, leaf = logits_and_leaf(model, x, owner=owner)
    return _sum_of_chunks(logits, leaf, cotangents(logits.detach()), at_once)


def by_double_backward(
    owner: str, model: nn.Module, x: Tensor, cotangents: Cotangents, *, at_once: int, constant: bool
) -> Tensor:
    """The same for any model that can be differentiated twice.

    A graph of second order is kept for up to ``at_once`` cotangents; beyond, each chunk's graph is built again when
    gradients are asked for, at the price of one more backward pass per cotangent.
    """
    logits, leaf = logits_and_leaf(model, x, owner=owner)
    vectors = cotangents(logits.detach() if constant else logits)
    if len(vectors) <= at_once or not constant:
        products = vector_jacobian_products(logits, leaf, vectors, create_graph=True)
        return check_carries_gradient(owner, squared_lengths(products))
    del logits, leaf
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    penalty: Tensor = _Recomputed.apply(owner, model, x, vectors, at_once, *parameters)  # type: ignore[no-untyped-call]
    return penalty


def _sum_of_chunks(logits: Tensor, leaf: Tensor, vectors: Tensor, at_once: int) -> Tensor:
    total = torch.zeros(len(logits), dtype=logits.dtype, device=logits.device)
    for chunk in vectors.split(at_once):
        total += squared_lengths(vector_jacobian_products(logits, leaf, chunk, keep_graph=True))
    return total


class _Recomputed(torch.autograd.Function):
    """The penalty of many cotangents: chunks of them are differentiated one after the other, forgetting each graph."""

    @staticmethod
    def forward(
        ctx: Any, owner: str, model: nn.Module, x: Tensor, vectors: Tensor, at_once: int, *parameters: Tensor
    ) -> Tensor:
        # Saved by torch, images and parameters that are changed before backward() raise; the statistics are copied.
        ctx.save_for_backward(x, *parameters)
        ctx.owner, ctx.model, ctx.buffers = owner, model, copied_buffers(model)
        ctx.autocast = torch.is_autocast_enabled(x.device.type), torch.get_autocast_dtype(x.device.type)
        ctx.chunks = vectors.split(at_once)
        with torch.enable_grad():
            logits, leaf = logits_and_leaf(model, x, owner=owner)
        return _sum_of_chunks(logits, leaf, vectors, at_once)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        x, *parameters = ctx.saved_tensors
        enabled, dtype = ctx.autocast
        sums: list[Tensor | None] = [None] * len(parameters)
        for chunk in ctx.chunks:
            with torch.enable_grad():
                with with_buffers(ctx.buffers), torch.autocast(x.device.type, dtype=dtype, enabled=enabled):
                    logits, leaf = logits_and_leaf(ctx.model, x, owner=ctx.owner)
                products = vector_jacobian_products(logits, leaf, chunk, create_graph=True)
                penalty = check_carries_gradient(ctx.owner, squared_lengths(products))
            gradients = torch.autograd.grad(penalty, parameters, weights, allow_unused=True)
            sums = [_add(total, gradient) for total, gradient in zip(sums, gradients, strict=True)]
        return None, None, None, None, None, *sums


def _add(total: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    if total is None or gradient is None:
        return gradient if total is None else total
    return total + gradient
