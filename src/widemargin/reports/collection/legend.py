"""Legends under the axis, where they hide nothing."""

from matplotlib.axes import Axes
from matplotlib.textpath import TextPath
from matplotlib.transforms import offset_copy

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
