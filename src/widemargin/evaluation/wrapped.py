"""Any classifier as the attacks expect one: (N, C, H, W) float32 in [0, 1] in, float32 logits out.

A float64 or bfloat16 model keeps its own arithmetic and is fed and read in float32; a model of flat inputs sees them
flat.
"""

import math

import torch
from torch import Tensor, nn

from widemargin.checks import check_logits
from widemargin.errors import InputError


class Wrapped(nn.Module):
    """The model between float32 images and float32 logits."""

    def __init__(self, model: nn.Module, *, flat: bool = False) -> None:
        super().__init__()
        self.model = model
        self.flat = flat
        first = next((p for p in model.parameters() if p.is_floating_point()), None)
        self.dtype = torch.float32 if first is None else first.dtype
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:
        """Float32 logits."""
        x = x.flatten(1) if self.flat else x
        logits: Tensor = self.model(x.to(self.dtype))
        check_logits("evaluate", logits, batch=len(x))
        return logits.float()


def as_images(x: Tensor) -> Tensor:
    """Flat inputs (N, D) as square one-channel images; the black-box attack draws squares on them."""
    if x.dim() == 4:
        return x
    if x.dim() != 2:
        raise InputError(f"evaluate: images must be (N, C, H, W) or flat (N, D), got shape {tuple(x.shape)}")
    side = math.isqrt(x.shape[1])
    if side * side != x.shape[1]:
        raise InputError(
            f"evaluate: flat inputs of {x.shape[1]} values are not a square image; give images (N, C, H, W) and let "
            "the model flatten them"
        )
    return x.view(len(x), 1, side, side)
