"""What processes that share a batch add up in a step: batch-norm statistics and gradients.

**Batch norm** takes the statistics of the whole batch, whichever rows of it this process has. On a GPU that is torch's
own SyncBatchNorm. It refuses CPU tensors, so for them it is written out: with x^ = (x - mean) / deviation over all n
values of a channel in all processes,

    d x = weight / deviation (d y - sum(d y) / n - x^ sum(d y x^) / n),

the sums again over all processes. Each process's statistics are merged by Chan's formula, which loses no digits.
Outside a shared batch and in evaluation mode it is ordinary batch norm.

**Gradients** go in one message. A process's loss is its part of the mean over the whole batch
(``batch_share.part_of_mean``), so gradients are added, not averaged. Attacks and penalties run on the unwrapped module
and there is one backward pass, so nothing stays in one process.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from widemargin.core import batch_share
from widemargin.errors import InputError
from widemargin.gradients.double_backward import uncompiled
from widemargin.types import Nets

STATISTICS = ("running_mean", "running_var")
_SUPPORTED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class SharedBatchNorm(nn.SyncBatchNorm):
    """Stands where a batch norm stood, with its parameters and buffers."""

    foldable_in_evaluation = True
    """``types.FoldableNorm``, for the fast engine."""

    def forward(self, x: Tensor) -> Tensor:
        """The normalized activations."""
        if self.training:
            return self._in_training(x)
        return _BatchNorm.forward(self, x)

    @uncompiled
    def _in_training(self, x: Tensor) -> Tensor:
        share = batch_share.current()
        if share is None or share.repeated:
            return _BatchNorm.forward(self, x)
        return super().forward(x) if x.is_cuda else self._over_processes(x)

    def _over_processes(self, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        out, mean, variance, count = _OverProcesses.apply(x, self.weight, self.bias, self.eps)  # type: ignore[no-untyped-call]
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            rate = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            unbiased = variance * (count / (count - 1))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), rate)
        return cast(Tensor, out)


class _OverProcesses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        mean, variance, count = _merged(x)
        inverse = torch.rsqrt(variance + eps)
        shape = (1, -1, *[1] * (x.dim() - 2))
        normal = (x.to(mean.dtype) - mean.view(shape)) * inverse.view(shape)
        out = normal if weight is None else normal * weight.view(shape)
        out = out if bias is None else out + bias.view(shape)
        ctx.save_for_backward(normal, inverse if weight is None else inverse * weight)
        ctx.count, ctx.shape, ctx.dtype = count, shape, x.dtype
        ctx.mark_non_differentiable(mean, variance)
        return out.to(x.dtype), mean, variance, count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: object) -> tuple[Tensor | None, ...]:
        normal, scale = ctx.saved_tensors
        axes = [0, *range(2, gradient.dim())]
        gradient = gradient.to(normal.dtype)
        to_weight, to_bias = (gradient * normal).sum(axes), gradient.sum(axes)
        to_x = None
        if ctx.needs_input_grad[0]:
            sums = torch.cat([to_bias, to_weight])
            dist.all_reduce(sums)
            along_one, along_normal = (part.view(ctx.shape) / ctx.count for part in sums.chunk(2))
            to_x = (scale.view(ctx.shape) * (gradient - along_one - normal * along_normal)).to(ctx.dtype)
        wanted = ctx.needs_input_grad
        return to_x, to_weight if wanted[1] else None, to_bias if wanted[2] else None, None


def _merged(x: Tensor) -> tuple[Tensor, Tensor, float]:
    """(mean, biased variance, count) of every channel over all processes, in float32 or wider."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    axes = [0, *range(2, x.dim())]
    variance, mean = torch.var_mean(wide, axes, correction=0)
    count = wide.new_full((1,), x.numel() // x.shape[1])
    mine = torch.cat([mean, variance, count])
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    table = torch.stack(everyone)
    means, variances, counts = table[:, : len(mean)], table[:, len(mean) : -1], table[:, -1:]
    total = counts.sum()
    mean = (counts * means).sum(0) / total
    variance = (counts * (variances + (means - mean).square())).sum(0) / total
    return mean, variance, float(total)


def share_batch_norms(model: nn.Module) -> None:
    """Put a SharedBatchNorm in the place of every batch norm, around the same parameters and buffers."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm) and not isinstance(child, SharedBatchNorm):
                setattr(parent, name, _shared(child))


def _shared(norm: _BatchNorm) -> SharedBatchNorm:
    if type(norm) not in _SUPPORTED or norm.running_mean is None:
        what = "without running statistics" if type(norm) in _SUPPORTED else "of its own kind"
        raise InputError(
            f"{type(norm).__name__}: a batch norm {what} cannot be synchronized between processes; use torch's "
            "BatchNorm with running statistics, or train with --no-sync-bn"
        )
    shared = SharedBatchNorm(norm.num_features, eps=norm.eps, momentum=norm.momentum, affine=False)
    shared.affine = norm.affine
    shared.weight, shared.bias = norm.weight, norm.bias
    for name, buffer in norm.named_buffers(recurse=False):
        setattr(shared, name, buffer)
    return shared.train(norm.training)


def has_own_statistics(model: nn.Module) -> bool:
    """Whether some batch norm would take its statistics from this process's rows alone; a frozen one takes none."""
    norms = (module for module in model.modules() if isinstance(module, _BatchNorm) and module.training)
    return any(not isinstance(norm, SharedBatchNorm) for norm in norms)


def reduce_gradients(nets: Nets) -> None:
    """Add up the gradients of all processes; a parameter for which no process has one keeps none."""
    if batch_share.current() is None:
        return
    parameters = [parameter for parameter in nets.parameters() if parameter.requires_grad]
    ordered = sorted(parameters, key=lambda parameter: str(parameter.dtype))
    for _, alike in groupby(ordered, key=lambda parameter: parameter.dtype):
        _reduce(list(alike))


def _reduce(parameters: Sequence[nn.Parameter]) -> None:
    """One message: every gradient, zeros for a missing one, and for each parameter whether there was one."""
    present = parameters[0].new_tensor([parameter.grad is not None for parameter in parameters])
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in parameters]
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), present])
    dist.all_reduce(flat)
    *sums, holders = flat.split([*(parameter.numel() for parameter in parameters), len(parameters)])
    for number, (parameter, total) in enumerate(zip(parameters, sums, strict=True)):
        if parameter.grad is not None:
            parameter.grad.copy_(total.view_as(parameter))
        elif float(holders[number]) > 0:
            parameter.grad = total.view_as(parameter).clone()


@torch.no_grad()
def average_own_statistics(nets: Nets) -> None:
    """Without synchronized batch norm: every process takes the mean of all running statistics before they are used.

    Penalties and the next step's attack run in evaluation mode, and must see the same network everywhere.
    """
    share = batch_share.current()
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
