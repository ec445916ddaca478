"""The effective margin against the distance of the nearest adversarial image found: does it mean what it says?"""

from itertools import groupby

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from widemargin.reports.collection.palette import BLUE
from widemargin.reports.collection.row_title import decay_title, kind_of, method_title, place
from widemargin.reports.collection.strokes import best_clean, is_collapsed
from widemargin.reports.collection.table_text import Jobs
from widemargin.reports.collection.tree import CollectedJob, Pairs
from widemargin.reports.measures import norm_title
from widemargin.reports.style import styled

SIDE, MORE = 2.5, 0.45
"""Inches of a panel, and how much higher than wide it is, for its title of two lines."""
COLUMNS, TICKS = 4, 5
"""The most panels in a row, and about how many ticks on an axis."""


def distance_figure(prefix: str, jobs: Jobs) -> Figure | None:
    """A cloud for each recipe that has distances, of its first seed, all to one scale; None without any.

    Each kind of training begins a row, baselines first; a shorter row is in the middle.
    """
    first = [_first(jobs, recipe) for recipe in jobs if recipe.startswith(f"{prefix}/")]
    shown = sorted((job for job in first if job is not None), key=place)
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
                _draw(axes, job, top, named=across == 0, collapsed=is_collapsed([job], best))
    return figure


def _even_rows(jobs: list[CollectedJob]) -> list[list[CollectedJob]]:
    """As few rows as there can be, of about the same length."""
    rows = -(-len(jobs) // COLUMNS)
    length = -(-len(jobs) // rows)
    return [jobs[start : start + length] for start in range(0, len(jobs), length)]


def _first(jobs: Jobs, recipe: str) -> CollectedJob | None:
    return next((job for job in jobs[recipe] if job.distance is not None), None)


def _pairs(job: CollectedJob) -> Pairs:
    assert job.distance is not None  # those without were left out
    return job.distance


def _draw(axes: Axes, job: CollectedJob, top: float, *, named: bool, collapsed: bool) -> None:
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
