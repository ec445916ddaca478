"""The paper's figures, drawn with matplotlib from the collected jobs, as ``plans.py`` says.

Curves over epochs, the mean over seeds in a band from the lowest to the highest; margin histograms of the test images;
the effective margin against the distance of the nearest adversarial image found (does it mean what it says?); accuracy
against the size of the attack, which a single eps does not tell.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from paper.plans import ACCURACY, CurvePlan, GroupPlan, Line, Panel
from paper.rows import PaperTable, decay_title, kind_of, method_title, row_order
from paper.style import (
    BLUE,
    GRAY,
    RED,
    SMALL,
    YELLOW,
    best_clean,
    how_well,
    is_collapsed,
    legend_below,
    limits,
    most_seeds,
    remarks,
    stroke,
)
from paper.tables import STRONGEST, Jobs
from paper.tree import CollectedJob, Counts, Pairs, over_seeds, watched_attack
from widemargin.config.checkpoint import CONFIG
from widemargin.core.records import Fields
from widemargin.evaluation.folder import Radius
from widemargin.report.pictures import styled
from widemargin.report.wording import norm_title

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
    """The lowest and the highest seed; none where there is one."""


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
        for cell, (panel, curves) in zip(places, drawn, strict=True):
            axes = figure.add_subplot(grid[cell.row, cell.column : cell.column + cell.cells])
            _draw_curves(axes, panel, curves, most, WIDTH * cell.cells)
            row = [on for at, on in zip(places, drawn, strict=True) if at.row == cell.row and plan.same_scale]
            _set_scale(axes, panel, curves, [curve for other, found in row if not other.zoom for curve in found])
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
    each = [dict(job.run.curve(panel.key)) for job in found] if len(found) > 1 else []
    low, high = ([end(curve[epoch] for curve in each) for epoch in points] if each else [] for end in (min, max))
    return Curve(line, found, list(points), list(points.values()), low, high)


def _draw_curves(axes: Axes, panel: Panel, curves: Sequence[Curve], most: int, width: float) -> None:
    axes.set_title(panel.title.format(attack=watched_attack(curves[0].found[0])))
    best = best_clean(curve.found for curve in curves)
    for number, curve in enumerate(curves):
        look = stroke(curve.found, best=best, most=most)
        axes.plot(
            curve.epochs,
            curve.values,
            color=curve.line.color,
            linestyle=look.style,
            alpha=look.alpha,
            linewidth=THIN + WIDER * (len(curves) - 1 - number),  # lines on each other: each shows beside the next
            marker="o" if len(curve.epochs) == 1 else None,  # a line needs two points to be seen
            label=_curve_label(curve, panel, best),
        )
        if curve.low:
            axes.fill_between(curve.epochs, curve.low, curve.high, color=curve.line.color, alpha=0.13, linewidth=0)
    axes.set_xlabel("epoch")
    axes.set_ylabel(panel.unit)
    axes.grid(axis="y", color="#e9e9e9", linewidth=0.8)
    axes.set_axisbelow(True)
    legend_below(axes, width=width)


def _set_scale(axes: Axes, panel: Panel, curves: Sequence[Curve], beside: Sequence[Curve]) -> None:
    """As the panels beside it, unless it is a close-up; accuracies of networks that collapsed are below the axis."""
    axes.set_xlim(left=0)
    accuracy = panel.unit == ACCURACY
    best = best_clean(curve.found for curve in curves)
    seen = [c for c in curves if not accuracy or not is_collapsed(c.found, best)] + ([] if panel.zoom else [*beside])
    values = [value for curve in seen for some in (curve.values, curve.low, curve.high) for value in some]
    if values:
        axes.set_ylim(*limits(values, near_zero_only=accuracy, zoom=panel.zoom))


def _curve_label(curve: Curve, panel: Panel, best: float) -> str:
    """With the last value; a network without a boundary has no margins to draw."""
    seeds = f" ({len(curve.found)} seeds)" if len(curve.found) > 1 else ""
    last = f"{curve.values[-1]:.{1 if panel.unit == ACCURACY else 2}f}" if curve.values else "no boundary"
    if panel.unit != ACCURACY:
        remark = how_well(curve.found, best)
    else:
        remark = "collapsed, below the axis" if is_collapsed(curve.found, best) else ""
    return f"{curve.line.label}{seeds}: {last}{remarks(remark)}"


SIDE, MORE = 2.5, 0.45
"""Inches of a panel, and how much higher than wide it is, for its title of two lines."""
COLUMNS, TICKS = 4, 5
"""The most panels in a row, and about how many ticks on an axis."""


def distance_figure(prefix: str, jobs: Jobs) -> Figure | None:
    """A cloud for each recipe that has distances, of its first seed, all to one scale; None without any.

    Each kind of training begins a row, baselines first; a shorter row is in the middle.
    """
    measured = [[job for job in jobs[recipe] if job.distance] for recipe in jobs if recipe.startswith(f"{prefix}/")]
    shown = sorted((found[0] for found in measured if found), key=row_order)
    if not shown:
        return None
    rows = [row for _, kind in groupby(shown, key=lambda job: kind_of(job.recipe)) for row in _even_rows(list(kind))]
    top = 1.05 * max(_nearly_all([value for pair in _pairs(job).pairs for value in pair]) for job in shown)
    best = best_clean([job] for job in shown)
    columns = max(len(row) for row in rows)
    with styled():
        figure = Figure(figsize=(SIDE * columns, (SIDE + MORE) * len(rows)), layout=ConstrainedLayoutEngine(h_pad=0.1))
        grid = figure.add_gridspec(len(rows), 2 * columns)
        for down, row in enumerate(rows):
            for across, job in enumerate(row):
                left = columns - len(row) + 2 * across
                axes = figure.add_subplot(grid[down, left : left + 2])
                _draw_distances(axes, job, top, named=across == 0, collapsed=is_collapsed([job], best))
    return figure


def _even_rows(jobs: list[CollectedJob]) -> list[list[CollectedJob]]:
    """As few rows as there can be, of about the same length."""
    rows = -(-len(jobs) // COLUMNS)
    length = -(-len(jobs) // rows)
    return [jobs[start : start + length] for start in range(0, len(jobs), length)]


def _pairs(job: CollectedJob) -> Pairs:
    assert job.distance is not None  # those without were left out
    return job.distance


def _draw_distances(axes: Axes, job: CollectedJob, top: float, *, named: bool, collapsed: bool) -> None:
    """``named`` has the name of the vertical axis, which is every panel's."""
    pairs = _pairs(job)
    margins, distances = zip(*pairs.pairs, strict=True)
    axes.plot([0, top], [0, top], color="black", linestyle="--", linewidth=0.9, zorder=1)
    axes.scatter(margins, distances, s=7, color=BLUE, alpha=0.35, linewidths=0, zorder=2)
    ticks = [tick for tick in MaxNLocator(TICKS, steps=[1, 2, 5, 10]).tick_values(0, top) if tick <= top]
    axes.set(xticks=ticks, yticks=ticks, xlim=(0, top), ylim=(0, top), aspect="equal")
    axes.set_xlabel(f"effective margin ({norm_title(pairs.norm)})")
    if named:
        axes.set_ylabel(f"distance found ({norm_title(pairs.norm)})")
    axes.set_title(f"{method_title(job.recipe)}\n{decay_title(job)}", fontsize=9)
    said = [f"{len(margins):,} images, seed {job.seed}" + (", collapsed" if collapsed else "")]
    outside = sum(max(pair) > top for pair in pairs.pairs)
    said += [f"{outside} beyond the axes"] if outside else []
    said += [] if pairs.correlation is None else [f"rank correlation {pairs.correlation:.3f}"]
    axes.text(0.03, 0.97, "\n".join(said), transform=axes.transAxes, va="top", fontsize=8)


