"""The effective margin, equation 3 of the paper: how far the nearest linearized decision boundary is.

m = min over j != y of (z_y - z_j) / ||w_y - w_j||_*, with w_j = dz_j/dx in evaluation mode, and the dual norm: L2 for
L2, L1 for Linf. Negative where misclassified. For a linear model it is the exact distance.

The minimum is taken over all classes: the runner-up alone gives the minimum for two thirds of images only, and margins
biased upward. Every class costs a backward pass, or every feature that a linear last layer reads, if these are fewer.

**Many classes.** ``candidates=10`` takes the ten classes with the largest logits (beside the label), bounds the margins
of all others from below by ``gradients.slopes.DIRECTIONS`` random directions, and goes on with those whose bound is
below the smallest margin so far: at most ten times as many classes in all. What comes out

- is a minimum over some classes: never below the true margin, up to rounding, and of the same sign (below zero as soon
  as one class has a larger logit than the label);
- is the true margin where it is ``proven``: no other class's bound is smaller. If all classes were taken, which happens
  where that is no more work, this holds for certain, else for all but one in a million draws of directions.

A set of margins is told in a few numbers (``summarize``), or as counts in bins that all runs have in common
(``count_margins``), small enough to keep for every run.
"""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from widemargin.core.checks import check_count, check_labels, choice, warn_of_range
from widemargin.core.modes import outside_inference_mode
from widemargin.core.precision import full_float32
from widemargin.errors import InputError
from widemargin.gradients.double_backward import uncompiled
from widemargin.gradients.jacobian import logits_and_leaf
from widemargin.gradients.slopes import DIRECTIONS, DUAL_ORDER, last_layer, slope_bounds, slopes_of_all, slopes_to
from widemargin.types import Norm

MANY_CLASSES = 100
"""Above it, evaluations say of each margin whether it is proven."""
MOST_CANDIDATES = 10
"""Times as many classes as were asked for are taken at most."""


@uncompiled
def effective_margin(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    norm: Norm = "l2",
    *,
    candidates: int | None = None,
    classes_at_once: int = 16,
) -> Tensor:
    """(B,): the distance of each image to its nearest linearized boundary, in pixel units of ``norm``.

    With ``candidates`` not every class is looked at; ``margins_by_candidates`` says which margins are proven. Memory is
    that of ``classes_at_once`` input gradients, for any number of classes, and of the features' gradients of an image.
    """
    if candidates is None:
        return class_margins(model, x, y, norm, classes_at_once=classes_at_once).amin(1)
    return margins_by_candidates(model, x, y, norm, candidates=candidates, classes_at_once=classes_at_once).margins


def class_margins(model: nn.Module, x: Tensor, y: Tensor, norm: Norm = "l2", *, classes_at_once: int = 16) -> Tensor:
    """(B, K): the distance of each image to its linearized boundary with each class; infinite for the label's own."""
    _check(norm, classes_at_once)
    with full_float32(), outside_inference_mode():
        logits, leaf = _forward(model, x, y)
        return _of_all(model, y, norm, logits, leaf, classes_at_once)


@dataclass(frozen=True, kw_only=True)
class CandidateMargins:
    """Margins of images over some classes of each."""

    margins: Tensor
    """(B,): never below the true margin."""
    proven: Tensor
    """(B,) bool: it is the true margin."""
    by_class: Tensor
    """(B, K): those of the classes that were taken; infinite for others."""


@uncompiled
def margins_by_candidates(
    model: nn.Module, x: Tensor, y: Tensor, norm: Norm = "l2", *, candidates: int = 10, classes_at_once: int = 16
) -> CandidateMargins:
    """The margins over the classes nearest by logit and by what can be proven of the others, as said above."""
    _check(norm, classes_at_once)
    check_count("effective_margin: candidates", candidates)
    with full_float32(), outside_inference_mode():
        logits, leaf = _forward(model, x, y)
        layer, num_classes = last_layer(logits), logits.shape[1]
        of_all = num_classes if layer is None else min(num_classes, layer.size)
        if of_all <= candidates + DIRECTIONS or candidates >= num_classes - 1:
            by_class = _of_all(model, y, norm, logits, leaf, classes_at_once)
            proven = torch.ones(len(y), dtype=torch.bool, device=y.device)
            return CandidateMargins(margins=by_class.amin(1), proven=proven, by_class=by_class)
        return _search(model, y, norm, logits, leaf, candidates, classes_at_once)


def _check(norm: Norm, classes_at_once: int) -> None:
    choice("effective_margin", "norm", norm, tuple(DUAL_ORDER))
    check_count("effective_margin: classes_at_once", classes_at_once)


