"""The first weights: as torch's layers draw them, or larger, as He et al. derive them for ReLU.

Torch's own have a sixth of the variance that keeps the size of activations, so a deep network without batch norm starts
with small outputs. What it learns remembers that: see ``docs/paper-vs-code.md`` on the MLP.
"""

from typing import Literal

from torch import nn

from widemargin.errors import InputError

Init = Literal["he"] | None
"""None is torch's own."""


def require_init(owner: str, init: object) -> None:
    """Refuse a name that is none."""
    if init not in ("he", None):
        raise InputError(f"{owner}.init must be 'he', or None for torch's own, got {init!r}")


def initialize(model: nn.Module, init: Init) -> None:
    """Draw the weights of a new network again, where ``init`` asks for it, from the global generator."""
    if init is None:
        return
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in model.modules():
        project = getattr(module, "after_average", None)  # of a head with unit rows
        if callable(project):
            project()
