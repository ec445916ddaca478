"""Input gradients of logits.

Notation: z (B, K) logits, w_j = dz_j/dx the rows of a sample's Jacobian. In evaluation mode samples do not see each
other, so one backward pass from ``sum over samples of c_i . z_i`` gives every sample its own vector-Jacobian product
c_i J_i. A set of M such products costs M backward passes; the vectorized form runs them as one batched pass.
"""

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from widemargin.core.checks import (
    check_batch,
    check_count,
    check_logits,
    check_model,
    refuse_transforms,
    refuse_unfit,
    usable,
)
from widemargin.core.modes import evaluating, outside_inference_mode, without_ddp
from widemargin.errors import InputError
from widemargin.gradients.double_backward import differentiable_twice, refuse_coupling_scripts


def logits_and_leaf(model: nn.Module, x: Tensor, *, owner: str) -> tuple[Tensor, Tensor]:
    """Evaluation-mode logits of x, and the leaf they can be differentiated by (twice).

    Logits are float32 or wider whatever the model computes in, so that softmax and squares do not lose small values.
    """
    check_model(owner, model)
    check_batch(owner, x)
    refuse_transforms(owner)
    model = without_ddp(model)
    refuse_coupling_scripts(model)
    leaf = usable(x).detach().requires_grad_(True)
    try:
        with evaluating(model), differentiable_twice():
            output = model(leaf)
    except RuntimeError as error:
        refuse_unfit(owner, model, leaf, error)
        raise
    logits = check_logits(owner, output, batch=x.shape[0])
    if not logits.requires_grad:
        raise InputError(
            f"{owner}: the model's logits carry no gradient; its forward detaches them, "
            "or runs under torch.no_grad() or torch.inference_mode()"
        )
    return logits.to(torch.promote_types(logits.dtype, torch.float32)), leaf


def vector_jacobian_products(
    logits: Tensor | GradientEdge,
    leaf: Tensor,
    cotangents: Tensor,
    *,
    create_graph: bool = False,
    keep_graph: bool = False,
) -> Tensor:
    """(M, B, K) cotangents -> (M, B, ...) input gradients, one batched backward pass for all M."""

    def gradient(vectors: Tensor, *, batched: bool) -> Tensor:
        (found,) = torch.autograd.grad(
            logits,
            leaf,
            vectors,
            retain_graph=create_graph or keep_graph,
            create_graph=create_graph,
            is_grads_batched=batched,
            allow_unused=True,
        )
        if found is None:
            raise InputError(
                "the model's logits carry no gradient to the images; a part of its forward detaches them, "
                "or runs under torch.no_grad() or torch.inference_mode()"
            )
        return found.to(torch.promote_types(found.dtype, torch.float32))

    with torch.autocast(leaf.device.type, enabled=False):  # backward runs outside autocast, as torch recommends
        if len(cotangents) > 1:
            try:
                return gradient(cotangents, batched=True)
            except RuntimeError:  # group norm's second derivative, for one, has no batched form
                if not (create_graph or keep_graph):
                    raise
        return torch.stack([gradient(vectors, batched=False) for vectors in cotangents])


class EveryClass:
    """The cotangents (K, B, K) that pick a logit in every sample, each made when a slice with it is asked for."""

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits.detach()

    def __len__(self) -> int:
        return self._logits.shape[1]

    def __getitem__(self, which: slice) -> Tensor:
        classes = range(len(self))[which]
        rows = self._logits.new_zeros(len(classes), len(self))
        rows.diagonal(classes.start).fill_(1)
        return rows[:, None, :].expand(-1, len(self._logits), -1)


def in_chunks(count: int, size: int) -> list[slice]:
    """All of them in order, ``size`` at a time."""
    return [slice(start, start + size) for start in range(0, count, size)]


def logit_jacobian(model: nn.Module, x: Tensor, *, classes_at_once: int = 16) -> Tensor:
    """(B, K, ...): the rows w_j = dz_j/dx of every sample, without a graph."""
    check_count("logit_jacobian: classes_at_once", classes_at_once)
    with outside_inference_mode():
        with torch.enable_grad():
            logits, leaf = logits_and_leaf(model, x, owner="logit_jacobian")
        classes, chunks = EveryClass(logits), in_chunks(logits.shape[1], classes_at_once)
        rows = [vector_jacobian_products(logits, leaf, classes[c], keep_graph=c != chunks[-1]) for c in chunks]
        return torch.cat(rows).transpose(0, 1)
