"""From where to where a vertical axis goes."""

from collections.abc import Sequence

ROOM = 0.05
"""The share of the axis that is free above the lines, and below them where it does not begin at zero."""
NEAR_ZERO = 1 / 3
"""Accuracies of less than this share of the highest are near zero."""


def limits(values: Sequence[float], *, near_zero_only: bool = False, zoom: bool = False) -> tuple[float, float]:
    """From zero, unless all that matters is far from it or the panel is a close-up."""
    low, high = min(values), max(values)
    if not zoom and not (near_zero_only and low >= NEAR_ZERO * high):
        return 0.0, (1 + ROOM) * high or 1.0
    room = ROOM * (high - low) or ROOM * abs(high) or 1.0
    return low - room, high + room
