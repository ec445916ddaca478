"""The actual distance to the nearest adversarial example found: a minimal-norm attack, FAB from the official backend.

Beside the effective margin in the same norm it shows whether the margin means what it says. It is an upper bound on the
true distance: no attack proves that nothing nearer exists.
"""

from typing import Any

import torch
from torch import Tensor, nn

from widemargin.evaluation.accuracy import predicted
from widemargin.threat import THREATS
from widemargin.types import Norm


def minimal_distance(model: nn.Module, x: Tensor, y: Tensor, *, reference: Any, norm: Norm, batch_size: int) -> Tensor:
    """(N,): the smallest perturbation found over all targets; 0 where misclassified, infinite where none was found."""
    parts = [
        _of_batch(model, images, labels, reference, norm)
        for images, labels in zip(x.split(batch_size), y.split(batch_size), strict=True)
    ]
    return torch.cat(parts)


def _of_batch(model: nn.Module, x: Tensor, y: Tensor, reference: Any, norm: Norm) -> Tensor:
    fab = reference.fab
    measure = THREATS[norm](1.0)
    with torch.no_grad():
        correct = predicted(model(x), y)
        smallest = torch.where(correct, torch.inf, 0.0).to(x.dtype)
        if not correct.any():
            return smallest
        for target in range(2, fab.n_target_classes + 2):
            fab.target_class = target
            torch.manual_seed(reference.seed)
            x_adv = fab.attack_single_run(
                x[correct].clone(), y[correct].clone(), use_rand_start=False, is_targeted=True
            )
            found = ~predicted(model(x_adv), y[correct])
            sizes = torch.where(found, measure.size(x_adv - x[correct]), torch.inf)
            smallest[correct] = torch.minimum(smallest[correct], sizes)
    return smallest
