"""Squared input gradients per sample, sum_m ||J^T c_m||^2: what every penalty here is, for its own cotangents c.

By forward and reverse sweeps over the model's layers (``linearize``) where all of them are known; by double backward
(``double_backward``) for any other model. Both are exact; a test holds one against the other.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from widemargin.checks import check_batch, check_logits, check_model, refuse_transforms, usable
from widemargin.errors import InputError
from widemargin.jacobian import in_chunks, logits_and_leaf, vector_jacobian_products
from widemargin.linearize import Cotangents, NotLinear, PlainStages, Rows, Stages, squared_lengths, squared_products
from widemargin.linearize.once import differentiable_once
from widemargin.modes import copied_buffers, ddp_of, evaluating, outside_inference_mode, with_buffers, without_ddp
from widemargin.regularizers.constancy import check_gradient_is_possible, check_not_sharded, reached_by, trained_by
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
    refuse_transforms(owner)
    check_not_sharded(owner, model)
    check_gradient_is_possible(owner, model, x)
    ddp = ddp_of(model)
    if ddp is None or dist.get_world_size(ddp.process_group) == 1:
        return _of_one_process(owner, without_ddp(model), x, cotangents, at_once, constant)
    penalty = _of_one_process(owner, ddp.module, x, cotangents, at_once, constant)
    parameters = reached_by(penalty)
    within: Tensor = _WithinDDP.apply(owner, ddp, (penalty,), *parameters)  # type: ignore[no-untyped-call]
    return within


def _of_one_process(
    owner: str, model: nn.Module, x: Tensor, cotangents: Cotangents, at_once: int, constant: bool
) -> Tensor:
    refuse_coupling_scripts(model)
    x = usable(x)

    def checked(logits: Tensor) -> Rows:
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
    with outside_inference_mode():
        with torch.enable_grad():
            logits, leaf = logits_and_leaf(model, x, owner=owner)
        return _sum_of_chunks(logits, leaf, cotangents(logits.detach()), at_once)


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
    products = vector_jacobian_products(logits, leaf, vectors[:] if whole else vectors[:1], create_graph=True)
    penalty = squared_lengths(products)
    parameters = trained_by(owner, penalty, leaf)
    if whole:
        return penalty
    del products, penalty  # and their graph
    many: Tensor = _Chunks.apply((logits, leaf), vectors, at_once, *parameters)  # type: ignore[no-untyped-call]
    return many


def _sum_of_chunks(logits: Tensor, leaf: Tensor, vectors: Rows, at_once: int) -> Tensor:
    total = torch.zeros(len(logits), dtype=logits.dtype, device=logits.device)
    for chunk in in_chunks(len(vectors), at_once):
        total += squared_lengths(vector_jacobian_products(logits, leaf, vectors[chunk], keep_graph=True))
    return total


class _WithinDDP(torch.autograd.Function):
    """A penalty of a network in DistributedDataParallel, which averages gradients over the processes in the backward
    pass of its own output and in no other: there this process's gradients would be its own, and weights drift apart."""

    @staticmethod
    def forward(ctx: Any, owner: str, ddp: Any, penalty: tuple[Tensor], *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*parameters)
        ctx.owner, ctx.ddp, ctx.penalty = owner, ddp, penalty
        return penalty[0].detach()

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        keep, parameters = torch._C._autograd._get_current_graph_task_keep_graph(), ctx.saved_tensors
        gradients = torch.autograd.grad(ctx.penalty, parameters, weights, retain_graph=keep, allow_unused=True)
        if ctx.ddp.require_backward_grad_sync or ctx.ddp.static_graph:
            found = [(p, own) for p, own in zip(parameters, gradients, strict=True) if own is not None]
            _refuse_a_pass_of_its_own(ctx.owner, ctx.ddp, found)
        if not keep:
            del ctx.penalty
        return None, None, None, *gradients


def _refuse_a_pass_of_its_own(owner: str, ddp: Any, gradients: list[tuple[Tensor, Tensor]]) -> None:
    """At the end of this backward pass: whether anything was added to the gradients, and whether DDP took part."""
    before = list(ddp.reducer.get_backward_stats())
    added: list[bool] = []
    accumulated: list[Tensor] = []  # nothing by torch.autograd.grad, whose caller has the gradients
    hooks = [p.register_hook(lambda g, own=own: added.append(g.data_ptr() != own.data_ptr())) for p, own in gradients]
    hooks += [p.register_post_accumulate_grad_hook(accumulated.append) for p, _ in gradients[:1]]

    def check() -> None:
        for hook in hooks:
            hook.remove()
        took_part = ddp.static_graph or before != list(ddp.reducer.get_backward_stats())
        if accumulated and not (any(added) and took_part):
            raise InputError(
                f"{owner}: its backward pass was not that of the loss, in which DistributedDataParallel averages the "
                "gradients over the processes; add the penalty to the loss and call backward() once, or call the "
                "penalty's backward() before the model, under no_sync()"
            )

    torch.autograd.Variable._execution_engine.queue_callback(check)


class _Chunks(torch.autograd.Function):
    """The penalty of many cotangents on one graph of the forward pass: the second-order graph of each chunk is made,
    used and forgotten, once for the value and once more for the gradient."""

    @staticmethod
    def forward(ctx: Any, graph: tuple[Tensor, Tensor], vectors: Rows, at_once: int, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*parameters)  # one of them changed before backward() raises
        ctx.graph, ctx.vectors, ctx.at_once = graph, vectors, at_once
        return _sum_of_chunks(*graph, vectors, at_once)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        parameters, (logits, leaf) = ctx.saved_tensors, ctx.graph
        sums: list[Tensor | None] = [None] * len(parameters)
        for chunk in in_chunks(len(ctx.vectors), ctx.at_once):
            with torch.enable_grad():
                penalty = squared_lengths(vector_jacobian_products(logits, leaf, ctx.vectors[chunk], create_graph=True))
            gradients = torch.autograd.grad(penalty, parameters, weights, retain_graph=True, allow_unused=True)
            del penalty  # with its graph, before the next one is made
            sums = [_add(total, gradient) for total, gradient in zip(sums, gradients, strict=True)]
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            del ctx.graph, ctx.vectors  # as torch frees what it saved
        return None, None, None, *sums


def _add(total: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    if total is None or gradient is None:
        return gradient if total is None else total
    return total + gradient
