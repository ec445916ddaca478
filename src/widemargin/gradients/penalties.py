"""Norms of input gradients per sample, P_i = sum_m ||c_im J_i||^2: what every penalty is, for its own vectors c.

The norm is L2, or another measure of gradients (``norms``); what follows is the same for all.

By sweeps where the tape can account for every operator of the model, by double backward for any other model (the
package's docstring says when which, and at what cost). Three ``autograd.Function`` carry the gradients: one runs the
sweeps, one builds the second-order graphs of many vectors chunk by chunk, one stands between a penalty and
DistributedDataParallel. None of their gradients can be differentiated again, and each says so.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn

from widemargin.core.checks import check_batch, check_logits, check_model, refuse_transforms, usable, warn_of_range
from widemargin.core.modes import copied_buffers, ddp_of, evaluating, outside_inference_mode, with_values, without_ddp
from widemargin.errors import InputError, WidemarginWarning
from widemargin.gradients.double_backward import refuse_coupling_scripts
from widemargin.gradients.jacobian import in_chunks, logits_and_leaf, vector_jacobian_products
from widemargin.gradients.norms import DualNorm, GradientMeasure
from widemargin.gradients.sweeps.calls import NotSweepable, NotWorthwhile, UnknownOperator
from widemargin.gradients.sweeps.layers import Gradients
from widemargin.gradients.sweeps.tape import EagerSweeps, add_to
from widemargin.types import HasSweeps, Sweeps


class Rows(Protocol):
    """(M, B, K): a tensor, or what gives slices of one."""

    def __len__(self) -> int: ...

    def __getitem__(self, which: slice, /) -> Tensor: ...


Cotangents = Callable[[Tensor], Rows]
"""logits (B, K) -> (M, B, K)."""
SQUARED_L2 = DualNorm()


def input_gradient_penalty(
    owner: str,
    model: nn.Module,
    x: Tensor,
    cotangents: Cotangents,
    *,
    norm: GradientMeasure = SQUARED_L2,
    at_once: int = 16,
    constant: bool = True,
) -> Tensor:
    """(B,), differentiable in the parameters; the model runs in evaluation mode and is left as it was.

    ``constant``: the cotangents, though computed from the logits, are not differentiated. Memory is that of ``at_once``
    cotangents, however many there are.
    """
    check_model(owner, model)
    check_batch(owner, x)
    refuse_transforms(owner)
    _check_not_sharded(owner, model)
    _check_trainable(owner, model, x)
    warn_of_range(owner, x)
    ddp = ddp_of(model)
    if ddp is None or dist.get_world_size(ddp.process_group) == 1:
        return _penalty(owner, without_ddp(model), x, cotangents, norm, at_once, constant)
    penalty = _penalty(owner, ddp.module, x, cotangents, norm, at_once, constant)
    parameters = list(_leaves_of(penalty))
    within: Tensor = _WithinDDP.apply(owner, ddp, (penalty,), *parameters)  # type: ignore[no-untyped-call]
    return within


def input_gradient_penalty_value(
    owner: str,
    model: nn.Module,
    x: Tensor,
    cotangents: Cotangents,
    *,
    norm: GradientMeasure = SQUARED_L2,
    at_once: int = 16,
) -> Tensor:
    """(B,), without a graph."""
    with outside_inference_mode():
        with torch.enable_grad():
            logits, leaf = logits_and_leaf(model, x, owner=owner)
        warn_of_range(owner, leaf)
        return _sum_of_chunks(logits, leaf, cotangents(logits.detach()), norm, at_once)


def _penalty(
    owner: str, model: nn.Module, x: Tensor, cotangents: Cotangents, norm: GradientMeasure, at_once: int, constant: bool
) -> Tensor:
    refuse_coupling_scripts(model)
    x = usable(x)

    def checked(logits: Tensor) -> Rows:
        check_logits(owner, logits, batch=len(x))
        return cotangents(logits)

    parameters = dict(model.named_parameters())
    trained = frozenset(name for name, parameter in parameters.items() if parameter.requires_grad)
    case = (owner, tuple(x.shape), trained)
    try:
        if case not in _not_worthwhile.get(model, ()):
            with evaluating(model):
                sweeps = model.penalty_stages() if isinstance(model, HasSweeps) else EagerSweeps(model, trained)
                chosen = isinstance(sweeps, EagerSweeps) and not isinstance(model, HasSweeps)
                return by_sweeps(
                    sweeps,
                    parameters,
                    x,
                    checked,
                    norm=norm,
                    at_once=at_once,
                    constant=constant,
                    only_worthwhile=chosen,
                )
    except NotWorthwhile:
        _not_worthwhile.setdefault(model, set()).add(case)  # the next one records nothing
    except NotSweepable as exception:
        reason = str(exception)  # and forget the exception: it holds what was recorded
        if isinstance(model, HasSweeps):
            model.note_double_backward(owner, reason)
        elif isinstance(exception, UnknownOperator):
            _say_once(owner, reason)
    return by_double_backward(owner, model, x, checked, norm=norm, at_once=at_once, constant=constant)


_not_worthwhile: WeakKeyDictionary[nn.Module, set[Any]] = WeakKeyDictionary()
"""Models that double backward takes as fast, and for which images and trained parameters."""
_said: set[str] = set()


def _say_once(owner: str, reason: str) -> None:
    """An unknown operator costs time, up to twice as much: worth one line, once in a process."""
    if reason not in _said:
        _said.add(reason)
        warnings.warn(
            f"{owner}: {reason}, so the model is differentiated twice: the same penalty, but slower where convolutions "
            "or ReLUs do most of the work (docs/models.md)",
            WidemarginWarning,
            stacklevel=5,
        )


def _refuse_create_graph(backward: Callable[..., Any]) -> Callable[..., Any]:
    """``backward``, refused where a graph of the gradients is asked for (``create_graph=True``).

    Torch's own ``once_differentiable`` notices only where the incoming gradient carries a graph. A loss has a constant
    one, so the second derivative of a loss with a penalty would silently lack the penalty.
    """

    @wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            raise InputError(
                "a penalty was differentiated with create_graph=True; its gradient has no derivative of its own, which "
                "Hessian-vector products, gradient penalties and meta-learning need. Take such derivatives of the loss "
                "without the penalty, or write the penalty with torch.autograd.grad(..., create_graph=True)"
            )
        return backward(ctx, *gradients)

    return checked


def by_sweeps(
    sweeps: Sweeps,
    parameters: Mapping[str, Tensor],
    x: Tensor,
    cotangents: Cotangents,
    *,
    norm: GradientMeasure = SQUARED_L2,
    at_once: int = 16,
    constant: bool = True,
    only_worthwhile: bool = False,
) -> Tensor:
    """(B,), differentiable in ``parameters``, which the sweeps know by these names; x and they must not change.

    ``only_worthwhile``: what double backward does as fast is refused (``NotWorthwhile``).
    ``constant`` says that the cotangents count as constants though they may be computed from the logits. Up to
    ``at_once`` of them the adjoints of all are kept; beyond, they are computed again in chunks of that size.
    """
    names = tuple(parameters)
    penalty: Tensor = _Swept.apply(  # type: ignore[no-untyped-call]
        sweeps, names, x, cotangents, norm, at_once, constant, only_worthwhile, *parameters.values()
    )
    return penalty


class _Swept(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        sweeps: Sweeps,
        names: tuple[str, ...],
        x: Tensor,
        cotangents: Cotangents,
        norm: GradientMeasure,
        at_once: int,
        constant: bool,
        only_worthwhile: bool,
        *parameters: Tensor,
    ) -> Tensor:
        ctx.sweeps, ctx.names, ctx.norm = sweeps, names, norm
        logits, ctx.tape = sweeps.record(x, keep_activations=not constant)
        named = dict(zip(names, parameters, strict=True))
        ctx.read = [name for name in names if name in ctx.tape.reads]
        ctx.save_for_backward(x, *(named[name] for name in ctx.read))  # one of them changed before backward() raises
        ctx.logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        ctx.cotangents = None if constant else cotangents
        ctx.vectors, ctx.vectors_dtype = cotangents(ctx.logits), logits.dtype
        if only_worthwhile:
            ctx.tape.refuse_unless_worthwhile(len(ctx.vectors))
        whole = len(ctx.vectors) <= at_once or not constant
        total = torch.zeros(len(x), dtype=ctx.logits.dtype, device=x.device)
        ctx.chunks = []
        for chunk in in_chunks(len(ctx.vectors), len(ctx.vectors) if whole else at_once):
            g, adjoints = _adjoints(ctx, chunk)
            total = total + norm.total(g)
            ctx.chunks.append((chunk, g, adjoints) if whole else (chunk, None, None))
        return total

    @staticmethod
    @_refuse_create_graph
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        _, *read = ctx.saved_tensors
        types = {name: parameter.dtype for name, parameter in zip(ctx.read, read, strict=True)}
        gradients: Gradients = {}
        with torch.autocast(weights.device.type, enabled=False):
            for chunk, g, adjoints in ctx.chunks:
                if g is None:
                    g, adjoints = _adjoints(ctx, chunk)
                add_to(gradients, _weight_gradients(ctx, g, adjoints, weights).items())
            gradients = ctx.sweeps.to_parameters(ctx.tape, gradients)
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            del ctx.tape, ctx.chunks, ctx.logits, ctx.vectors  # as torch frees what it saved
        found = [gradients[name].to(types[name]) if name in gradients else None for name in ctx.names]
        return (None,) * 8 + tuple(found)


def _adjoints(ctx: Any, chunk: slice) -> tuple[Tensor, list[Tensor]]:
    with torch.autocast(ctx.logits.device.type, enabled=False):
        found: tuple[Tensor, list[Tensor]] = ctx.sweeps.adjoints(ctx.tape, ctx.vectors[chunk].to(ctx.vectors_dtype))
    return found


def _weight_gradients(ctx: Any, g: Tensor, adjoints: list[Tensor], weights: Tensor) -> Gradients:
    """The gradients of sum_i weights_i P_i, P of one chunk of cotangents."""
    gradients: Gradients
    tangent, gradients, bends = ctx.sweeps.tangents(ctx.tape, adjoints, ctx.norm.slope(g, weights))
    if ctx.cotangents is not None:
        bend = _through_cotangents(ctx.cotangents, ctx.logits, tangent)
        add_to(bends, [(ctx.tape.output, bend)])
    if bends:
        add_to(gradients, ctx.sweeps.reverse(ctx.tape, bends).items())
    return gradients


def _through_cotangents(cotangents: Cotangents, logits: Tensor, tangent: Tensor) -> Tensor:
    """(B, K): d <c(z), J v> / dz at J v held fixed."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_(True)
        vectors = cotangents(leaf)[:]
    (bend,) = torch.autograd.grad(vectors, leaf, tangent.to(vectors.dtype))
    return bend.to(tangent.dtype)


