"""Which way a penalty on input gradients takes through a model, and why (the package's docstring has the ways)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from widemargin.core.checks import check_batch, check_model, refuse_transforms, usable
from widemargin.core.modes import evaluating, without_ddp
from widemargin.gradients.double_backward import refuse_coupling_scripts
from widemargin.gradients.sweeps.calls import NotSweepable
from widemargin.gradients.sweeps.tape import record


@dataclass(frozen=True, kw_only=True)
class Path:
    """The way, and for double backward what is against the sweeps."""

    way: Literal["sweeps", "double backward"]
    reason: str


def path_of(model: nn.Module, x: Tensor) -> Path:
    """The way a penalty on the model's input gradient at images x takes. One forward pass, in evaluation mode.

    A model that cannot be regularized at all (batch norm that couples the samples) is refused as the penalty would.
    """
    check_model("path_of", model)
    check_batch("path_of", x)
    refuse_transforms("path_of")
    model = without_ddp(model)
    refuse_coupling_scripts(model)
    trained = frozenset(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    try:
        with evaluating(model), torch.enable_grad():
            record(model, usable(x), trained)
    except NotSweepable as reason:
        return Path(way="double backward", reason=str(reason))
    return Path(way="sweeps", reason="every operator of the model is known")
