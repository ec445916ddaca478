"""How training uses a head: the logits the label's cross-entropy sees, and what a head does after an update.

Any classifier works: one without a head of ours predicts and trains with the same logits.
"""

from typing import Any

from torch import Tensor, nn

from widemargin.heads.linear import LinearHead


def logits_for_training(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(logits, label logits): what the model predicts with, and what its label loss sees; one forward pass for both."""
    head: Any = getattr(model, "head", None)
    if isinstance(head, LinearHead) or not hasattr(head, "training_logits"):
        logits: Tensor = model(x)
        return logits, logits
    network: Any = model
    features = network.features(x)
    logits = head(features)
    return logits, head.training_logits(features, logits, y)


def after_update(model: nn.Module) -> None:
    """Let every head do what it does once per optimizer step: project its rows, count the step."""
    for module in model.modules():
        after_step = getattr(module, "after_step", None)
        if callable(after_step):
            after_step()
