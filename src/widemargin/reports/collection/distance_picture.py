"""The effective margin against the distance of the nearest adversarial image found: does it mean what it says?"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from widemargin.reports.collection.picture_plans import BLUE
from widemargin.reports.collection.table_text import Jobs
from widemargin.reports.collection.tree import CollectedJob, Pairs
from widemargin.reports.measures import norm_title
from widemargin.reports.style import styled

COLUMNS, SIDE = 4, 3.3


def distance_figure(prefix: str, jobs: Jobs) -> Figure | None:
    """A cloud for each recipe that has distances, of its first seed, all to one scale; None without any."""
    shown = [
        (job, job.distance)
        for recipe in sorted(jobs, key=_place)
        if recipe.startswith(f"{prefix}/") and (job := _first(jobs, recipe)) is not None and job.distance is not None
    ]
    if not shown:
        return None
    top = max(_nearly_all([value for pair in pairs.pairs for value in pair]) for _, pairs in shown) * 1.05
    columns = min(COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    with styled():
        figure = Figure(figsize=(SIDE * columns, (SIDE + 0.3) * rows), layout="constrained")
        grid = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, (job, pairs) in zip(grid, shown, strict=False):
            _draw(axes, job, pairs, top)
        for axes in grid[len(shown) :]:
            axes.set_axis_off()
    return figure


def _place(recipe: str) -> tuple[bool, str]:
    """Standard training first."""
    return "/st-" not in recipe, recipe


def _first(jobs: Jobs, recipe: str) -> CollectedJob | None:
    return next((job for job in jobs[recipe] if job.distance is not None), None)


def _draw(axes: Axes, job: CollectedJob, pairs: Pairs, top: float) -> None:
    margins, distances = zip(*pairs.pairs, strict=True)
    axes.plot([0, top], [0, top], color="black", linestyle="--", linewidth=0.9, zorder=1)
    axes.scatter(margins, distances, s=7, color=BLUE, alpha=0.35, linewidths=0, zorder=2)
    axes.set(xlim=(0, top), ylim=(0, top), aspect="equal")
    axes.set_xlabel(f"effective margin ({norm_title(pairs.norm)})")
    axes.set_ylabel(f"distance found ({norm_title(pairs.norm)})")
    axes.set_title(f"{job.recipe.split('/')[-1]}, seed {job.seed}")
    said = [f"{len(margins):,} images"]
    outside = sum(max(pair) > top for pair in pairs.pairs)
    said += [f"{outside} beyond the axes"] if outside else []
    said += [] if pairs.correlation is None else [f"rank correlation {pairs.correlation:.3f}"]
    axes.text(0.03, 0.97, "\n".join(said), transform=axes.transAxes, va="top", fontsize=8)


def _nearly_all(values: list[float]) -> float:
    """Where 99.5 % of the values are below: one far point does not shrink the others."""
    ordered = sorted(values)
    return max(ordered[min(len(ordered) - 1, int(0.995 * len(ordered)))], 1e-6)