def _nearly_all(values: list[float]) -> float:
    """Where 99.5 % of the values are below: one far point does not shrink the others."""
    ordered = sorted(values)
    return max(ordered[min(len(ordered) - 1, int(0.995 * len(ordered)))], 1e-6)


LEVELS = 255
"""Where every eps is written as so many of 255, the axis counts them."""

EpsMeans = list[tuple[Radius, float]]


def eps_figure(plan: GroupPlan, jobs: Jobs) -> Figure | None:
    """A panel for each kind of training, all to one scale; None where no line was judged at several eps."""
    return _row_of_panels(plan.panels, jobs, _judged_over_eps, _draw_over_eps, HEIGHT + 0.3)


def _row_of_panels(
    panels: Sequence[Panel],
    jobs: Jobs,
    shown: Callable[[Line, Jobs], Sequence[CollectedJob]],
    draw: Callable[[Axes, Panel, Jobs, int], None],
    height: float,
) -> Figure | None:
    """Those that have anything to show, side by side."""
    drawn = [panel for panel in panels if any(shown(line, jobs) for line in panel.lines)]
    if not drawn:
        return None
    most = most_seeds(shown(line, jobs) for panel in drawn for line in panel.lines)
    with styled():
        figure = Figure(figsize=(WIDTH * len(drawn), height), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(drawn), squeeze=False).flat, drawn, strict=True):
            draw(axes, panel, jobs, most)
    return figure


