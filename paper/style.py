"""How the pictures look: colors, lines, legends and the range of an axis.

A setting has the same color in every panel of every picture. The larger the weight decay, the darker its color, and
neighbors differ in hue as well. Averaged weights have a lighter tone of their own run's color. A single seed beside
several is dashed, a network that collapsed dotted and pale. Legends are under the axis, where they hide nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.textpath import TextPath
from matplotlib.transforms import offset_copy

from paper.tree import CollectedJob, clean_accuracy

LIME, TEAL, RED, GRAY, PURPLE, INK = "#b8d957", "#35b5a6", "#d1495b", "#6b6e73", "#5f4b8b", "#2a1740"
YELLOW, BROWN, BLUE = "#edae49", "#9c5a1a", "#1768ac"
LIGHT_RED, LIGHT_BLUE = "#eba6b0", "#7fb8e6"

DECAY_COLORS = {"0": LIME, "0.0001": TEAL, "0.0005": RED, "0.001": GRAY, "0.01": PURPLE, "0.1": INK}


SMALL, POINTS = 8, 72
"""The size of a legend's letters, in points; points to the inch."""
BESIDE = 0.7
"""Inches that a label of a legend has beside it: its line, space around both, and a share of the axis on the left."""

DOWN = 0.42
"""Inches from the axis down to its legend: the ticks' numbers and the axis' name are between them."""


def legend_below(axes: Axes, *, width: float) -> None:
    """In two columns where they fit a panel of so many inches."""
    lines = [line for label in axes.get_legend_handles_labels()[1] for line in label.splitlines()]
    longest = max(TextPath((0, 0), line, size=SMALL).get_extents().width for line in lines) / POINTS
    columns = 2 if 2 * (longest + BESIDE) <= width else 1
    below = offset_copy(axes.transAxes, fig=axes.get_figure(root=True), y=-DOWN, units="inches")
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=below,
        ncols=columns,
        fontsize=SMALL,
        handlelength=2.6,
    )


WELL = 0.8
"""A network with less than this share of the best one's clean accuracy has margins of another kind."""
COLLAPSED = 0.6
"""With less than this share it has not learned to tell the classes apart."""

Style = Literal["solid"] | tuple[float, Sequence[float]]
_DASHED, _DOTTED = (0.0, (3.2, 1.2)), (0.0, (1.0, 1.4))


@dataclass(frozen=True)
class Stroke:
    """The style of a line, as matplotlib takes it."""

    style: Style = "solid"
    alpha: float = 1.0


def most_seeds(members: Iterable[Sequence[CollectedJob]]) -> int:
    """How many the line of a picture that has most of them has."""
    return max((len(found) for found in members), default=0)


def best_clean(members: Iterable[Sequence[CollectedJob]]) -> float:
    """The clean accuracy with which the others of a panel are compared."""
    return max((clean_accuracy(found) for found in members), default=0.0)


def is_collapsed(found: Sequence[CollectedJob], best: float) -> bool:
    """Whether a line's networks have not learned to tell the classes apart."""
    return 0 < clean_accuracy(found) < COLLAPSED * best


def stroke(found: Sequence[CollectedJob], *, best: float, most: int) -> Stroke:
    """Of one line, in a panel with that best clean accuracy, in a picture with that many seeds."""
    if is_collapsed(found, best):
        return Stroke(_DOTTED, 0.55)
    return Stroke(_DASHED) if len(found) == 1 < most else Stroke()


def how_well(found: Sequence[CollectedJob], best: float) -> str:
    """What a reader of its margins must know; nothing where it classifies about as well as the best."""
    clean = clean_accuracy(found)
    said = "collapsed, " if is_collapsed(found, best) else ""
    return f"{said}clean {clean:.0f}%" if 0 < clean < WELL * best else ""


def remarks(*texts: str) -> str:
    """The end of a label, in parentheses; on a line of its own where a network collapsed, for that is long."""
    told = "; ".join(text for text in texts if text)
    return f"{chr(10) if told.startswith('collapsed') else ' '}({told})" if told else ""


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
