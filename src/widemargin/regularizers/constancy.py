"""What every input-gradient penalty refuses: to be a constant."""

import sys
from typing import Any, cast

import torch
from torch import Tensor, nn

from widemargin.errors import InputError


def check_gradient_is_possible(owner: str, model: nn.Module, x: Tensor) -> None:
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


def check_not_sharded(owner: str, model: nn.Module) -> None:
    """FSDP has a part of each weight in every process, and its hooks gather them for first derivatives alone."""
    fsdp, tensor = (sys.modules.get(f"torch.distributed.{name}") for name in ("fsdp", "tensor"))
    wrapped = fsdp is not None and any(isinstance(m, fsdp.FullyShardedDataParallel) for m in model.modules())
    if wrapped or (tensor is not None and any(isinstance(p, tensor.DTensor) for p in model.parameters())):
        raise InputError(
            f"{owner}: the model's weights are sharded over processes (fully_shard, FSDP or tensor parallelism), which "
            "has no second derivatives; use DistributedDataParallel"
        )


def trained_by(owner: str, penalty: Tensor, leaf: Tensor) -> list[Tensor]:
    """The parameters that the penalty's graph reaches, beside the images' leaf, in the model or outside of it.

    None is refused: without this a lost graph would train on without the penalty. That the penalty requires a gradient
    proves nothing, for a second derivative may depend on the images alone.
    """
    found = [tensor for tensor in reached_by(penalty) if tensor is not leaf]
    if not found:
        raise InputError(
            f"{owner}: the penalty does not depend on the parameters; the model's forward loses the graph of the input "
            "gradient (a custom backward without a second derivative, or a compiled part), or what is trained does not "
            "change it (biases alone, say)"
        )
    return found


def reached_by(tensor: Tensor) -> list[Tensor]:
    """The tensors that a backward pass from here would give gradients to."""
    waiting, seen, leaves = [tensor.grad_fn], set(), []
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "torch::autograd::AccumulateGrad":
            leaves.append(cast(Any, node).variable)
        waiting += [following for following, _ in node.next_functions]
    return leaves
