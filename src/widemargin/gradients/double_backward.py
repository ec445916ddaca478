"""A forward pass that can be differentiated twice: correctly, and without the waste of the stock operators.

A penalty needs d/d(parameters) of an input gradient, so autograd runs backward through backward. Six things spoil that,
and ``differentiable_twice()`` repairs or refuses them while a model's own, unchanged ``forward`` runs:

- ``relu``: its second derivative is written as a zero tensor that is then pushed through the whole network, two
  forwards' worth of work for nothing. Filling what does not pass with zeros has the same value and gradient and no
  such term.
- batch norm in evaluation mode: autograd keeps the running statistics by reference and does not notice when a later
  train-mode forward overwrites them; the penalty's gradient is then silently wrong. The affine form reads them now.
- batch norm in training mode, or without running statistics, couples the samples: a per-sample input gradient does not
  exist. Refused; in TorchScript models, whose operators nobody sees, by ``refuse_coupling_scripts``.
- ``hardsigmoid`` has no second derivative at all; as a clamp it has.
- fused attention and ``torch.compile`` have no second derivative: attention runs as matrix products, all else eagerly.
- checkpointed parts would run again in the backward pass, when the model is back in its own mode: they run as ordinary
  parts (``eager_operators``, which a recorded pass needs too).

Compilation and attention are switches of the whole process: the first thread that needs one sets it, the last one to
leave puts back what was found. Meanwhile other threads run eagerly and with ordinary attention too; their checkpoints
stay checkpoints.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from widemargin.errors import InputError

Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Function) -> Function:
    """It runs as it is inside a compiled function. Torch's own decorator would hide its signature.

    This one, which torch uses itself, brings torch's tracers (a second or two) with the first call, not with an import.
    """
    return cast(Function, _disable_dynamo(function))


@contextmanager
def differentiable_twice() -> Iterator[None]:
    """Within it, forwards are eager and their graphs can be differentiated twice."""
    with eager_operators(), _MATH_ATTENTION.on(), _Rewrite():
        yield


@contextmanager
def eager_operators() -> Iterator[None]:
    """Inside, nothing is compiled and nothing of this thread is checkpointed."""
    with _EAGER.on(), _UNCHECKPOINTED.on():
        _checkpoints_off.depth += 1
        try:
            yield
        finally:
            _checkpoints_off.depth -= 1


class _ProcessSwitch:
    """A setting of the whole process, which holds while any thread is inside."""

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make, self._lock, self._inside, self._undo = make, threading.Lock(), 0, ExitStack()

    @contextmanager
    def on(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._undo.enter_context(self._make())
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self._undo.close()


class _CheckpointsOff(threading.local):
    """How often this thread is inside."""

    depth = 0


_checkpoints_off = _CheckpointsOff()
_HOOK = "_checkpoint_hook"
"""What makes torch's checkpointing forget activations; without it a checkpointed part is an ordinary one."""


@contextmanager
def _without_checkpoints() -> Iterator[None]:
    """In the threads that are inside ``eager_operators``; those of others stay."""
    usual = getattr(torch.utils.checkpoint, _HOOK, None)
    if usual is None:  # a torch that does it otherwise
        yield
        return
    setattr(torch.utils.checkpoint, _HOOK, lambda frame: nullcontext() if _checkpoints_off.depth else usual(frame))
    try:
        yield
    finally:
        setattr(torch.utils.checkpoint, _HOOK, usual)


_EAGER = _ProcessSwitch(lambda: torch.compiler.set_stance("force_eager"))
_UNCHECKPOINTED = _ProcessSwitch(_without_checkpoints)
_MATH_ATTENTION = _ProcessSwitch(lambda: sdpa_kernel(SDPBackend.MATH))


def _relu(input: Tensor, inplace: bool = False) -> Tensor:
    stopped = input.detach() <= 0
    return input.masked_fill_(stopped, 0.0) if inplace else input.masked_fill(stopped, 0.0)


_relu_in_place = partial(_relu, inplace=True)


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


_MEAN, _VARIANCE, _TRAINING = 3, 4, 5
"""The places of these arguments in ``aten::batch_norm``."""


def refuse_coupling_scripts(model: nn.Module) -> None:
    """Refuse a scripted or traced part whose batch norm uses the batch itself.

    A scripted batch norm is still a module of that name. A traced one has its mode written into the graph: traced in
    training mode it normalizes by the batch for ever, whatever ``eval()`` says.
    """
    for module in _outermost_scripts(model):
        for part in module.modules():
            if "BatchNorm" in part.original_name and hasattr(part, "running_mean"):
                refuse_coupling_batch_norm(False, part.running_mean, part.running_var)
        graph = module.inlined_graph  # its nodes live as long as it does
        for node in graph.findAllNodes("aten::batch_norm"):
            inputs = list(node.inputs())
            statistics = [inputs[place] for place in (_MEAN, _VARIANCE)]
            mean, variance = (None if value.type().kind() == "NoneType" else value for value in statistics)
            refuse_coupling_batch_norm(inputs[_TRAINING].toIValue() is True, mean, variance)


def _outermost_scripts(model: nn.Module) -> list[Any]:
    """The scripted modules that are inside no other."""
    if isinstance(model, torch.jit.ScriptModule):
        return [model]
    return [found for child in model.children() for found in _outermost_scripts(child)]
