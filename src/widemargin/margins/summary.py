"""A set of margins in a few numbers."""

from dataclasses import dataclass

import torch
from torch import Tensor

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
