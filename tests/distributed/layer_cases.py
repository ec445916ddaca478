"""Batch norm and gradients by hand, for one process and for two: what a case gives depends on the whole batch alone."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.core import batch_share
from widemargin.core.batch_share import share_of, sharing
from widemargin.distributed.sync_batch_norm import SharedBatchNorm, share_batch_norms
from widemargin.objectives import Standard
from widemargin.training import StepContext
from widemargin.training.step import take_step
from widemargin.types import Nets

CONTEXT = StepContext(seed=0, epoch=0, step=0, steps_per_epoch=1)
NORMS: dict[str, tuple[Callable[..., nn.Module], dict[str, Any], tuple[int, ...]]] = {
    # the layer, its settings, the shape of a batch
    "2d": (nn.BatchNorm2d, {}, (5, 3, 4, 2)),
    "3d": (nn.BatchNorm3d, {"eps": 0.1}, (4, 3, 2, 2, 2)),
    "1d of features": (nn.BatchNorm1d, {}, (5, 3)),
    "1d of one sample each": (nn.BatchNorm1d, {}, (2, 3)),
    "cumulative": (nn.BatchNorm2d, {"momentum": None}, (5, 3, 4, 2)),
    "without weights": (nn.BatchNorm2d, {"affine": False}, (5, 3, 4, 2)),
    "without bias": (nn.BatchNorm2d, {"bias": False}, (5, 3, 4, 2)),
    "fewer samples than processes": (nn.BatchNorm2d, {}, (1, 3, 4, 2)),
    "far from zero": (nn.BatchNorm2d, {}, (6, 3, 4, 2)),
}


def normalized(name: str, *, rank: int = 0, processes: int = 1) -> dict[str, Tensor]:
    """Two training passes of a batch norm with their gradients, then one in evaluation mode; this process's rows."""
    make, settings, shape = NORMS[name]
    torch.manual_seed(0)
    model = nn.Sequential(make(3, **settings)).double()
    for parameter in model.parameters():
        nn.init.uniform_(parameter)
    if processes > 1:
        share_batch_norms(model)
        assert isinstance(model[0], SharedBatchNorm)
    found: dict[str, Tensor] = {}
    for number in range(2):
        x, weights = torch.rand(2, *shape, dtype=torch.float64)
        x = x + 1e4 if name == "far from zero" else x
        share = share_of(len(x), rank=rank, processes=processes)
        rows = slice(None) if share is None else share.rows
        leaf = x[rows].clone().requires_grad_()
        with sharing(share):
            out = model(leaf)
            batch_share.part_of_mean((out.sin() * weights[rows]).flatten(1).sum(1)).backward()
        scale = 1.0 if share is None or not share.repeated else float(processes)
        assert leaf.grad is not None
        found |= {f"out {number}": out.detach(), f"gradient {number}": leaf.grad * scale}
    found |= {f"summed {key}": p.grad for key, p in model.named_parameters() if p.grad is not None}
    found |= {f"buffer {key}": buffer for key, buffer in model.named_buffers()}
    return found | {"evaluated": model.eval()(x[rows]).detach()}


class Odd(nn.Module):
    """A network with a part that only bright images reach, and a part that none does."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.seldom, self.never = (nn.Linear(4, 3) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        flat = x.flatten(1)
        logits: Tensor = self.body(flat)
        bright = flat.amax(1, keepdim=True) > 0.9
        return logits + bright * self.seldom(flat) if bool(bright.any()) else logits


def odd(*, rank: int = 0, processes: int = 1) -> dict[str, Tensor]:
    """Two updates; the bright image is the first, so the last process has no gradient for ``seldom``."""
    torch.manual_seed(0)
    model = Odd().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    x, y = torch.rand(4, 1, 2, 2, dtype=torch.float64) * 0.5, torch.tensor([0, 1, 2, 1])
    x[0, 0, 0, 0] = 1.0
    share = share_of(4, rank=rank, processes=processes)
    rows = slice(None) if share is None else share.rows
    for _ in range(2):
        with sharing(share):
            take_step(Nets(model=model), optimizer, Standard(), (), x[rows], y[rows], CONTEXT)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}
