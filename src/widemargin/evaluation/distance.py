"""The actual distance to the nearest adversarial image that any of several minimal-norm attacks finds.

Beside the effective margin in the same norm it shows whether the margin means what it says. It is an upper bound on the
true distance: no attack proves that nothing nearer exists. Which attacks look for it is in ``minimal_norm.py``.

On a GPU the search may be faster with TF32, on a copy of the network. Attacks stop a little beyond the boundary they
see, by less than TF32's error, so what they find is made longer by up to two percent until it is adversarial in
float32. Such a find counts if float32 still classifies the image correctly at 97% of that distance. Where float32
disagrees about any find that near, the image is searched again in float32.

``rank_correlation`` tells whether margins and distances put the images in the same order.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from widemargin.attacks.threat import THREATS
from widemargin.core import randomness
from widemargin.core.precision import allowing_tf32
from widemargin.evaluation.minimal_norm import NearestSearch
from widemargin.losses import predicted

Arithmetic = Callable[[], AbstractContextManager[None]]
LONGER = (1.0, 1.005, 1.01, 1.02)
SHORTER = 0.97


@dataclass(frozen=True)
class Distances:
    """(N,): the size of the smallest perturbation found; 0 where misclassified, infinite where none was found."""

    values: Tensor
    by: list[str | None]
    """The attack that found it; None where misclassified, and where none was found."""
    again: int = 0
    """How many of the images were searched again in float32."""


Found = tuple[Tensor, list[str | None]]
"""Sizes (B,) and whose they are."""


def minimal_distance(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    search: NearestSearch,
    batch_size: int,
    seed: int = 0,
    search_on_copy: NearestSearch | None = None,
    arithmetic: Arithmetic = allowing_tf32,
) -> Distances:
    """The distance of every image from its boundary.

    ``search`` is on the model; ``search_on_copy`` on a copy of it, in that ``arithmetic``. Called in float32.
    """
    parts = [
        _of_batch(
            model, images, labels, search, search_on_copy, arithmetic, randomness.derived(seed, "distance", number)
        )
        for number, (images, labels) in enumerate(zip(x.split(batch_size), y.split(batch_size), strict=True))
    ]
    by = [name for part in parts for name in part.by]
    return Distances(torch.cat([part.values for part in parts]), by, sum(part.again for part in parts))


def _of_batch(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    search: NearestSearch,
    search_on_copy: NearestSearch | None,
    arithmetic: Arithmetic,
    generator: torch.Generator,
) -> Distances:
    with torch.no_grad():
        correct = predicted(model(x), y)
        smallest = torch.where(correct, torch.inf, 0.0).to(x.dtype)
        by: list[str | None] = [None] * len(x)
        left = correct
        if search_on_copy is not None and left.any():
            found, agreed = _searched_on_copy(model, x[left], y[left], search_on_copy, arithmetic, generator)
            _keep_shorter(smallest, by, left, found)
            left = correct.clone()
            left[correct] = ~agreed
        if left.any():
            _keep_shorter(smallest, by, left, _searched_in_float32(model, x[left], y[left], search, generator))
    return Distances(smallest, by, 0 if search_on_copy is None else int(left.sum()))


def _keep_shorter(smallest: Tensor, by: list[str | None], rows: Tensor, found: Found) -> None:
    """Write what was found of those rows where it is shorter than what stands there."""
    sizes, names = found
    for row, size, name in zip(rows.nonzero()[:, 0].tolist(), sizes, names, strict=True):
        if size < smallest[row]:
            smallest[row], by[row] = size, name


def _shortest(names: list[str], sizes: Tensor) -> Found:
    """The smallest of each image over the attacks (A, B)."""
    smallest, first = sizes.min(0)
    endless = smallest.isinf().tolist()
    return smallest, [None if none else names[which] for none, which in zip(endless, first.tolist(), strict=True)]


def _searched_in_float32(
    model: nn.Module, x: Tensor, y: Tensor, search: NearestSearch, generator: torch.Generator
) -> Found:
    names, sizes = [], []
    for name, x_adv in search.finds(x, y, generator):
        names.append(name)
        sizes.append(torch.where(predicted(model(x_adv), y), torch.inf, THREATS[search.norm](1.0).size(x_adv - x)))
    return _shortest(names, torch.stack(sizes))


def _searched_on_copy(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    search: NearestSearch,
    arithmetic: Arithmetic,
    generator: torch.Generator,
) -> tuple[Found, Tensor]:
    """(what was found, where float32 agrees with what was seen so near to the image)."""
    with arithmetic():
        right = predicted(search.reference.model(x), y)
        finds = list(search.finds(x, y, generator))
    found = [_as_long_as_needed(model, x, y, x_adv) for _, x_adv in finds]
    sizes = torch.stack([THREATS[search.norm](1.0).size(x_adv - x) for x_adv in found])
    whole = torch.stack([~predicted(model(x_adv), y) for x_adv in found])
    shorter = torch.stack([~predicted(model(x + SHORTER * (x_adv - x)), y) for x_adv in found])
    smallest, names = _shortest([name for name, _ in finds], torch.where(whole, sizes, torch.inf))
    otherwise = (sizes > 0) & (~whole | shorter) & (SHORTER * sizes < smallest)
    return (smallest, names), right & smallest.isfinite() & ~otherwise.any(0)


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
