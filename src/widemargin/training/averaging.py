"""Weight averaging (EMA): a second copy of the model that follows the first slowly.

average <- d average + (1 - d) model after every update, with d = min(decay, (1 + n) / (10 + n)) so that the first steps
are forgotten. Batch-norm statistics are averaged too, other buffers copied; a head with unit rows is put back on its
sphere. Averaging alone is worth more than many published gains, so a comparison gives it to both arms or to none.
"""

import copy

import torch
from torch import Tensor, nn

STATISTICS = ("running_mean", "running_var")


def make_average(model: nn.Module) -> nn.Module:
    """A copy that is not trained, in evaluation mode."""
    return copy.deepcopy(model).eval().requires_grad_(False)


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, *, decay: float, updates: int) -> None:
    """Move the average towards the model, after ``updates`` updates."""
    rate = 1 - min(decay, (1 + updates) / (10 + updates))
    ours, theirs = _followed(average), _followed(model)
    torch._foreach_lerp_(list(ours.values()), [theirs[name] for name in ours], rate)
    source = dict(model.named_buffers())
    for name, buffer in average.named_buffers():
        if not name.endswith(STATISTICS):
            buffer.copy_(source[name])
    for module in average.modules():
        after_average = getattr(module, "after_average", None)
        if callable(after_average):
            after_average()


def _followed(model: nn.Module) -> dict[str, Tensor]:
    buffers = {name: buffer for name, buffer in model.named_buffers() if name.endswith(STATISTICS)}
    return dict(model.named_parameters()) | buffers
