"""Straight lines below and above an activation on an interval, as CROWN draws them.

Where an interval lies on one straight piece the activation is that piece. Where it crosses one knot, the chord bounds
from one side and the longer one of the two pieces from the other (for ReLU on [l, u] with l < 0 < u: above
u (z - l) / (u - l), below z if u > -l, else 0). Where it crosses both knots of a clamp, the lines go from one end of
the interval to the knot at the other.

The lines hold in spite of rounding: a slope may be any number near the chord's, and the offset is then chosen such that
the line passes outside both ends, with room for the rounding of that choice.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from widemargin.certificates.network import Bend

ROOM = 2.0**-49
"""Of a few operations: sixteen times the rounding of one in float64."""


@dataclass(frozen=True)
class Lines:
    """lower_slope z + lower_offset <= y <= upper_slope z + upper_offset, (B, *shape) each."""

    lower_slope: Tensor
    lower_offset: Tensor
    upper_slope: Tensor
    upper_offset: Tensor


def crosses(bend: Bend, lower: Tensor, upper: Tensor) -> Tensor:
    """Where the interval holds a knot inside."""
    low, high = (lower < bend.low) & (upper > bend.low), (lower < bend.high) & (upper > bend.high)
    return low | high if bend.slope != 1 else torch.zeros_like(low)


def lines(bend: Bend, lower: Tensor, upper: Tensor) -> Lines:
    """For the interval [lower, upper] of every unit."""
    outside = (upper <= bend.low) | (lower >= bend.high)
    slope = torch.ones_like(lower).masked_fill(outside, bend.slope)  # torch.where of two numbers would be float32
    offset = torch.zeros_like(lower)
    for knot, beyond in ((bend.low, upper <= bend.low), (bend.high, lower >= bend.high)):
        if abs(knot) < float("inf"):
            offset = torch.where(beyond, (1 - bend.slope) * knot, offset)
    found = Lines(slope, offset, slope, offset)
    low, high = (lower < bend.low) & (upper > bend.low), (lower < bend.high) & (upper > bend.high)
    if abs(bend.low) < float("inf"):
        found = _where(low & ~high, _one_knot(lower, upper, bend.low, bend.slope, 1.0), found)
    if bend.high < float("inf"):
        found = _where(high & ~low, _one_knot(lower, upper, bend.high, 1.0, bend.slope), found)
        found = _where(low & high, _two_knots(bend, lower, upper), found)
    return found


def _where(chosen: Tensor, new: Lines, old: Lines) -> Lines:
    pairs = zip(vars(new).values(), vars(old).values(), strict=True)
    return Lines(*(torch.where(chosen, one, other) for one, other in pairs))


def _one_knot(lower: Tensor, upper: Tensor, knot: float, left: float, right: float) -> Lines:
    """Slope ``left`` up to the knot and ``right`` from there, (knot, knot) being on the curve."""
    at_lower, at_upper = knot + left * (lower - knot), knot + right * (upper - knot)
    convex = left <= right
    chord = _through(lower, at_lower, upper, at_upper, above=convex)
    piece = torch.full_like(lower, left).masked_fill(upper - knot > knot - lower, right)
    beside = knot * (1 - piece)
    return Lines(piece, beside, *chord) if convex else Lines(*chord, piece, beside)


def _two_knots(bend: Bend, lower: Tensor, upper: Tensor) -> Lines:
    """Of a clamp (slope 0 outside)."""
    low, high = torch.full_like(lower, bend.low), torch.full_like(lower, bend.high)
    above = _through(lower, low, high, high, above=True)
    below = _through(low, low, upper, high, above=False)
    return Lines(*below, *above)


def _through(x1: Tensor, y1: Tensor, x2: Tensor, y2: Tensor, *, above: bool) -> tuple[Tensor, Tensor]:
    """(slope, offset) of a line through two points, that passes them on the outer side whatever was rounded."""
    slope = (y2 - y1) / torch.where(x2 > x1, x2 - x1, 1.0)
    first, second = y1 - slope * x1, y2 - slope * x2
    room = ROOM * (y1.abs() + y2.abs() + (slope * x1).abs() + (slope * x2).abs())
    return slope, torch.maximum(first, second) + room if above else torch.minimum(first, second) - room
