"""Batch norm in evaluation mode as one multiply-add per element: scale and shift are made beforehand, once per step.

As an operator of its own, so that a recording still knows whose weight and bias it is.
"""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function


def folded_batch_norm(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    mean: Tensor,
    inverse_deviation: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """scale x + shift per channel, in the type of x; the rest is for the derivatives by weight and bias."""
    given = (x, scale, shift, mean, inverse_deviation, weight, bias)
    if has_torch_function(given):
        result: Any = handle_torch_function(folded_batch_norm, given, *given)
        return result  # type: ignore[no-any-return]
    axes = (-1, *[1] * (x.dim() - 2))
    return torch.addcmul(shift.view(axes), x, scale.view(axes)).to(x.dtype)
