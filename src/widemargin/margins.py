"""The effective margin, equation 3 of the paper: how far the nearest linearized decision boundary is.

m = min over j != y of (z_y - z_j) / ||w_y - w_j||_*, with w_j = dz_j/dx in evaluation mode, and the dual norm: L2 for
L2, L1 for Linf. Negative where misclassified. For a linear model it is the exact distance.

The minimum is taken over all classes: the runner-up alone gives the minimum for two thirds of images only, and margins
biased upward.

A set of margins is told in a few numbers (``summarize``), or as counts in bins that all runs have in common
(``count_margins``), small enough to keep for every run.
"""

import math
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from widemargin.core.checks import check_count, check_labels, choice, warn_of_range
from widemargin.core.modes import outside_inference_mode
from widemargin.core.precision import full_float32
from widemargin.gradients.double_backward import uncompiled
from widemargin.gradients.jacobian import EveryClass, in_chunks, logits_and_leaf, vector_jacobian_products
from widemargin.types import Norm

DUAL_ORDER: dict[str, int] = {"l2": 2, "linf": 1}


@uncompiled
def effective_margin(model: nn.Module, x: Tensor, y: Tensor, norm: Norm = "l2", *, classes_at_once: int = 16) -> Tensor:
    """(B,): the distance of each image to its nearest linearized boundary, in pixel units of ``norm``.

    Memory is that of ``classes_at_once`` input gradients, for any number of classes.
    """
    return class_margins(model, x, y, norm, classes_at_once=classes_at_once).amin(1)


def class_margins(model: nn.Module, x: Tensor, y: Tensor, norm: Norm = "l2", *, classes_at_once: int = 16) -> Tensor:
    """(B, K): the distance of each image to its linearized boundary with each class; infinite for the label's own."""
    choice("effective_margin", "norm", norm, tuple(DUAL_ORDER))
    check_count("effective_margin: classes_at_once", classes_at_once)
    with full_float32(), outside_inference_mode():
        return _margins(model, x, y, norm, classes_at_once)


def _margins(model: nn.Module, x: Tensor, y: Tensor, norm: Norm, classes_at_once: int) -> Tensor:
    with torch.enable_grad():
        logits, leaf = logits_and_leaf(model, x, owner="effective_margin")
    warn_of_range("effective_margin", leaf)
    num_classes = logits.shape[1]
    check_labels("effective_margin", y, batch=len(x), num_classes=num_classes)
    own = torch.nn.functional.one_hot(y.long(), num_classes).to(logits.dtype)
    own_row = vector_jacobian_products(logits, leaf, own.unsqueeze(0), keep_graph=True)
    classes = EveryClass(logits)
    distances = [
        _lengths(own_row - vector_jacobian_products(logits, leaf, classes[chunk], keep_graph=True), norm)
        for chunk in in_chunks(num_classes, classes_at_once)
    ]
    return _ratios(logits.detach(), y, torch.cat(distances).T)


def _lengths(rows: Tensor, norm: Norm) -> Tensor:
    """Of rows made about 1 by a power of two, which rounds nothing: squares must neither vanish nor overflow."""
    rows = rows.flatten(2)
    most = math.frexp(torch.finfo(rows.dtype).max)[1] - 2
    exponents = torch.frexp(rows.abs().amax(2)).exponent.clamp(-most, most)
    power = torch.exp2(exponents.to(rows.dtype))  # ldexp makes it in float32
    lengths: Tensor = torch.linalg.vector_norm(rows / power.unsqueeze(2), ord=DUAL_ORDER[norm], dim=2) * power
    return lengths


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
