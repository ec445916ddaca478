"""A forward pass that can be differentiated twice: correctly, and without the waste of the stock operators.

The penalties need d/d(parameters) of an input gradient, so autograd runs backward through backward. Five things spoil
that, and ``differentiable_twice()`` repairs them while a model's own, unchanged ``forward`` runs:

- ``relu``: its second derivative is written as a zero tensor that is then pushed through the whole network, two
  forwards' worth of work for nothing. Filling what does not pass with zeros has the same value and gradient and no
  such term.
- batch norm in evaluation mode: autograd keeps the running statistics by reference and does not notice when a later
  train-mode forward overwrites them; the penalty's gradient is then silently wrong. The affine form reads them now.
- batch norm in training mode, or without running statistics, couples the samples: a per-sample input gradient does not
  exist. Refused.
- ``hardsigmoid`` has no second derivative at all; as a clamp it has.
- fused attention and torch.compile have no second derivative, and checkpointed parts would run again later, in another
  mode: the plain operators run instead (``plain_operators``).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from widemargin.errors import InputError
from widemargin.plain_operators import plain_operators


@contextmanager
def differentiable_twice() -> Iterator[None]:
    """Within it, forwards are eager and their graphs can be differentiated twice."""
    with plain_operators(), _Rewrite():
        yield


def _relu(input: Tensor, inplace: bool = False) -> Tensor:
    stopped = input.detach() <= 0
    return input.masked_fill_(stopped, 0.0) if inplace else input.masked_fill(stopped, 0.0)


def _relu_in_place(input: Tensor) -> Tensor:
    return _relu(input, inplace=True)


def _leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    slope = torch.full_like(input, negative_slope, requires_grad=False).masked_fill_(input > 0, 1.0)
    return input.mul_(slope) if inplace else input * slope


def _hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    return input.mul_(1 / 6).add_(0.5).clamp_(0, 1) if inplace else (input / 6 + 0.5).clamp(0, 1)


def refuse_coupling_batch_norm(training: bool, running_mean: Tensor | None, running_var: Tensor | None) -> None:
    """Batch norm over the batch itself couples its samples."""
    if training or running_mean is None or running_var is None:
        raise InputError(
            "the model has a batch norm without running statistics (track_running_stats=False, a forward that forces "
            "training=True, or a model traced in training mode); it couples the samples of a batch, so per-sample "
            "input gradients do not exist. Use running statistics or another normalization"
        )


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,  # noqa: ARG001 - the operator's own signature
    eps: float = 1e-5,
) -> Tensor:
    refuse_coupling_batch_norm(training, running_mean, running_var)
    assert running_mean is not None
    assert running_var is not None
    scale = torch.rsqrt(running_var + eps)
    scale = scale if weight is None else scale * weight
    shift = -running_mean * scale
    shift = shift if bias is None else shift + bias
    axes = (1, -1, *[1] * (input.dim() - 2))
    return torch.addcmul(shift.view(axes), input, scale.view(axes)).to(input.dtype)


def _positional_batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,  # noqa: ARG001 - the operator's own signature
) -> Tensor:
    return _batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


_REWRITES: dict[Callable[..., Any], Callable[..., Tensor]] = {
    F.relu: _relu,
    torch.relu: _relu,
    Tensor.relu: _relu,
    torch.relu_: _relu_in_place,
    Tensor.relu_: _relu_in_place,
    F.leaky_relu: _leaky_relu,
    F.hardsigmoid: _hardsigmoid,
    F.batch_norm: _batch_norm,
    torch.batch_norm: _positional_batch_norm,
}


class _Rewrite(TorchFunctionMode):
    """Replaces the operators above, whoever calls them."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        operator: Callable[..., Any] = _REWRITES.get(func, func)
        return operator(*args, **(kwargs or {}))
