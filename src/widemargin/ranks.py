"""Do two lists put things in the same order?"""

import torch
from torch import Tensor


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
