"""Curves over epochs, a mean over seeds, with bands; panels on a grid."""

from collections.abc import Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from widemargin.reports.collection.picture_plans import CurvePlan, Line, Panel
from widemargin.reports.collection.table_text import Jobs
from widemargin.reports.collection.tree import CollectedJob
from widemargin.reports.style import styled

CLEAN = ("test_clean", "validation_clean")
WIDTH, HEIGHT = 4.3, 3.4


def curve_figure(plan: CurvePlan, jobs: Jobs) -> Figure | None:
    """The picture; None where no panel has anything to show."""
    if not any(_drawable(panel, line, jobs) for panel in plan.panels for line in panel.lines):
        return None
    rows = -(-len(plan.panels) // plan.columns)
    with styled():
        figure = Figure(figsize=(WIDTH * plan.columns, HEIGHT * rows), layout="constrained")
        grid = figure.subplots(rows, plan.columns, squeeze=False, sharey="row" if plan.same_scale else False)
        for axes, panel in zip(grid.flat, plan.panels, strict=False):
            _draw(axes, panel, jobs)
    return figure


def _drawable(panel: Panel, line: Line, jobs: Jobs) -> Sequence[CollectedJob]:
    return [job for job in jobs.get(line.recipe, ()) if job.run.curve(panel.key)]


def _draw(axes: Axes, panel: Panel, jobs: Jobs) -> None:
    axes.set_title(panel.title)
    shown = [(line, found) for line in panel.lines if (found := _drawable(panel, line, jobs))]
    if not shown:
        empty(axes)
        return
    for line, found in shown:
        epochs, values = over_seeds(found, panel.key)
        axes.plot(epochs, values, color=line.color, linewidth=1.6, label=_label(line, found))
        at, spreads = over_seeds(found, panel.spread)
        if panel.spread and at == epochs:
            low, high = ([v + sign * s for v, s in zip(values, spreads, strict=True)] for sign in (-1, 1))
            axes.fill_between(epochs, low, high, color=line.color, alpha=0.13, linewidth=0)
    axes.set_xlabel("epoch")
    axes.set_ylabel(panel.unit)
    axes.set_xlim(left=0)
    if panel.key not in CLEAN:  # where all that matters is close to the top
        axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#e9e9e9", linewidth=0.8)
    axes.set_axisbelow(True)
    legend_below(axes, columns=3 if len(shown) == 3 else 2)


def legend_below(axes: Axes, *, columns: int) -> None:
    """Under the axis, where it hides nothing."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns, fontsize=8)


def empty(axes: Axes) -> None:
    """A panel for which nothing has been run."""
    axes.text(0.5, 0.5, "not run yet", ha="center", va="center", transform=axes.transAxes, color="#8a8d91")
    axes.set_axis_off()


def _label(line: Line, found: Sequence[CollectedJob]) -> str:
    return line.label + (f" ({len(found)} seeds)" if len(found) > 1 else "")


def over_seeds(jobs: Sequence[CollectedJob], key: str) -> tuple[list[float], list[float]]:
    """(epochs, means): of each epoch that every seed has."""
    curves = [dict(job.run.curve(key)) for job in jobs]
    epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
    return epochs, [fmean(curve[epoch] for curve in curves) for epoch in epochs]