def _forward(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        logits, leaf = logits_and_leaf(model, x, owner="effective_margin")
    warn_of_range("effective_margin", leaf)
    check_labels("effective_margin", y, batch=len(x), num_classes=logits.shape[1])
    return logits, leaf


def _of_all(model: nn.Module, y: Tensor, norm: Norm, logits: Tensor, leaf: Tensor, at_once: int) -> Tensor:
    """(B, K); through a last layer of many features so few images at a time that memory is as promised."""
    layer = last_layer(logits)
    group = len(y)
    if layer is not None and layer.size < logits.shape[1]:
        group = max(1, at_once * len(y) // layer.size)
    if group >= len(y):
        return _ratios(logits.detach(), y, slopes_of_all(logits, leaf, y, norm, at_once=at_once))
    del logits, layer
    found = []
    for images, targets in zip(leaf.detach().split(group), y.split(group), strict=True):
        logits, part = _forward(model, images, targets)
        slopes = slopes_of_all(logits, part, targets, norm, at_once=at_once)
        found.append(_ratios(logits.detach(), targets, slopes))
    return torch.cat(found)


def _search(
    model: nn.Module, y: Tensor, norm: Norm, logits: Tensor, leaf: Tensor, candidates: int, at_once: int
) -> CandidateMargins:
    """Candidates, bounds, and more candidates where a bound is below the margin so far."""
    values, images, label = logits.detach(), leaf.detach(), y.long().unsqueeze(1)
    classes = values.scatter(1, label, -torch.inf).topk(candidates, dim=1).indices
    slopes = torch.ones_like(values).scatter(1, classes, slopes_to(logits, leaf, y, classes, norm, at_once=at_once))
    taken = torch.zeros_like(values, dtype=torch.bool).scatter_(1, classes, True)
    bounds = _lower_bounds(logits, leaf, y, norm, slopes, taken, at_once)
    del logits, leaf  # and their graph
    most = min(MOST_CANDIDATES * candidates, values.shape[1] - 1)
    while True:
        by_class = _ratios(values, y, slopes).masked_fill(~taken, torch.inf)
        margins = by_class.amin(1)
        open_classes = (bounds < margins.unsqueeze(1)) & ~taken
        count = min(at_once, most - int(taken.sum(1).max()), int(open_classes.sum(1).max()))
        if count <= 0:
            return CandidateMargins(margins=margins, proven=~open_classes.any(1), by_class=by_class)
        rows = open_classes.any(1).nonzero()[:, 0]
        classes = bounds[rows].masked_fill(taken[rows], torch.inf).scatter(1, label[rows], torch.inf)
        classes = classes.topk(count, dim=1, largest=False).indices
        part, part_leaf = _forward(model, images[rows], y[rows])
        found = slopes_to(part, part_leaf, y[rows], classes, norm, at_once=at_once)
        slopes[rows] = slopes[rows].scatter(1, classes, found)
        taken[rows] = taken[rows].scatter(1, classes, True)


def _lower_bounds(
    logits: Tensor, leaf: Tensor, y: Tensor, norm: Norm, slopes: Tensor, taken: Tensor, at_once: int
) -> Tensor:
    """(B, K): no class's margin is below; minus infinity where nothing can be said.

    A model that cannot be differentiated twice has no such bounds, nor has one that loses the graph of its gradient:
    there the slopes that are known lie outside of them.
    """
    values = logits.detach()
    try:
        low, high = slope_bounds(logits, leaf, y, norm, at_once=at_once)
    except (RuntimeError, InputError):
        return torch.full_like(values, -torch.inf)
    contradicted = (taken & ((slopes < low) | (slopes > high))).any(1, keepdim=True)
    gaps = values.gather(1, y.long().unsqueeze(1)) - values
    bounds = _ratios(values, y, torch.where(gaps < 0, low, high))
    return bounds.masked_fill(contradicted, -torch.inf).scatter(1, y.long().unsqueeze(1), torch.inf)


def _ratios(logits: Tensor, y: Tensor, slopes: Tensor) -> Tensor:
    """(B, K) logits and slopes ||w_y - w_j|| -> (B, K); a boundary that no move approaches is infinitely far."""
    label, classes = y.long().unsqueeze(1), torch.arange(logits.shape[1], device=logits.device)
    own = classes == label
    gaps = logits.gather(1, label) - logits
    gaps = gaps.masked_fill(logits == -torch.inf, torch.inf)  # a class that is ruled out is no neighbor
    tiny = torch.finfo(slopes.dtype).tiny
    wins = gaps.masked_fill((gaps == 0) & (classes < label), -1.0)  # of equal logits the first is predicted
    unreachable = torch.copysign(slopes.new_tensor(torch.inf), wins)
    moves = (slopes > tiny) | slopes.isnan() | gaps.isnan()  # what is not a number stays none
    ratios = torch.where(moves, gaps / slopes.clamp_min(tiny), unreachable)
    return ratios.masked_fill(own, torch.inf)


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class MarginSummary:
    """Count, mean, standard deviation and quantiles; no numbers where there are no samples."""

    count: int
    mean: float | None
    std: float | None
    quantiles: dict[str, float]


def summarize(margins: Tensor) -> MarginSummary:
    """Summarize the finite margins (an infinite one, of a model that ignores its input, has no mean)."""
    finite = margins[margins.isfinite()].double()
    if not len(finite):
        return MarginSummary(count=0, mean=None, std=None, quantiles={})
    levels = torch.tensor(QUANTILES, dtype=torch.double, device=finite.device)
    values = (
        torch.quantile(finite, levels)
        if len(finite) <= 10_000_000
        else finite.sort().values[(levels * (len(finite) - 1)).long()]
    )
    return MarginSummary(
        count=len(finite),
        mean=float(finite.mean()),
        std=float(finite.std(correction=0)),
        quantiles={f"{level:g}": float(value) for level, value in zip(QUANTILES, values, strict=True)},
    )


WIDTHS = {"l2": 0.05, "linf": 0.001}
"""Of the bins, by norm: a few dozen of them cover a network."""
FARTHEST = 400
"""Bins on either side of zero; what lies beyond is counted in the last."""


@dataclass(frozen=True)
class MarginHistogram:
    """``counts[k]`` margins lie in [first + k, first + k + 1) times ``width``; zero is an edge."""

    width: float
    first: int
    counts: tuple[int, ...]


def count_margins(margins: Tensor, *, width: float) -> MarginHistogram:
    """Count the margins, those that are not finite left out."""
    finite = margins[margins.isfinite()].double()
    if not len(finite):
        return MarginHistogram(width, 0, ())
    places = (finite / width).floor().clamp(-FARTHEST, FARTHEST - 1).to(torch.int64).tolist()
    found = Counter(places)
    first = min(found)
    return MarginHistogram(width, first, tuple(found[place] for place in range(first, max(found) + 1)))
