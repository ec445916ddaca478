"""A backward pass that cannot itself be differentiated, and says so.

Torch's own ``once_differentiable`` notices only where the incoming gradient carries a graph. A loss has a constant one,
so the second derivative of a loss with a penalty would silently lack the penalty.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from widemargin.errors import InputError

Backward = Callable[..., Any]


def differentiable_once(backward: Backward) -> Backward:
    """``backward``, refused where a graph of the gradients is asked for (``create_graph=True``)."""

    @wraps(backward)
    def checked(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled():
            raise InputError(
                "a penalty was differentiated with create_graph=True; its gradient has no derivative of its own, which "
                "Hessian-vector products, gradient penalties and meta-learning need. Take such derivatives of the loss "
                "without the penalty, or write the penalty with torch.autograd.grad(..., create_graph=True)"
            )
        return backward(ctx, *gradients)

    return checked
