"""Run a model in another mode and put every flag back, submodule by submodule.

``model.train(was_training)`` would not do: a user may keep one frozen batch norm in evaluation mode inside a model that
trains, and that must survive. Nor is ``eval`` called on the way in: a module's own may do more, such as merging
weights for evaluation, which would have to be undone before a gradient is taken. Flags are set, and nothing else.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from widemargin.types import ModelMode

Values = Sequence[tuple[object, str, Any]]
"""(the object that has an attribute, the attribute's name, a value of it)."""


@contextmanager
def with_values(values: Values) -> Iterator[None]:
    """Run with these values, such as batch-norm statistics of an earlier moment; those that were there are put back."""
    own = [(owner, name, getattr(owner, name)) for owner, name, _ in values]
    try:
        for owner, name, value in values:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in own:
            setattr(owner, name, value)


@contextmanager
def in_mode(model: nn.Module, mode: ModelMode) -> Iterator[None]:
    """Run the model in ``mode``, then restore every submodule's own flag.

    For "train", a model that trains already stays as it is, with what its user has frozen; another one is switched.
    "batch" is "train" with copies in the place of all buffers: batch norm takes the batch's statistics and leaves the
    running ones, its counts and all else that a forward pass changes, as they were.
    """
    flagged = [module for module in model.modules() if hasattr(module, "training")]
    trains = mode != "eval"
    with (
        with_values([(module, "training", trains and module.training) for module in flagged]),
        with_values(copied_buffers(model) if mode == "batch" else []),
    ):
        if trains and not model.training:
            model.train()
        yield


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


def frozen(model: nn.Module) -> AbstractContextManager[None]:
    """No parameter asks for a gradient: an attack needs none, and a compiled model then skips computing them."""
    return with_values([(parameter, "requires_grad", False) for parameter in model.parameters()])


def copied_buffers(model: nn.Module) -> Values:
    """The model's buffers as they are now, for :func:`with_values`."""
    return [
        (module, name, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
