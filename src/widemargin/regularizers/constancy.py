"""What every input-gradient penalty refuses: to be a constant."""

import torch
from torch import Tensor, nn

from widemargin.errors import InputError


def check_gradient_is_possible(owner: str, model: nn.Module) -> None:
    """A penalty called where it cannot train anything says so."""
    if torch.is_inference_mode_enabled():
        raise InputError(f"{owner}: called under torch.inference_mode(), where no gradient exists; leave it first")
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


def check_carries_gradient(owner: str, penalty: Tensor) -> Tensor:
    """The penalty reaches the parameters: without this a lost graph would train on without the penalty."""
    if not penalty.requires_grad:
        raise InputError(
            f"{owner}: the penalty does not depend on the parameters; the model's forward loses the graph of the input "
            "gradient (a custom backward without a second derivative, or a compiled part), or what is trained does not "
            "change it (biases alone, say)"
        )
    return penalty
