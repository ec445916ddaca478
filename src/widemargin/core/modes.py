"""Run a model in another mode and put every flag back, submodule by submodule.

``model.train(was_training)`` would not do: a user may keep one frozen batch norm in evaluation mode inside a model that
trains, and that must survive. Nor is ``eval`` called on the way in: a module's own may do more, such as merging
weights for evaluation, which would have to be undone before a gradient is taken. Flags are set, and nothing else.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from widemargin.types import ModelMode

Buffers = list[tuple[nn.Module, str, Tensor]]
"""(the module that owns it, its name there, its value)."""


@contextmanager
def in_mode(model: nn.Module, mode: ModelMode) -> Iterator[None]:
    """Run the model in ``mode``, then restore every submodule's own flag.

    For "train", a model that trains already stays as it is, with what its user has frozen; another one is switched.
    """
    before = [(module, module.training) for module in model.modules() if hasattr(module, "training")]
    try:
        if mode == "eval":
            for module, _ in before:
                module.training = False
        elif not model.training:
            model.train()
        yield
    finally:
        for module, training in before:
            module.training = training


def without_ddp(model: nn.Module) -> nn.Module:
    """The network inside DistributedDataParallel: its own forward prepares for gradients that are not taken here."""
    ddp = ddp_of(model)
    return model if ddp is None else ddp.module


def ddp_of(model: nn.Module) -> nn.parallel.DistributedDataParallel | None:
    """The wrapper for distributed training, which may be compiled; None where there is none."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.parallel.DistributedDataParallel) else None


def evaluating(model: nn.Module) -> AbstractContextManager[None]:
    """Evaluation mode: batch norm uses its running statistics and leaves them alone, dropout is off."""
    return in_mode(model, "eval")


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Gradients can be asked for inside, also by callers under ``torch.inference_mode()``, as validation loops are.

    Tensors that were made there have to be copied before anything is differentiated by them (``checks.usable``).
    """
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No parameter asks for a gradient: an attack needs none, and a compiled model then skips computing them."""
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        for parameter, _ in before:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter, requires_grad in before:
            parameter.requires_grad_(requires_grad)


def copied_buffers(model: nn.Module) -> Buffers:
    """The model's buffers as they are now, for :func:`with_buffers`."""
    return [
        (module, name, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]


@contextmanager
def with_buffers(buffers: Buffers) -> Iterator[None]:
    """Run with these buffers (batch-norm statistics of an earlier moment); the model's own are set aside untouched."""
    own = [(module, name, getattr(module, name)) for module, name, _ in buffers]
    try:
        for module, name, value in buffers:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in own:
            setattr(module, name, value)