def by_double_backward(
    owner: str,
    model: nn.Module,
    x: Tensor,
    cotangents: Cotangents,
    *,
    norm: GradientMeasure = SQUARED_L2,
    at_once: int,
    constant: bool,
) -> Tensor:
    """The same for any model that can be differentiated twice.

    A graph of second order is kept for up to ``at_once`` cotangents; beyond, the graph of the forward pass is kept and
    each chunk's own is built again when gradients are asked for, at the price of one more backward pass per cotangent.
    """
    scripted = any(isinstance(module, torch.jit.ScriptModule) for module in model.modules())
    with with_values(copied_buffers(model) if scripted else []):  # whose batch norms cannot be rewritten
        logits, leaf = logits_and_leaf(model, x, owner=owner)
    vectors = cotangents(logits.detach() if constant else logits)
    whole = len(vectors) <= at_once or not constant
    products = vector_jacobian_products(logits, leaf, vectors[:] if whole else vectors[:1], create_graph=True)
    penalty = norm.total(products)
    _check_depends(owner, penalty, leaf)
    if whole:
        return penalty
    parameters = [tensor for tensor in _leaves_of(penalty) if tensor is not leaf]
    del products, penalty  # and their graph
    many: Tensor = _ChunkedDoubleBackward.apply((logits, leaf), vectors, norm, at_once, *parameters)  # type: ignore[no-untyped-call]
    return many


