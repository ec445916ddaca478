"""Which way a penalty on input gradients takes through a model, and why (the package's docstring has the ways)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from widemargin.core.checks import check_batch, check_model, refuse_transforms, usable
from widemargin.core.modes import evaluating, without_ddp
from widemargin.gradients.double_backward import refuse_coupling_scripts
from widemargin.gradients.sweeps.calls import NotSweepable, NotWorthwhile
from widemargin.gradients.sweeps.tape import record


@dataclass(frozen=True, kw_only=True)
class Path:
    """The way, and why: for double backward, what is against the sweeps."""

    way: Literal["sweeps", "double backward"]
    reason: str
    known: bool
    """Whether the sweeps could take the model: the fast engine's compiled ones then do, whatever the way here."""


def path_of(model: nn.Module, x: Tensor, *, vectors: int = 1) -> Path:
    """The way a penalty on the model's input gradient at images x takes. One forward pass, in evaluation mode.

    ``vectors``: how many a sample, as many as classes for exact EMR, one for approximate EMR and the input gradient.
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
            _, tape = record(model, usable(x), trained)
            tape.refuse_unless_worthwhile(vectors)
    except NotWorthwhile as reason:
        return Path(way="double backward", reason=str(reason), known=True)
    except NotSweepable as reason:
        return Path(way="double backward", reason=str(reason), known=False)
    smooth = "smooth, with convolutions" if tape.curved else "piecewise linear"
    return Path(way="sweeps", reason=f"every operator is known, and the network is {smooth}", known=True)
