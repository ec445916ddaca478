"""How training uses a head: the logits the label's cross-entropy sees, and what a head does after an update.

Any classifier works: one without a head of ours predicts and trains with the same logits.
"""

from typing import cast

from torch import Tensor, nn

from widemargin.core.checks import logits_of
from widemargin.errors import InputError
from widemargin.heads.linear import LinearHead
from widemargin.types import AfterStep, Head, HeadedModel


def logits_for_training(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(logits, label logits): what the model predicts with, and what its label loss sees; one forward pass for both."""
    if not _has_margin(getattr(model, "head", None)):
        _refuse_hidden_margin(model)
        logits: Tensor = logits_of(model(x))
        return logits, logits
    headed = cast(HeadedModel, model)
    if not callable(getattr(model, "features", None)):
        owner = type(model).__name__
        raise InputError(
            f"{owner}.head is a {type(headed.head).__name__}, which needs {owner}.features(x): what the head takes; "
            "write it, and let forward be head(features(x))"
        )
    features = headed.features(x)
    logits = headed.head(features)
    return logits, headed.head.training_logits(features, logits, y)


def _has_margin(head: object) -> bool:
    head = getattr(head, "_orig_mod", head)  # of a compiled one
    return isinstance(head, Head) and not isinstance(head, LinearHead)


def _refuse_hidden_margin(model: nn.Module) -> None:
    """A head whose margin would silently be left out of training."""
    for name, module in model.named_modules():
        if _has_margin(module):
            raise InputError(
                f"{type(model).__name__}.{name} is a {type(module).__name__}, whose margin training would leave out; "
                "it is looked for as model.head, beside model.features(x). Give a wrapper's own model (model.module), "
                "or name them so"
            )


def after_update(model: nn.Module) -> None:
    """Let every head do what it does once per optimizer step: project its rows, count the step."""
    for module in model.modules():
        if issubclass(type(module), AfterStep):  # by the class: many times faster, and this runs at every step
            cast(AfterStep, module).after_step()