class _ChunkedDoubleBackward(torch.autograd.Function):
    """The penalty of many cotangents on one graph of the forward pass: the second-order graph of each chunk is made,
    used and forgotten, once for the value and once more for the gradient."""

    @staticmethod
    def forward(
        ctx: Any, graph: tuple[Tensor, Tensor], vectors: Rows, norm: GradientMeasure, at_once: int, *parameters: Tensor
    ) -> Tensor:
        ctx.save_for_backward(*parameters)  # one of them changed before backward() raises
        ctx.graph, ctx.vectors, ctx.norm, ctx.at_once = graph, vectors, norm, at_once
        return _sum_of_chunks(*graph, vectors, norm, at_once)

    @staticmethod
    @_refuse_create_graph
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        parameters, (logits, leaf) = ctx.saved_tensors, ctx.graph
        sums: dict[int, Tensor] = {}
        for chunk in in_chunks(len(ctx.vectors), ctx.at_once):
            with torch.enable_grad():
                g = vector_jacobian_products(logits, leaf, ctx.vectors[chunk], create_graph=True)
                penalty = ctx.norm.total(g)
            gradients = torch.autograd.grad(penalty, parameters, weights, retain_graph=True, allow_unused=True)
            del g, penalty  # with its graph, before the next one is made
            add_to(sums, [(number, found) for number, found in enumerate(gradients) if found is not None])
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            del ctx.graph, ctx.vectors  # as torch frees what it saved
        return None, None, None, None, *(sums.get(number) for number in range(len(parameters)))