def _judged_over_eps(line: Line, jobs: Jobs) -> list[CollectedJob]:
    return [job for job in jobs.get(line.recipe, ()) if job.over_eps is not None]


def _draw_over_eps(axes: Axes, panel: Panel, jobs: Jobs, most: int) -> None:
    axes.set_title(panel.title)
    shown = [(line, found) for line in panel.lines if (found := _judged_over_eps(line, jobs))]
    curves = [(line, found, mean_curve(found)) for line, found in shown]
    attacked = [radius for _, _, curve in curves for radius, _ in curve if radius.value > 0]
    unit = LEVELS if all(radius.written.endswith(f"/{LEVELS}") for radius in attacked) else 1
    mark, words = _marked_eps(shown[0][1][0])
    best = best_clean(found for _, found in shown)
    for line, found, curve in curves:
        look = stroke(found, best=best, most=most)
        sizes, values = [radius.value * unit for radius, _ in curve], [value for _, value in curve]
        label = _eps_label(line, found, curve, mark)
        (drawn,) = axes.plot(sizes, values, color=line.color, linewidth=1.6, marker="o", markersize=3.5, label=label)
        drawn.set(linestyle=look.style, alpha=look.alpha, clip_on=False)  # the points on the axes are drawn whole
    axes.axvline(mark * unit, color="black", linewidth=0.8, linestyle="--", zorder=1, label=f"{words} {mark:g}")
    axes.set(xlim=(0, None), ylim=(0, 100), ylabel=ACCURACY)
    axes.set_xlabel("eps (L∞)" if unit == 1 else f"eps (L∞), in 1/{LEVELS}")
    axes.grid(axis="y", color="#e9e9e9", linewidth=0.8)
    axes.set_axisbelow(True)
    legend_below(axes, width=WIDTH)


def mean_curve(jobs: Sequence[CollectedJob]) -> EpsMeans:
    """The mean at each eps that every seed has, without attack first."""
    found = [
        {Radius("0", 0.0): job.over_eps.clean} | dict(job.over_eps.points) for job in jobs if job.over_eps is not None
    ]
    common = set.intersection(*(set(curve) for curve in found))
    sizes = sorted(common, key=lambda radius: radius.value)
    return [(radius, fmean(curve[radius] for curve in found)) for radius in sizes]


def _marked_eps(job: CollectedJob) -> tuple[float, str]:
    """The eps of training and its name; the table's eps where training does not attack."""
    config = Fields(job.run.folder / CONFIG, job.run.config)
    trained = config.table("objective").table("attack").number("eps")
    if trained is not None:
        return trained, "eps of training"
    return config.table("evaluation").number("eps") or 0.0, "eps of the table"


def _eps_label(line: Line, found: Sequence[CollectedJob], curve: EpsMeans, mark: float) -> str:
    """With the accuracy at the eps nearest to the mark."""
    seeds = f" ({len(found)} seeds)" if len(found) > 1 else ""
    _, value = min(curve, key=lambda point: abs(point[0].value - mark))
    return f"{line.label}{seeds}: {value:.1f}"


BARS = 60
TAIL = 0.001
"""This share of the images on either side is drawn in the outermost bars."""

Bins = dict[int, int]


def histogram_figure(plan: GroupPlan, jobs: Jobs) -> Figure | None:
    """A panel for each kind of training; None where there are no counts."""
    return _row_of_panels(plan.histograms, jobs, _with_counts, _draw_histogram, HEIGHT)


def _with_counts(line: Line, jobs: Jobs) -> list[CollectedJob]:
    return [job for job in jobs.get(line.recipe, ()) if job.margins is not None and sum(job.margins.counts) > 0]


