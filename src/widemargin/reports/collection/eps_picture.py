"""Accuracy against the size of the attack, a mean over seeds: what a single eps does not tell."""

from collections.abc import Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from widemargin.reports.collection.curve_picture import HEIGHT, WIDTH
from widemargin.reports.collection.legend import legend_below
from widemargin.reports.collection.picture_plans import ACCURACY, GroupPlan, Line, Panel
from widemargin.reports.collection.strokes import Stroke, best_clean, most_seeds, stroke
from widemargin.reports.collection.table_text import Jobs
from widemargin.reports.collection.tree import CollectedJob
from widemargin.reports.inputs.evaluation import Radius
from widemargin.reports.inputs.fields import Fields
from widemargin.reports.inputs.run_folder import CONFIG
from widemargin.reports.style import styled

LEVELS = 255
"""Where every eps is written as so many of 255, the axis counts them."""

Curve = list[tuple[Radius, float]]


def eps_figure(plan: GroupPlan, jobs: Jobs) -> Figure | None:
    """A panel for each kind of training, all to one scale; None where no line was judged at several eps."""
    panels = [panel for panel in plan.panels if any(_judged(line, jobs) for line in panel.lines)]
    if not panels:
        return None
    most = most_seeds(_judged(line, jobs) for panel in panels for line in panel.lines)
    with styled():
        figure = Figure(figsize=(WIDTH * len(panels), HEIGHT + 0.3), layout="constrained")
        grid = figure.subplots(1, len(panels), squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=True):
            _draw(axes, panel, jobs, most)
    return figure


def _judged(line: Line, jobs: Jobs) -> list[CollectedJob]:
    return [job for job in jobs.get(line.recipe, ()) if job.over_eps is not None]


def _draw(axes: Axes, panel: Panel, jobs: Jobs, most: int) -> None:
    axes.set_title(panel.title)
    shown = [(line, found) for line in panel.lines if (found := _judged(line, jobs))]
    curves = [(line, found, mean_curve(found)) for line, found in shown]
    unit = _unit([radius for _, _, curve in curves for radius, _ in curve])
    mark, words = _mark(shown[0][1][0])
    best = best_clean(found for _, found in shown)
    for line, found, curve in curves:
        look = stroke(found, best=best, most=most)
        _draw_curve(axes, curve, unit, line.color, look, _label(line, found, curve, mark))
    axes.axvline(mark * unit, color="black", linewidth=0.8, linestyle="--", zorder=1, label=f"{words} {mark:g}")
    axes.set(xlim=(0, None), ylim=(0, 100), ylabel=ACCURACY)
    axes.set_xlabel("eps (L∞)" if unit == 1 else f"eps (L∞), in 1/{LEVELS}")
    axes.grid(axis="y", color="#e9e9e9", linewidth=0.8)
    axes.set_axisbelow(True)
    legend_below(axes, width=WIDTH)


def _draw_curve(axes: Axes, curve: Curve, unit: int, color: str, look: Stroke, label: str) -> None:
    """A point for each eps; the points on the axes are drawn whole."""
    sizes, values = [radius.value * unit for radius, _ in curve], [value for _, value in curve]
    (drawn,) = axes.plot(sizes, values, color=color, linewidth=1.6, marker="o", markersize=3.5, label=label)
    drawn.set(linestyle=look.style, alpha=look.alpha, clip_on=False)


def mean_curve(jobs: Sequence[CollectedJob]) -> Curve:
    """The mean at each eps that every seed has, without attack first."""
    found = [
        {Radius("0", 0.0): job.over_eps.clean} | dict(job.over_eps.points) for job in jobs if job.over_eps is not None
    ]
    common = set.intersection(*(set(curve) for curve in found))
    sizes = sorted(common, key=lambda radius: radius.value)
    return [(radius, fmean(curve[radius] for curve in found)) for radius in sizes]


def _unit(radii: Sequence[Radius]) -> int:
    """What an eps is multiplied with on the axis."""
    return LEVELS if all(radius.written.endswith(f"/{LEVELS}") for radius in radii if radius.value > 0) else 1


def _mark(job: CollectedJob) -> tuple[float, str]:
    """The eps of training and its name; the table's eps where training does not attack."""
    config = Fields(job.run.folder / CONFIG, job.run.config)
    trained = config.table("objective").table("attack").number("eps")
    if trained is not None:
        return trained, "eps of training"
    return config.table("evaluation").number("eps") or 0.0, "eps of the table"


def _label(line: Line, found: Sequence[CollectedJob], curve: Curve, mark: float) -> str:
    """With the accuracy at the eps nearest to the mark."""
    seeds = f" ({len(found)} seeds)" if len(found) > 1 else ""
    _, value = min(curve, key=lambda point: abs(point[0].value - mark))
    return f"{line.label}{seeds}: {value:.1f}"
