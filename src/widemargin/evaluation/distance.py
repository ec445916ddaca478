"""The actual distance to the nearest adversarial example found: a minimal-norm attack, FAB from the official backend.

Beside the effective margin in the same norm it shows whether the margin means what it says. It is an upper bound on the
true distance: no attack proves that nothing nearer exists.

On a GPU the search may be faster with TF32, on a copy of the network. FAB stops a little beyond the boundary it sees,
by less than TF32's error, so what it finds is made longer by up to two percent until it is adversarial in float32. Such
a find counts if float32 still classifies the image correctly at 97% of that distance. Where float32 disagrees about any
find that near, the image is searched again in float32.

``rank_correlation`` tells whether margins and distances put the images in the same order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.attacks.threat import THREATS
from widemargin.core.precision import allowing_tf32
from widemargin.evaluation.autoattack import finite
from widemargin.losses import predicted
from widemargin.types import Norm

LONGER = (1.0, 1.005, 1.01, 1.02)
SHORTER = 0.97


@dataclass(frozen=True)
class Distances:
    """(N,): the smallest perturbation found over all targets; 0 where misclassified, infinite where none was found."""

    values: Tensor
    again: int
    """How many of the images were searched again in float32."""


def minimal_distance(
    model: nn.Module, x: Tensor, y: Tensor, *, reference: Any, norm: Norm, batch_size: int, tf32_reference: Any = None
) -> Distances:
    """The distance of every image from its boundary.

    ``reference`` is the official attack on the model; ``tf32_reference`` on a copy of it, to be run in TF32. Called in
    float32.
    """
    parts = [
        _of_batch(model, images, labels, reference, tf32_reference, norm)
        for images, labels in zip(x.split(batch_size), y.split(batch_size), strict=True)
    ]
    return Distances(torch.cat([part.values for part in parts]), sum(part.again for part in parts))


def _of_batch(model: nn.Module, x: Tensor, y: Tensor, reference: Any, tf32_reference: Any, norm: Norm) -> Distances:
    with torch.no_grad():
        correct = predicted(model(x), y)
        smallest = torch.where(correct, torch.inf, 0.0).to(x.dtype)
        left = correct
        if tf32_reference is not None and left.any():
            smallest[correct], agreed = _searched_in_tf32(model, x[correct], y[correct], tf32_reference, norm)
            left = correct.clone()
            left[correct] = ~agreed
        if left.any():
            found = _searched_in_float32(model, x[left], y[left], reference, norm)
            smallest[left] = torch.where(smallest[left] < found, smallest[left], found)
    return Distances(smallest, 0 if tf32_reference is None else int(left.sum()))


def _searched_in_float32(model: nn.Module, x: Tensor, y: Tensor, reference: Any, norm: Norm) -> Tensor:
    smallest = x.new_full((len(x),), torch.inf)
    for x_adv in _nearest_of_each_target(reference, x, y):
        sizes = torch.where(predicted(model(x_adv), y), torch.inf, THREATS[norm](1.0).size(x_adv - x))
        smallest = torch.minimum(smallest, sizes)
    return smallest


def _searched_in_tf32(model: nn.Module, x: Tensor, y: Tensor, reference: Any, norm: Norm) -> tuple[Tensor, Tensor]:
    """(distances, where float32 agrees with what was seen so near to the image)."""
    with allowing_tf32():
        right = predicted(reference.model(x), y)
        found = list(_nearest_of_each_target(reference, x, y))
    found = [_as_long_as_needed(model, x, y, x_adv) for x_adv in found]
    sizes = torch.stack([THREATS[norm](1.0).size(x_adv - x) for x_adv in found])
    whole = torch.stack([~predicted(model(x_adv), y) for x_adv in found])
    shorter = torch.stack([~predicted(model(x + SHORTER * (x_adv - x)), y) for x_adv in found])
    smallest = torch.where(whole, sizes, torch.inf).amin(0)
    otherwise = (sizes > 0) & (~whole | shorter) & (SHORTER * sizes < smallest)
    return smallest, right & smallest.isfinite() & ~otherwise.any(0)


def _as_long_as_needed(model: nn.Module, x: Tensor, y: Tensor, x_adv: Tensor) -> Tensor:
    """The shortest of a few lengths at which the model sees it as adversarial; as it was where there is none."""
    chosen, left = x_adv.clone(), torch.arange(len(x), device=x.device)
    for share in LONGER:
        tried = (x[left] + share * (x_adv[left] - x[left])).clamp(0.0, 1.0) if share > 1 else x_adv[left]
        fooled = ~predicted(model(tried), y[left])
        chosen[left[fooled]] = tried[fooled]
        left = left[~fooled]
        if not len(left):
            break
    return chosen


def _nearest_of_each_target(reference: Any, x: Tensor, y: Tensor) -> Iterator[Tensor]:
    """What FAB finds for the second most likely class, the third and so on; the image itself where it finds nothing."""
    fab = reference.fab
    for target in range(2, fab.n_target_classes + 2):
        fab.target_class = target
        torch.manual_seed(reference.seed)
        yield finite(fab.attack_single_run(x.clone(), y.clone(), use_rand_start=False, is_targeted=True), x)


def rank_correlation(left: Tensor, right: Tensor) -> float | None:
    """Spearman's: the correlation of the ranks, ties sharing their mean rank; None where it is not defined."""
    usable = left.isfinite() & right.isfinite()
    if int(usable.sum()) < 3:
        return None
    ranks = torch.stack([_ranks(left[usable].double()), _ranks(right[usable].double())])
    value = float(torch.corrcoef(ranks)[0, 1])
    return value if value == value else None


def _ranks(values: Tensor) -> Tensor:
    _, inverse, counts = values.unique(sorted=True, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks: Tensor = (last - (counts - 1) / 2)[inverse]
    return ranks
