"""The page and the figures, made again from the tree alone."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from widemargin.files import make_folder, write_text_whole
from widemargin.reports.collection import layout
from widemargin.reports.collection.curve_picture import curve_figure
from widemargin.reports.collection.distance_picture import distance_figure
from widemargin.reports.collection.eps_picture import eps_figure
from widemargin.reports.collection.figures_text import Shown
from widemargin.reports.collection.histogram_picture import histogram_figure
from widemargin.reports.collection.page import page
from widemargin.reports.collection.paper import PaperTable
from widemargin.reports.collection.picture_plans import CURVES, GROUPS
from widemargin.reports.collection.sections import DISTANCES, HISTOGRAMS, OVER_EPS
from widemargin.reports.collection.table_text import Jobs
from widemargin.reports.collection.tree import CollectedJob, read_tree
from widemargin.reports.style import save_picture

Picture = tuple[Shown, Figure | None]
"""None where there is nothing to draw."""


def generate(into: Path, tables: Sequence[PaperTable]) -> list[Path]:
    """Write them; figures for which nothing is left are removed."""
    jobs = by_recipe(read_tree(into))
    folder = make_folder(into / layout.FIGURES)
    shown, written = [], [into / layout.PAGE]
    for picture, figure in _pictures(jobs):
        if figure is None:
            (folder / picture.file).unlink(missing_ok=True)
            continue
        save_picture(figure, folder / picture.file)
        written.append(folder / picture.file)
        shown.append(picture)
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
        yield Shown(plan.section, plan.file, plan.title, plan.note), curve_figure(plan, jobs)
    for group in GROUPS:
        shown = Shown(HISTOGRAMS, f"histogram-{group.name}.png", f"Margins, {group.title}", group.histogram_note)
        yield shown, histogram_figure(group, jobs)
    for group in GROUPS:
        shown = Shown(DISTANCES, f"distance-{group.name}.png", f"Margin against distance, {group.title}")
        yield shown, distance_figure(group.name, jobs)
    for group in GROUPS:
        shown = Shown(OVER_EPS, f"eps-{group.name}.png", f"Accuracy against eps, {group.title}")
        yield shown, eps_figure(group, jobs)