def _draw_histogram(axes: Axes, panel: Panel, jobs: Jobs, most: int) -> None:
    axes.set_title(f"{panel.title}, test images")
    members = [(line, found) for line in panel.lines if (found := _with_counts(line, jobs))]
    counts = [[job.margins for job in found if job.margins is not None] for _, found in members]
    norm, width = counts[0][0].norm, counts[0][0].width
    shown = [(*member, kept) for member, kept in zip(members, counts, strict=True) if kept[0].norm == norm]
    best = best_clean(found for _, found, _ in shown)
    lows, highs = zip(*(_inner_bins(_all_seeds(kept)) for _, _, kept in shown), strict=True)
    low, high = min(*lows, 0), max(*highs, 1)
    merged = max(1, -(-(high - low) // BARS))
    for line, found, kept in shown:
        bins, without = _all_seeds(kept), sum(member.without for member in kept)
        edges, shares = _shares(bins, low, high, merged, without)
        mean = f"mean {_mean_bin(bins) * width:.{2 if width > 0.01 else 4}f}"
        label = f"{line.label}: {mean}{remarks(how_well(found, best), _without_boundary(bins, without))}"
        look, at = stroke(found, best=best, most=most), [edge * width for edge in edges]
        outline = axes.stairs(shares, at, color=line.color, linewidth=1.4, alpha=look.alpha, label=label)
        outline.set_linestyle(look.style)
        if line == panel.lines[-1]:  # more fillings than one would mix
            axes.stairs(shares, at, color=line.color, alpha=0.13, fill=True)
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.set_xlabel(f"effective margin ({norm_title(norm)}); left of 0: misclassified")
    axes.set_ylabel("share of images, %")
    legend_below(axes, width=WIDTH)


def _all_seeds(found: Sequence[Counts]) -> Bins:
    """The counts of all seeds."""
    bins: Counter[int] = Counter()
    for counts in found:
        bins.update({counts.first + place: count for place, count in enumerate(counts.counts)})
    return dict(bins)


def _inner_bins(bins: Bins) -> tuple[int, int]:
    """Where nearly all images are."""
    total, seen, inside = sum(bins.values()), 0, []
    for edge in sorted(bins):
        if seen + bins[edge] > TAIL * total and seen < (1 - TAIL) * total:
            inside.append(edge)
        seen += bins[edge]
    return min(inside), max(inside) + 1


def _shares(bins: Bins, low: int, high: int, merged: int, without: int) -> tuple[list[int], list[float]]:
    """(edges, shares of all images in percent): ``merged`` bins to a bar, an edge at zero."""
    first, last = low // merged, -(-high // merged)
    total = sum(bins.values()) + without
    bars = [0.0] * (last - first)
    for edge, count in bins.items():
        bars[min(max(edge // merged - first, 0), len(bars) - 1)] += 100 * count / total
    return [merged * number for number in range(first, last + 1)], bars


def _without_boundary(bins: Bins, without: int) -> str:
    """What a reader of the mean must know, where it is more than a percent."""
    share = 100 * without / (sum(bins.values()) + without)
    return f"{share:.0f}% without a boundary" if share > 1 else ""


def _mean_bin(bins: Bins) -> float:
    """In bins, each image at the middle of its own."""
    return sum((place + 0.5) * count for place, count in bins.items()) / sum(bins.values())


JUDGES = (
    ("clean", "clean", GRAY),
    ("", "PGD", YELLOW),
    (STRONGEST, "strongest PGD", RED),
    ("autoattack", "AutoAttack", BLUE),
)
"""What is drawn of a row: the end of the accuracy's name, how it is called, its color. PGD is the table's own."""
MANY = 3
"""From so many rows on a picture tells more than the table."""


def judges_figure(table: PaperTable, jobs: Jobs) -> Figure | None:
    """Accuracy of each row judged by AutoAttack on the first images, by every judge, seeds as points; the best last."""
    judged = {
        table.label(row): [job.autoattack_1000.table("accuracy").numbers() for job in members]
        for row in table.rows
        if (members := [job for job in jobs.get(row.recipe, ()) if job.autoattack_1000.values])
    }
    if len(judged) < MANY:
        return None
    rows = sorted(judged, key=lambda name: fmean(numbers["autoattack"] for numbers in judged[name]))
    with styled():
        figure = Figure(figsize=(1.7 * WIDTH, 1.4 + 0.32 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for place, name in enumerate(rows):
            found = judged[name]
            pgd = next(key for key in found[0] if key.endswith(STRONGEST)).removesuffix(STRONGEST)
            keys = [key if key in ("clean", "autoattack") else pgd + key for key, _, _ in JUDGES]
            means = [fmean(numbers[key] for numbers in found) for key in keys]
            axes.plot([min(means[1:]), max(means[1:])], [place, place], color="#c9c9c9", linewidth=2.5, zorder=1)
            for key, mean, (_, label, color) in zip(keys, means, JUDGES, strict=True):
                every = [numbers[key] for numbers in found]
                axes.scatter(every, [place] * len(every), s=9, color=color, alpha=0.35, linewidths=0, zorder=2)
                axes.scatter(mean, place, s=34, color=color, zorder=3, label=label if place == 0 else None)
        axes.set_yticks(range(len(rows)), rows)
        axes.set(xlim=(0, 100), xlabel="accuracy on the first 1,000 test images, %")
        axes.grid(axis="x", color="#e9e9e9", linewidth=0.8)
        axes.set_axisbelow(True)
        figure.legend(loc="outside upper center", ncols=len(JUDGES), fontsize=SMALL)
    return figure
