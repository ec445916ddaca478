"""Bins for margins: of equal width, with an edge at zero, where right and wrong meet."""

import numpy as np

BINS = 60
TINY = 1e-200
"""A range below is none: its edges would be lost in the last bits of a float."""


def edges(low: float, high: float, bins: int = BINS) -> list[float]:
    """Bins of equal width from low to high with an edge at 0, so that no bar mixes right and wrong."""
    low, high = min(low, 0.0), max(high, 0.0)
    width = (high - low) / bins if high - low > TINY else 1.0 / bins
    first, last = int(np.floor(low / width)), max(int(np.ceil(high / width)), 1)
    return [number * width for number in range(first, last + 1)]
