"""What can be known of TorchScript models, whose operators nobody sees: batch norms that couple the samples.

A scripted batch norm is still a module of that name. A traced one has its mode written into the graph: traced in
training mode it normalizes by the batch for ever, whatever ``eval()`` says.
"""

from typing import Any

import torch
from torch import nn

from widemargin.double_backward import refuse_coupling_batch_norm

_MEAN, _VARIANCE, _TRAINING = 3, 4, 5
"""The places of these arguments in ``aten::batch_norm``."""


def refuse_coupling_scripts(model: nn.Module) -> None:
    """Refuse a scripted or traced part whose batch norm uses the batch itself."""
    for module in _outermost(model):
        for part in module.modules():
            if "BatchNorm" in part.original_name and hasattr(part, "running_mean"):
                refuse_coupling_batch_norm(False, part.running_mean, part.running_var)
        graph = module.inlined_graph  # its nodes live as long as it does
        for node in graph.findAllNodes("aten::batch_norm"):
            inputs = list(node.inputs())
            mean, variance = (_given(inputs[place]) for place in (_MEAN, _VARIANCE))
            refuse_coupling_batch_norm(inputs[_TRAINING].toIValue() is True, mean, variance)


def _outermost(model: nn.Module) -> list[Any]:
    """The scripted modules that are inside no other."""
    if isinstance(model, torch.jit.ScriptModule):
        return [model]
    return [found for child in model.children() for found in _outermost(child)]


def _given(value: Any) -> Any:
    """What stands for an argument in the graph; None where that is None."""
    return None if value.type().kind() == "NoneType" else value
