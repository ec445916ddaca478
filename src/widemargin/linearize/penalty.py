"""Squared input gradients without double backward: P_i = sum_m ||J_i^T c_mi||^2 and its gradient by the weights.

dP_i = 2 sum_m d<c_mi, J_i v_mi> at v = g = J^T c held fixed, whatever the model. So the forward pass of the penalty is
a forward and an adjoint sweep, its backward pass a tangent sweep with one weight gradient per layer: four forwards'
worth of work for piecewise linear networks where double backward takes six, and no graph of a graph.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from widemargin.jacobian import in_chunks
from widemargin.linearize.layers import Gradients
from widemargin.linearize.once import differentiable_once
from widemargin.linearize.stages import Stages
from widemargin.linearize.sweeps import add_gradients


class Rows(Protocol):
    """(M, B, K): a tensor, or what gives slices of one."""

    def __len__(self) -> int: ...

    def __getitem__(self, which: slice, /) -> Tensor: ...


Cotangents = Callable[[Tensor], Rows]
"""logits (B, K) -> (M, B, K)."""


def squared_products(
    stages: Stages,
    parameters: Mapping[str, Tensor],
    x: Tensor,
    cotangents: Cotangents,
    *,
    at_once: int = 16,
    constant: bool = True,
) -> Tensor:
    """(B,), differentiable in ``parameters``, which the stages know by these names; x and they must not change.

    ``constant`` says that the cotangents count as constants though they may be computed from the logits. Up to
    ``at_once`` of them the adjoints of all are kept; beyond, they are computed again in chunks of that size.
    """
    names = tuple(parameters)
    penalty: Tensor = _SquaredProducts.apply(  # type: ignore[no-untyped-call]
        stages, names, x, cotangents, at_once, constant, *parameters.values()
    )
    return penalty


class _SquaredProducts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        stages: Stages,
        names: tuple[str, ...],
        x: Tensor,
        cotangents: Cotangents,
        at_once: int,
        constant: bool,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.stages, ctx.names = stages, names
        logits, ctx.tape = stages.record(x, keep_activations=not constant)
        named = dict(zip(names, parameters, strict=True))
        ctx.read = [name for name in names if name in stages.reads(ctx.tape)]
        ctx.save_for_backward(x, *(named[name] for name in ctx.read))  # one of them changed before backward() raises
        ctx.logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        ctx.cotangents = None if constant else cotangents
        ctx.vectors, ctx.vectors_dtype = cotangents(ctx.logits), logits.dtype
        whole = len(ctx.vectors) <= at_once or not constant
        total = torch.zeros(len(x), dtype=ctx.logits.dtype, device=x.device)
        ctx.chunks = []
        for chunk in in_chunks(len(ctx.vectors), len(ctx.vectors) if whole else at_once):
            g, adjoints = _adjoints(ctx, chunk)
            total = total + squared_lengths(g)
            ctx.chunks.append((chunk, g, adjoints) if whole else (chunk, None, None))
        return total

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        _, *read = ctx.saved_tensors
        types = {name: parameter.dtype for name, parameter in zip(ctx.read, read, strict=True)}
        gradients: Gradients = {}
        with torch.autocast(weights.device.type, enabled=False):
            for chunk, kept, adjoints in ctx.chunks:
                g, adjoints = (kept, adjoints) if kept is not None else _adjoints(ctx, chunk)
                add_gradients(gradients, _weight_gradients(ctx, g, adjoints, weights))
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            del ctx.tape, ctx.chunks, ctx.logits, ctx.vectors  # as torch frees what it saved
        found = [gradients[name].to(types[name]) if name in gradients else None for name in ctx.names]
        return (None,) * 6 + tuple(found)


def _adjoints(ctx: Any, chunk: slice) -> tuple[Tensor, list[Tensor]]:
    with torch.autocast(ctx.logits.device.type, enabled=False):
        found: tuple[Tensor, list[Tensor]] = ctx.stages.adjoints(ctx.tape, ctx.vectors[chunk].to(ctx.vectors_dtype))
    return found


def _weight_gradients(ctx: Any, g: Tensor, adjoints: list[Tensor], weights: Tensor) -> Gradients:
    """The gradients of sum_i weights_i P_i, P of one chunk of cotangents."""
    v = g * (2 * weights).to(g.dtype).view(1, -1, *[1] * (g.dim() - 2))
    gradients: Gradients
    pushed, gradients, bends = ctx.stages.tangents(ctx.tape, adjoints, v)
    if ctx.cotangents is not None:
        bend = _through_cotangents(ctx.cotangents, ctx.logits, pushed)
        output = ctx.stages.output(ctx.tape)
        bends = bends | {output: bends[output] + bend if output in bends else bend}
    if bends:
        add_gradients(gradients, ctx.stages.reverse(ctx.tape, bends))
    return gradients


def _through_cotangents(cotangents: Cotangents, logits: Tensor, pushed: Tensor) -> Tensor:
    """(B, K): d <c(z), J v> / dz at J v held fixed."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_(True)
        vectors = cotangents(leaf)[:]
    (bend,) = torch.autograd.grad(vectors, leaf, pushed.to(vectors.dtype))
    return bend.to(pushed.dtype)


def squared_lengths(g: Tensor) -> Tensor:
    """(M, B, ...) -> (B,): sums of squares over M and the image, in float32 or wider."""
    wide = g.to(torch.promote_types(g.dtype, torch.float32))
    return wide.flatten(2).square().sum(dim=(0, 2))
