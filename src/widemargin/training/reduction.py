"""What processes that share a batch add up in a step: gradients, in one message, and statistics each has of its own.

A process's loss is its part of the mean over the whole batch (``shares.part_of_mean``), so gradients are added, not
averaged. Attacks and penalties run on the plain module and there is one backward pass: nothing stays in one process.
"""

from collections.abc import Sequence
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor, nn

from widemargin import shares
from widemargin.training.averaging import STATISTICS
from widemargin.training.sync_batch_norm import has_own_statistics
from widemargin.types import Nets


def reduce_gradients(nets: Nets) -> None:
    """Add up the gradients of all processes; a parameter for which no process has one keeps none."""
    if shares.current() is None:
        return
    parameters = [parameter for net in nets.all().values() for parameter in net.parameters() if parameter.requires_grad]
    ordered = sorted(parameters, key=lambda parameter: str(parameter.dtype))
    for _, alike in groupby(ordered, key=lambda parameter: parameter.dtype):
        _reduce(list(alike))


def _reduce(parameters: Sequence[nn.Parameter]) -> None:
    """One message: every gradient, zeros for a missing one, and for each parameter whether there was one."""
    present = parameters[0].new_tensor([parameter.grad is not None for parameter in parameters])
    flat = torch.cat([*(_flat_gradient(parameter) for parameter in parameters), present])
    dist.all_reduce(flat)
    *sums, holders = flat.split([*(parameter.numel() for parameter in parameters), len(parameters)])
    for number, (parameter, total) in enumerate(zip(parameters, sums, strict=True)):
        if parameter.grad is not None:
            parameter.grad.copy_(total.view_as(parameter))
        elif float(holders[number]) > 0:
            parameter.grad = total.view_as(parameter).clone()


def _flat_gradient(parameter: nn.Parameter) -> Tensor:
    gradient = parameter.grad
    return torch.zeros_like(parameter).flatten() if gradient is None else gradient.detach().flatten()


@torch.no_grad()
def average_own_statistics(nets: Nets) -> None:
    """Without synchronized batch norm: every process takes the mean of all running statistics before they are used.

    Penalties and the next step's attack run in evaluation mode, and must see the same network everywhere.
    """
    share = shares.current()
    if share is None:
        return
    for net in nets.all().values():
        if has_own_statistics(net):
            statistics = [buffer for name, buffer in net.named_buffers() if name.endswith(STATISTICS)]
            flat = torch.cat([buffer.flatten() for buffer in statistics])
            flat = flat * (share.weight * (share.stop - share.start) / share.total)
            dist.all_reduce(flat)
            for buffer, mean in zip(statistics, flat.split([b.numel() for b in statistics]), strict=True):
                buffer.data.copy_(mean.view_as(buffer))  # data: the backward pass of training mode does not read them
