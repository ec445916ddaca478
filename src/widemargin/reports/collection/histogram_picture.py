"""Margin histograms of the test images, from the counts that were kept."""

from collections import Counter
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from widemargin.reports.collection.curve_picture import HEIGHT, WIDTH
from widemargin.reports.collection.legend import legend_below
from widemargin.reports.collection.picture_plans import GroupPlan, Line, Panel
from widemargin.reports.collection.strokes import best_clean, how_well, most_seeds, remarks, stroke
from widemargin.reports.collection.table_text import Jobs
from widemargin.reports.collection.tree import CollectedJob, Counts
from widemargin.reports.measures import norm_title
from widemargin.reports.style import styled

BARS = 60
TAIL = 0.001
"""This share of the images on either side is drawn in the outermost bars."""

Bins = dict[int, int]


def histogram_figure(plan: GroupPlan, jobs: Jobs) -> Figure | None:
    """A panel for each kind of training; None where there are no counts."""
    panels = [panel for panel in plan.histograms if any(_counted(line, jobs) for line in panel.lines)]
    if not panels:
        return None
    most = most_seeds(_counted(line, jobs) for panel in panels for line in panel.lines)
    with styled():
        figure = Figure(figsize=(WIDTH * len(panels), HEIGHT), layout="constrained")
        grid = figure.subplots(1, len(panels), squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=True):
            _draw(axes, panel, jobs, most)
    return figure


def _counted(line: Line, jobs: Jobs) -> list[CollectedJob]:
    return [job for job in jobs.get(line.recipe, ()) if job.margins is not None and sum(job.margins.counts) > 0]


def _draw(axes: Axes, panel: Panel, jobs: Jobs, most: int) -> None:
    axes.set_title(f"{panel.title}, test images")
    members = [(line, found) for line in panel.lines if (found := _counted(line, jobs))]
    counts = [[job.margins for job in found if job.margins is not None] for _, found in members]
    norm, width = counts[0][0].norm, counts[0][0].width
    shown = [(*member, kept) for member, kept in zip(members, counts, strict=True) if kept[0].norm == norm]
    best = best_clean(found for _, found, _ in shown)
    low, high = _range([_together(kept) for _, _, kept in shown])
    merged = max(1, -(-(high - low) // BARS))
    for line, found, kept in shown:
        bins, without = _together(kept), sum(member.without for member in kept)
        edges, shares = _bars(bins, low, high, merged, without)
        mean = f"mean {_mean(bins) * width:.{2 if width > 0.01 else 4}f}"
        label = f"{line.label}: {mean}{remarks(how_well(found, best), _left_out(bins, without))}"
        look, at = stroke(found, best=best, most=most), [edge * width for edge in edges]
        outline = axes.stairs(shares, at, color=line.color, linewidth=1.4, alpha=look.alpha, label=label)
        outline.set_linestyle(look.style)
        if line == panel.lines[-1]:  # more fillings than one would mix
            axes.stairs(shares, at, color=line.color, alpha=0.13, fill=True)
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.set_xlabel(f"effective margin ({norm_title(norm)}); left of 0: misclassified")
    axes.set_ylabel("share of images, %")
    legend_below(axes, width=WIDTH)


def _together(found: Sequence[Counts]) -> Bins:
    """The counts of all seeds."""
    bins: Counter[int] = Counter()
    for counts in found:
        bins.update({counts.first + place: count for place, count in enumerate(counts.counts)})
    return dict(bins)


def _range(members: Sequence[Bins]) -> tuple[int, int]:
    """Where nearly all images of each line are, zero included."""
    lows, highs = zip(*(_inner(bins) for bins in members), strict=True)
    return min(*lows, 0), max(*highs, 1)


def _inner(bins: Bins) -> tuple[int, int]:
    total, seen, inside = sum(bins.values()), 0, []
    for place in sorted(bins):
        if seen + bins[place] > TAIL * total and seen < (1 - TAIL) * total:
            inside.append(place)
        seen += bins[place]
    return min(inside), max(inside) + 1


def _bars(bins: Bins, low: int, high: int, merged: int, without: int) -> tuple[list[int], list[float]]:
    """(edges, shares of all images in percent): ``merged`` bins to a bar, an edge at zero."""
    first, last = low // merged, -(-high // merged)
    total = sum(bins.values()) + without
    bars = [0.0] * (last - first)
    for place, count in bins.items():
        bars[min(max(place // merged - first, 0), len(bars) - 1)] += 100 * count / total
    return [merged * number for number in range(first, last + 1)], bars


def _left_out(bins: Bins, without: int) -> str:
    """What a reader of the mean must know, where it is more than a percent."""
    share = 100 * without / (sum(bins.values()) + without)
    return f"{share:.0f}% without a boundary" if share > 1 else ""


def _mean(bins: Bins) -> float:
    """In bins, each image at the middle of its own."""
    return sum((place + 0.5) * count for place, count in bins.items()) / sum(bins.values())
