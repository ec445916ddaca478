"""Any classifier as the attacks expect one: float32 inputs in [0, 1], most often images, in; float32 logits out.

A float64 or bfloat16 model keeps its own arithmetic and is fed and read in float32; a model of flat inputs sees them
flat. It may write into its images, which are a copy, and makes its tensors of the type that its user has as default.
"""

import math

import torch
from torch import Tensor, nn

from widemargin.checks import check_logits
from widemargin.precision import default_type


class Wrapped(nn.Module):
    """The model between float32 images and float32 logits."""

    def __init__(self, model: nn.Module, *, flat: bool = False) -> None:
        super().__init__()
        self.model = model
        self.flat = flat
        self.dtype = _input_dtype(model)
        self.default = torch.get_default_dtype()
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:
        """Float32 logits."""
        x = x.flatten(1) if self.flat else x
        with default_type(self.default):
            logits: Tensor = self.model(x.to(self.dtype, copy=True))
        check_logits("evaluate", logits, batch=len(x))
        return logits.float()


def _input_dtype(model: nn.Module) -> torch.dtype:
    """That of the first matrix or kernel, which images meet; a scale in front of it may be of any."""
    found = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    weights = [parameter for parameter in found if parameter.dim() > 1]
    return next((parameter.dtype for parameter in weights + found), torch.float32)


def is_square(x: Tensor) -> bool:
    """Whether flat inputs (N, D) can be shown as square one-channel images."""
    return x.dim() == 2 and math.isqrt(x.shape[1]) ** 2 == x.shape[1]


def as_images(x: Tensor) -> Tensor:
    """Flat inputs as square images where they can be: AutoAttack draws squares on them. Others as they are."""
    side = math.isqrt(x.shape[1])
    return x.view(len(x), 1, side, side) if is_square(x) else x
