"""The page and the figures, made again from the tree alone."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from widemargin.files import make_folder, write_text_whole
from widemargin.reports.collection import layout
from widemargin.reports.collection.curve_picture import curve_figure
from widemargin.reports.collection.distance_picture import distance_figure
from widemargin.reports.collection.eps_picture import eps_figure
from widemargin.reports.collection.histogram_picture import histogram_figure
from widemargin.reports.collection.page import page
from widemargin.reports.collection.paper import PaperTable
from widemargin.reports.collection.picture_plans import CURVES, GROUPS
from widemargin.reports.collection.table_text import Jobs
from widemargin.reports.collection.tree import CollectedJob, read_tree
from widemargin.reports.style import save_picture

HISTOGRAMS = (
    "Shares of all test images, all seeds together; misclassified ones lie left of zero, and the outermost bars hold "
    "the tails. The mean is over all images with a boundary."
)
DISTANCES = (
    "Each point is a correctly classified test image: its effective margin, and the size of the smallest adversarial "
    "perturbation that FAB found, an upper bound of the true distance. On the dashed line they are equal."
)
OVER_EPS = (
    "PGD-100, steps of eps/4, on the first 1,000 test images; at 0 without attack; mean over seeds. The dashed line "
    "is at the eps of training, or the table's where training has none; the legend has the accuracy at the eps nearest "
    "to it."
)

Picture = tuple[str, str, str, Figure | None]
"""File, title, caption; None where there is nothing to draw."""


def generate(into: Path, tables: Sequence[PaperTable]) -> list[Path]:
    """Write them; figures for which nothing is left are removed."""
    jobs = by_recipe(read_tree(into))
    folder = make_folder(into / layout.FIGURES)
    shown, written = [], [into / layout.PAGE]
    for file, title, caption, figure in _pictures(jobs):
        if figure is None:
            (folder / file).unlink(missing_ok=True)
            continue
        save_picture(figure, folder / file)
        written.append(folder / file)
        shown.append((file, title, caption))
    write_text_whole(into / layout.PAGE, page(tables, jobs, into / layout.NOTES, shown))
    return written


def by_recipe(jobs: Sequence[CollectedJob]) -> Jobs:
    """Recipe -> its jobs, by seed."""
    found: dict[str, list[CollectedJob]] = {}
    for job in jobs:
        found.setdefault(job.recipe, []).append(job)
    return found


def _pictures(jobs: Jobs) -> Iterator[Picture]:
    for plan in CURVES:
        yield plan.file, plan.title, plan.caption, curve_figure(plan, jobs)
    for group in GROUPS:
        yield f"histogram-{group.name}.png", f"Margins, {group.title}", HISTOGRAMS, histogram_figure(group, jobs)
    for group in GROUPS:
        title = f"Margin against distance, {group.title}"
        yield f"distance-{group.name}.png", title, DISTANCES, distance_figure(group.name, jobs)
    for group in GROUPS:
        yield f"eps-{group.name}.png", f"Accuracy against eps, {group.title}", OVER_EPS, eps_figure(group, jobs)
