"""The copy of a network that attacks search on where there is no GPU: ``--search folded`` and ``--search bfloat16``.

Its batch norms are folded into the convolutions before them, which are in channels last, the layout that CPUs multiply
fastest: the same function up to rounding. With bfloat16 it multiplies in whichever way of it this processor is fastest
at. As with TF32, what is found on the copy counts only if it holds in float32 on the network itself
(``tf32_search.push_across_boundary``).
"""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import Tensor, nn

from widemargin.core.checks import logits_of
from widemargin.core.modes import evaluating
from widemargin.core.precision import allowing_tf32, bfloat16_factors, quickest_cpu_products
from widemargin.engine.fast_model import BATCH_NORMS, EvalCopy
from widemargin.errors import InputError

ALIKE = 1e-4
"""What the folded copy's logits may differ by, as a share of the largest."""
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def arithmetic(search: str) -> AbstractContextManager[None]:
    """What attacks search in."""
    if search == "tf32":
        return allowing_tf32()
    factors = search == "bfloat16" and quickest_cpu_products() == "bfloat16 factors"
    return bfloat16_factors() if factors else nullcontext()


def cpu_search_model(model: nn.Module, like: Tensor, *, reduced: bool) -> nn.Module:
    """The copy, with the weights of now; ``like`` are a few images, on which it is seen what can be folded."""
    try:
        folded = copy.deepcopy(model)
    except Exception as error:  # whatever a foreign model raises
        raise InputError(
            f"evaluate.search: this model cannot be copied ({error}); leave --search out, to search on it itself"
        ) from error
    with torch.no_grad(), evaluating(folded):
        fold_into_convolutions(folded, like)
    network = EvalCopy(folded, torch.bfloat16 if reduced and quickest_cpu_products() == "bfloat16" else None)
    for parameter in network.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    network.refresh_statistics()
    return network.eval()


def fold_into_convolutions(model: nn.Module, like: Tensor) -> int:
    """Fold each batch norm that directly follows a convolution into it, and leave nothing in its place; how many.

    One pass, in evaluation mode, tells which does: it is given the very tensor that the convolution made. A fold after
    which the logits are others, because that tensor goes elsewhere too, is undone.
    """
    made: dict[int, tuple[nn.Module, Tensor]] = {}
    calls: list[nn.Module] = []
    pairs: list[tuple[nn.Module, nn.Module]] = []

    def after(module: nn.Module, _: object, output: Tensor) -> None:
        calls.append(module)
        made[id(output)] = module, output  # kept, so that no other tensor gets its id

    def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        calls.append(module)
        if id(inputs[0]) in made:
            pairs.append((made[id(inputs[0])][0], module))

    hooks = [module.register_forward_hook(after) for module in model.modules() if type(module) in CONVOLUTIONS]
    hooks += [
        module.register_forward_pre_hook(before)
        for module in model.modules()
        if type(module) in BATCH_NORMS and cast(nn.BatchNorm2d, module).running_var is not None
    ]
    try:
        logits = logits_of(model(like))
    finally:
        for hook in hooks:
            hook.remove()
    pairs = [pair for pair in pairs if all(calls.count(module) == 1 for module in pair)]
    undo = [_fold(model, cast(nn.Conv2d, convolution), cast(nn.BatchNorm2d, norm)) for convolution, norm in pairs]
    if _alike(logits_of(model(like)), logits):
        return len(pairs)
    for put_back in undo:
        put_back()
    count = 0
    for convolution, norm in pairs:  # somewhere the convolution's result is used by something else, too
        put_back = _fold(model, cast(nn.Conv2d, convolution), cast(nn.BatchNorm2d, norm))
        if _alike(logits_of(model(like)), logits):
            count += 1
        else:
            put_back()
    return count


def _alike(logits: Tensor, wanted: Tensor) -> bool:
    return bool((logits - wanted).abs().max() <= ALIKE * wanted.abs().max())


def _fold(model: nn.Module, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> Callable[[], None]:
    """Fold it; returns what undoes that."""
    weight, bias = convolution.weight, convolution.bias
    places = [(parent, name) for parent in model.modules() for name, child in parent.named_children() if child is norm]
    mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
    scale = (variance.double() + norm.eps).rsqrt() * (1.0 if norm.weight is None else norm.weight.double())
    shift = -mean.double() if bias is None else bias.double() - mean.double()
    shift = shift * scale + (0.0 if norm.bias is None else norm.bias.double())
    folded = weight.double() * scale.view(-1, *[1] * (weight.dim() - 1))
    convolution.weight = nn.Parameter(folded.to(weight.dtype), requires_grad=False)
    convolution.bias = nn.Parameter(shift.to(weight.dtype), requires_grad=False)
    for parent, name in places:
        setattr(parent, name, nn.Identity())

    def undo() -> None:
        convolution.weight, convolution.bias = weight, bias
        for parent, name in places:
            setattr(parent, name, norm)

    return undo
