"""The network that an attack searches on: with TF32, a copy whose layout the GPU's tensor cores are made for.

They want channels last; other layouts are turned around before and after every convolution. The copy is for the search
alone: what it finds is judged by the network itself, in float32. Networks that are not ours are searched as they are.
"""

import copy

import torch
from torch import nn

from widemargin.models import Classifier


def searched(model: nn.Module, *, tf32: bool) -> nn.Module:
    """The model, or such a copy of it; its weights are the model's of now."""
    parameter = next(model.parameters(), None)
    if not (tf32 and isinstance(model, Classifier) and parameter is not None and parameter.is_cuda):
        return model
    return channels_last_copy(model)


def channels_last_copy(model: nn.Module) -> nn.Module:
    """In evaluation mode, without gradients of its own."""
    turned = copy.deepcopy(model).eval().requires_grad_(False)
    for parameter in turned.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return turned
