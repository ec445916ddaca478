"""What a search in TF32 found and float32 does not confirm, pushed across the boundary by gradient steps in float32.

The two see the boundary in slightly different places. Attacks that stop as soon as they are across, FAB above all, end
between them: without a push their finds would be lost, and the network would seem more robust than it is.
"""

import torch
from torch import Tensor, nn

from widemargin.attacks import PGD
from widemargin.evaluation.accuracy import predicted
from widemargin.losses import lead_of_another
from widemargin.threat import Threat

STEPS, SHARE = 10, 0.05
"""So many steps at most, each of this share of eps."""


def pushed(model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor, threat: Threat) -> Tensor:
    """The images of ``x_adv`` moved on, inside the threat around ``x``, until the model gives another label than y."""
    step = PGD(eps=threat.eps, step_size=SHARE * threat.eps, steps=1, norm=threat.norm)
    point, left = x_adv.clone(), torch.arange(len(x), device=x.device)
    for _ in range(STEPS):
        if not len(left):
            break
        point[left] = step(model, x[left], y[left], goal=lead_of_another, start=point[left])
        with torch.no_grad():
            left = left[predicted(model(point[left]), y[left])]
    return point
