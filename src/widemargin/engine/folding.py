"""Batch norms of a twin as a scale and a shift per channel, made from the model's own tensors, all layers at once."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from widemargin.linearize.folded import folded_batch_norm

_PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class FoldedBatchNorm(nn.Module):
    """Stands where a batch norm with running statistics stood, under its parameters' names."""

    running_mean: Tensor
    running_var: Tensor
    scale: Tensor
    shift: Tensor
    inverse_deviation: Tensor

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self._buffers[name] = norm._buffers[name]
        for name in ("scale", "shift", "inverse_deviation"):
            self.register_buffer(name, torch.empty_like(cast(Tensor, norm.running_var)))

    def forward(self, x: Tensor) -> Tensor:
        """The normalized activations."""
        return folded_batch_norm(
            x, self.scale, self.shift, self.running_mean, self.inverse_deviation, self.weight, self.bias
        )


def fold_batch_norms(model: nn.Module) -> list[FoldedBatchNorm]:
    """Replace every batch norm of a twin that is plain in evaluation mode and has running statistics; the new ones."""
    found: list[FoldedBatchNorm] = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if _is_plain(type(child)) and cast(Any, child).running_var is not None:
                found.append(FoldedBatchNorm(cast(_BatchNorm, child)))
                setattr(parent, name, found[-1])
    return found


def _is_plain(kind: type[nn.Module]) -> bool:
    """Torch's own, or a class that says so of itself: what is derived from it may do something else."""
    return kind in _PLAIN or vars(kind).get("plain_in_evaluation") is True


@torch.no_grad()
def refresh_folds(norms: list[FoldedBatchNorm]) -> None:
    """scale = weight / deviation, shift = bias - mean scale, now."""
    for eps in {norm.eps for norm in norms}:
        group = [norm for norm in norms if norm.eps == eps]
        inverse = torch._foreach_add([norm.running_var for norm in group], eps)
        torch._foreach_rsqrt_(inverse)
        torch._foreach_copy_([norm.inverse_deviation for norm in group], inverse)
        torch._foreach_copy_([norm.scale for norm in group], inverse)
        affine = [norm for norm in group if norm.weight is not None]
        if affine:
            torch._foreach_mul_([norm.scale for norm in affine], [norm.weight for norm in affine])
        products = torch._foreach_mul([norm.running_mean for norm in group], [norm.scale for norm in group])
        torch._foreach_neg_(products)
        shifted = {id(norm): product for norm, product in zip(group, products, strict=True)}
        if affine:
            torch._foreach_add_([shifted[id(norm)] for norm in affine], [norm.bias for norm in affine])
        torch._foreach_copy_([norm.shift for norm in group], products)