def _sum_of_chunks(logits: Tensor, leaf: Tensor, vectors: Rows, norm: GradientMeasure, at_once: int) -> Tensor:
    total = torch.zeros(len(logits), dtype=logits.dtype, device=logits.device)
    for chunk in in_chunks(len(vectors), at_once):
        total += norm.total(vector_jacobian_products(logits, leaf, vectors[chunk], keep_graph=True))
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
    @_refuse_create_graph
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


def _check_trainable(owner: str, model: nn.Module, x: Tensor) -> None:
    """A penalty called where it cannot train anything, or not what made its images, says so."""
    if torch.is_inference_mode_enabled():
        raise InputError(
            f"{owner}: called under torch.inference_mode(), where no gradient exists; "
            f"leave it first, or use {owner}.value(...) to measure"
        )
    if not torch.is_grad_enabled():
        raise InputError(
            f"{owner}: called under torch.no_grad(), so the penalty would carry no gradient; "
            f"call it with gradients enabled, or use {owner}.value(...) to measure"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(
            f"{owner}: no parameter of the model requires a gradient, so the penalty would train nothing; "
            f"unfreeze the model, or use {owner}.value(...) to measure"
        )
    if x.grad_fn is not None:
        raise InputError(
            f"{owner}: the images are the result of something that is differentiated, which the penalty would not "
            "train; give the whole network and its images, or detach them: x.detach()"
        )


def _check_not_sharded(owner: str, model: nn.Module) -> None:
    """FSDP has a part of each weight in every process, and its hooks gather them for first derivatives alone."""
    fsdp, tensor = (sys.modules.get(f"torch.distributed.{name}") for name in ("fsdp", "tensor"))
    wrapped = fsdp is not None and any(isinstance(m, fsdp.FullyShardedDataParallel) for m in model.modules())
    if wrapped or (tensor is not None and any(isinstance(p, tensor.DTensor) for p in model.parameters())):
        raise InputError(
            f"{owner}: the model's weights are sharded over processes (fully_shard, FSDP or tensor parallelism), which "
            "has no second derivatives; use DistributedDataParallel"
        )


def _check_depends(owner: str, penalty: Tensor, leaf: Tensor) -> None:
    """The penalty's graph reaches a parameter, beside the images' leaf, in the model or outside of it.

    None is refused: without this a lost graph would train on without the penalty. That the penalty requires a gradient
    proves nothing, for a second derivative may depend on the images alone.
    """
    if all(tensor is leaf for tensor in _leaves_of(penalty)):
        raise InputError(
            f"{owner}: the penalty does not depend on the parameters; the model's forward loses the graph of the input "
            "gradient (a custom backward without a second derivative, or a compiled part), or what is trained does not "
            "change it (biases alone, say)"
        )


def _leaves_of(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors that a backward pass from here would give gradients to, one by one: a graph may have many nodes."""
    waiting, seen = [tensor.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "torch::autograd::AccumulateGrad":
            yield cast(Any, node).variable
        waiting += [following for following, _ in node.next_functions]
