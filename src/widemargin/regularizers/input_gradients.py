"""Squared input gradients per sample, sum_m ||J^T c_m||^2: what every penalty here is, for its own cotangents c.

By forward and reverse sweeps over the model's layers (``linearize``) where all of them are known; by double backward
(``double_backward``) for any other model. Both are exact; a test holds one against the other.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.checks import check_batch, check_logits, check_model, usable
from widemargin.jacobian import logits_and_leaf, vector_jacobian_products
from widemargin.linearize import Cotangents, NotLinear, PlainStages, Stages, squared_lengths, squared_products
from widemargin.linearize.once import differentiable_once
from widemargin.modes import copied_buffers, evaluating, with_buffers, without_ddp
from widemargin.regularizers.constancy import check_gradient_is_possible, trained_by
from widemargin.scripted import refuse_coupling_scripts


def squared_input_gradients(
    owner: str, model: nn.Module, x: Tensor, cotangents: Cotangents, *, at_once: int = 16, constant: bool = True
) -> Tensor:
    """(B,), differentiable in the parameters; the model runs in evaluation mode and is left as it was.

    ``constant``: the cotangents, though computed from the logits, are not differentiated. Memory is that of ``at_once``
    cotangents, however many there are.
    """
    check_model(owner, model)
    check_batch(owner, x)
    model = without_ddp(model)
    check_gradient_is_possible(owner, model, x)
    refuse_coupling_scripts(model)
    x = usable(x)

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
    return _sum_of_chunks(logits, leaf, cotangents(logits.detach()).split(at_once))


def by_double_backward(
    owner: str, model: nn.Module, x: Tensor, cotangents: Cotangents, *, at_once: int, constant: bool
) -> Tensor:
    """The same for any model that can be differentiated twice.

    A graph of second order is kept for up to ``at_once`` cotangents; beyond, the graph of the forward pass is kept and
    each chunk's own is built again when gradients are asked for, at the price of one more backward pass per cotangent.
    """
    scripted = any(isinstance(module, torch.jit.ScriptModule) for module in model.modules())
    with with_buffers(copied_buffers(model) if scripted else []):  # whose batch norms cannot be rewritten
        logits, leaf = logits_and_leaf(model, x, owner=owner)
    vectors = cotangents(logits.detach() if constant else logits)
    whole = len(vectors) <= at_once or not constant
    products = vector_jacobian_products(logits, leaf, vectors if whole else vectors[:1], create_graph=True)
    penalty = squared_lengths(products)
    parameters = trained_by(owner, penalty, leaf)
    if whole:
        return penalty
    del products, penalty  # and their graph
    many: Tensor = _Chunks.apply((logits, leaf), vectors.split(at_once), *parameters)  # type: ignore[no-untyped-call]
    return many


def _sum_of_chunks(logits: Tensor, leaf: Tensor, chunks: Sequence[Tensor]) -> Tensor:
    total = torch.zeros(len(logits), dtype=logits.dtype, device=logits.device)
    for chunk in chunks:
        total += squared_lengths(vector_jacobian_products(logits, leaf, chunk, keep_graph=True))
    return total


class _Chunks(torch.autograd.Function):
    """The penalty of many cotangents on one graph of the forward pass: the second-order graph of each chunk is made,
    used and forgotten, once for the value and once more for the gradient."""

    @staticmethod
    def forward(ctx: Any, graph: tuple[Tensor, Tensor], chunks: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*parameters)  # one of them changed before backward() raises
        ctx.graph, ctx.chunks = graph, chunks
        return _sum_of_chunks(*graph, chunks)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        parameters, (logits, leaf) = ctx.saved_tensors, ctx.graph
        sums: list[Tensor | None] = [None] * len(parameters)
        for chunk in ctx.chunks:
            with torch.enable_grad():
                penalty = squared_lengths(vector_jacobian_products(logits, leaf, chunk, create_graph=True))
            gradients = torch.autograd.grad(penalty, parameters, weights, retain_graph=True, allow_unused=True)
            del penalty  # with its graph, before the next one is made
            sums = [_add(total, gradient) for total, gradient in zip(sums, gradients, strict=True)]
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            del ctx.graph, ctx.chunks  # as torch frees what it saved
        return None, None, *sums


def _add(total: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    if total is None or gradient is None:
        return gradient if total is None else total
    return total + gradient
