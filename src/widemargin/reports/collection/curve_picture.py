"""Curves over epochs, a mean over seeds, one of them with a band; panels on a grid."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from widemargin.reports.collection.legend import legend_below
from widemargin.reports.collection.picture_plans import ACCURACY, CurvePlan, Line, Panel
from widemargin.reports.collection.seeds import over_seeds
from widemargin.reports.collection.strokes import best_clean, how_well, is_collapsed, most_seeds, remarks, stroke
from widemargin.reports.collection.table_text import Jobs
from widemargin.reports.collection.tree import CollectedJob
from widemargin.reports.collection.vertical_axis import limits
from widemargin.reports.collection.watched_attack import watched_attack
from widemargin.reports.style import styled

WIDTH, HEIGHT = 4.5, 3.6
"""Inches of a panel with its legend."""
THIN, WIDER = 1.8, 0.3
"""The width of the last line of a panel, and how much wider each one before it is."""
FARTHEST = 60.0
"""No two images of these data sets are farther apart (L2): a larger margin is that of a network that says one thing."""


@dataclass(frozen=True)
class Curve:
    """A line of a panel, without margins that mean nothing."""

    line: Line
    found: Sequence[CollectedJob]
    epochs: Sequence[float]
    values: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    """The edges of its band; none where it has no band."""


class Place(NamedTuple):
    """Where on the grid a panel is."""

    row: int
    column: int
    cells: int = 1


def curve_figure(plan: CurvePlan, jobs: Jobs) -> Figure | None:
    """The picture of the panels that have anything to show; None where none has."""
    drawn = [(panel, curves) for panel in plan.panels if (curves := _curves(panel, jobs))]
    if not drawn:
        return None
    most = most_seeds(curve.found for _, curves in drawn for curve in curves)
    places = _places(len(drawn), plan.columns)
    rows = 1 + places[-1].row
    with styled():
        layout = ConstrainedLayoutEngine(wspace=0.05, h_pad=0.1)
        figure = Figure(figsize=(WIDTH * plan.columns, HEIGHT * rows), layout=layout)
        grid = figure.add_gridspec(rows, plan.columns)
        for place, (panel, curves) in zip(places, drawn, strict=True):
            axes = figure.add_subplot(grid[place.row, place.column : place.column + place.cells])
            _draw(axes, panel, curves, most, WIDTH * place.cells)
            row = [on for at, on in zip(places, drawn, strict=True) if at.row == place.row and plan.same_scale]
            _scale(axes, panel, curves, [curve for other, found in row if not other.zoom for curve in found])
    return figure


def _places(panels: int, columns: int) -> list[Place]:
    """Rows from left to right; the first panel takes the cells that are left over."""
    left = -panels % columns
    rest = [divmod(cell, columns) for cell in range(1 + left, panels + left)]
    return [Place(0, 0, 1 + left), *(Place(row, column) for row, column in rest)]


def _curves(panel: Panel, jobs: Jobs) -> list[Curve]:
    found = [(line, [job for job in jobs.get(line.recipe, ()) if job.run.curve(panel.key)]) for line in panel.lines]
    return [_curve(panel, line, members) for line, members in found if members]


def _curve(panel: Panel, line: Line, found: Sequence[CollectedJob]) -> Curve:
    curve = zip(*over_seeds(found, panel.key), strict=True)
    points = {epoch: value for epoch, value in curve if panel.unit == ACCURACY or value <= FARTHEST}
    banded = panel.spread and line == panel.lines[-1]
    spreads = dict(zip(*over_seeds(found, panel.spread), strict=True)) if banded else {}
    whole = bool(spreads) and points.keys() <= spreads.keys()
    low, high = ([v + sign * spreads[e] for e, v in points.items()] if whole else [] for sign in (-1, 1))
    return Curve(line, found, list(points), list(points.values()), low, high)


def _draw(axes: Axes, panel: Panel, curves: Sequence[Curve], most: int, width: float) -> None:
    axes.set_title(panel.title.format(attack=watched_attack(curves[0].found[0])))
    best = best_clean(curve.found for curve in curves)
    for place, curve in enumerate(curves):
        look = stroke(curve.found, best=best, most=most)
        axes.plot(
            curve.epochs,
            curve.values,
            color=curve.line.color,
            linestyle=look.style,
            alpha=look.alpha,
            linewidth=THIN + WIDER * (len(curves) - 1 - place),  # lines on each other: each shows beside the next
            marker="o" if len(curve.epochs) == 1 else None,  # a line needs two points to be seen
            label=_label(curve, panel, best),
        )
        if curve.low:
            axes.fill_between(curve.epochs, curve.low, curve.high, color=curve.line.color, alpha=0.13, linewidth=0)
    axes.set_xlabel("epoch")
    axes.set_ylabel(panel.unit)
    axes.grid(axis="y", color="#e9e9e9", linewidth=0.8)
    axes.set_axisbelow(True)
    legend_below(axes, width=width)


def _scale(axes: Axes, panel: Panel, curves: Sequence[Curve], beside: Sequence[Curve]) -> None:
    """As the panels beside it, unless it is a close-up; accuracies of networks that collapsed are below the axis."""
    axes.set_xlim(left=0)
    accuracy = panel.unit == ACCURACY
    best = best_clean(curve.found for curve in curves)
    seen = [c for c in curves if not accuracy or not is_collapsed(c.found, best)] + ([] if panel.zoom else [*beside])
    values = [value for curve in seen for some in (curve.values, curve.low, curve.high) for value in some]
    if values:
        axes.set_ylim(*limits(values, near_zero_only=accuracy, zoom=panel.zoom))


def _label(curve: Curve, panel: Panel, best: float) -> str:
    """With the last value; a network without a boundary has no margins to draw."""
    seeds = f" ({len(curve.found)} seeds)" if len(curve.found) > 1 else ""
    last = f"{curve.values[-1]:.{1 if panel.unit == ACCURACY else 2}f}" if curve.values else "no boundary"
    if panel.unit != ACCURACY:
        remark = how_well(curve.found, best)
    else:
        remark = "collapsed, below the axis" if is_collapsed(curve.found, best) else ""
    return f"{curve.line.label}{seeds}: {last}{remarks(remark)}"
