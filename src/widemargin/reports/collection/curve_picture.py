"""Curves over epochs, a mean over seeds, with bands; panels on a grid."""

from collections.abc import Sequence
from statistics import fmean

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.textpath import TextPath

from widemargin.reports.collection.picture_plans import ACCURACY, CurvePlan, Line, Panel
from widemargin.reports.collection.table_text import Jobs
from widemargin.reports.collection.tree import CollectedJob
from widemargin.reports.style import styled

WIDTH, WIDE, HEIGHT = 4.3, 5.2, 3.4
"""Inches of a panel; the wide ones are for pictures of a few panels in one row."""
THIN, WIDER = 1.6, 0.5
"""The width of the last line of a panel, and how much wider each one before it is."""
SMALL, POINTS = 8, 72
"""The size of a legend's letters, in points; points to the inch."""
BESIDE = 0.65
"""Inches that a label of a legend has beside it: its line, space around both, and a share of the axis on the left."""
BANDS = 4
"""More lines than that have a band for the first and the last alone: more would hide each other."""
WELL = 0.8
"""A network with less than this share of the best one's clean accuracy has margins of another kind."""
FARTHEST = 60.0
"""No two images of these data sets are farther apart (L2): a larger margin is that of a network that says one thing."""


def curve_figure(plan: CurvePlan, jobs: Jobs) -> Figure | None:
    """The picture; None where no panel has anything to show."""
    if not any(_drawable(panel, line, jobs) for panel in plan.panels for line in panel.lines):
        return None
    rows = -(-len(plan.panels) // plan.columns)
    with styled():
        figure = Figure(figsize=(WIDTH * plan.columns, HEIGHT * rows), layout=ConstrainedLayoutEngine(wspace=0.05))
        grid = figure.subplots(rows, plan.columns, squeeze=False, sharey="row" if plan.same_scale else False)
        for axes, panel in zip(grid.flat, plan.panels, strict=False):
            _draw(axes, panel, jobs)
        for axes in grid.flat:
            _scale(axes)
    return figure


def _drawable(panel: Panel, line: Line, jobs: Jobs) -> Sequence[CollectedJob]:
    return [job for job in jobs.get(line.recipe, ()) if job.run.curve(panel.key)]


def _draw(axes: Axes, panel: Panel, jobs: Jobs) -> None:
    axes.set_title(panel.title)
    shown = [(line, found) for line in panel.lines if (found := _drawable(panel, line, jobs))]
    if not shown:
        empty(axes)
        return
    best = max((_clean(found) for _, found in shown), default=0.0)
    for place, (line, found) in enumerate(shown):
        epochs, values = _shown(over_seeds(found, panel.key), panel)
        marker = "o" if len(epochs) == 1 else None  # a line needs two points to be seen
        label = _label(line, found, values, panel)
        if panel.unit != ACCURACY and 0 < _clean(found) < WELL * best:
            label += f" (clean {_clean(found):.0f}%)"
        width = THIN + WIDER * (len(shown) - 1 - place)  # where lines lie on each other, each shows beside the next
        axes.plot(epochs, values, color=line.color, linewidth=width, marker=marker, label=label)
        spreads = dict(zip(*over_seeds(found, panel.spread), strict=True)) if panel.spread else {}
        if len(shown) > BANDS and 0 < place < len(shown) - 1:
            continue
        if spreads and set(epochs) <= set(spreads):
            low, high = ([v + sign * spreads[e] for e, v in zip(epochs, values, strict=True)] for sign in (-1, 1))
            axes.fill_between(epochs, low, high, color=line.color, alpha=0.13, linewidth=0)
    axes.set_xlabel("epoch")
    axes.set_ylabel(panel.unit)
    axes.grid(axis="y", color="#e9e9e9", linewidth=0.8)
    axes.set_axisbelow(True)
    legend_below(axes, width=WIDTH)


def _shown(curve: tuple[list[float], list[float]], panel: Panel) -> tuple[list[float], list[float]]:
    """The curve without margins that mean nothing."""
    points = [(e, v) for e, v in zip(*curve, strict=True) if panel.unit == ACCURACY or v <= FARTHEST]
    return [e for e, _ in points], [v for _, v in points]


def _scale(axes: Axes) -> None:
    """From zero, unless all that matters is close to the top; when every panel of the row has its lines."""
    values = [value for line in axes.get_lines() for value in np.asarray(line.get_ydata())]
    if not values:
        return
    axes.set_xlim(left=0)
    if axes.get_ylabel() != ACCURACY or min(values) < max(values) / 2:
        axes.set_ylim(bottom=0)


def legend_below(axes: Axes, *, width: float) -> None:
    """Under the axis, where it hides nothing; in two columns where they fit a panel of so many inches."""
    labels = axes.get_legend_handles_labels()[1]
    longest = max(TextPath((0, 0), label, size=SMALL).get_extents().width for label in labels) / POINTS
    columns = 2 if 2 * (longest + BESIDE) <= width else 1
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns, fontsize=SMALL)


def empty(axes: Axes) -> None:
    """A panel for which nothing has been run."""
    axes.text(0.5, 0.5, "not run yet", ha="center", va="center", transform=axes.transAxes, color="#8a8d91")
    axes.set_axis_off()


def _label(line: Line, found: Sequence[CollectedJob], values: Sequence[float], panel: Panel) -> str:
    """With the last value; a network without a boundary has no margins to draw."""
    seeds = f" ({len(found)} seeds)" if len(found) > 1 else ""
    last = f"{values[-1]:.{1 if panel.unit == ACCURACY else 2}f}" if values else "no boundary"
    return f"{line.label}{seeds}: {last}"


def _clean(found: Sequence[CollectedJob]) -> float:
    """The accuracy on clean test images that a line's networks end with; 0 where it was not watched."""
    return next(reversed(over_seeds(found, "test_clean")[1]), 0.0)


def over_seeds(jobs: Sequence[CollectedJob], key: str) -> tuple[list[float], list[float]]:
    """(epochs, means): of each epoch that every seed has."""
    curves = [dict(job.run.curve(key)) for job in jobs]
    epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
    return epochs, [fmean(curve[epoch] for curve in curves) for epoch in epochs]
