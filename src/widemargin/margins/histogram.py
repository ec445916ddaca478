"""A set of margins as counts: small enough to keep for every run, and two runs have their bins in common."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

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
