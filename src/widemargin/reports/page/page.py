"""The whole page: which sections, under which title, in one HTML file that needs nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from widemargin.reports.charts.series import color_class, legend
from widemargin.reports.inputs.search import Findings
from widemargin.reports.page.alarms import alarms
from widemargin.reports.page.breakdown import breakdown
from widemargin.reports.page.commands import commands
from widemargin.reports.page.distance import distance
from widemargin.reports.page.eps_curves import eps_curves
from widemargin.reports.page.facts import facts
from widemargin.reports.page.gallery import gallery
from widemargin.reports.page.margins import margins_section
from widemargin.reports.page.results_table import results_section
from widemargin.reports.page.section import Section, counted, listed
from widemargin.reports.page.sweeps import sweeps
from widemargin.reports.page.training import training
from widemargin.reports.results import References, Results

FEW, FAULTS = 3, 200


@dataclass(frozen=True, kw_only=True)
class Page:
    """A title, a sentence on what is compared, and the sections."""

    title: str
    summary: str
    sections: Sequence[Section]


def page(
    found: Findings,
    tables: Sequence[Results],
    references: References,
    *,
    folders: Sequence[Path],
    out: Path,
    title: str | None = None,
) -> Page:
    """Put the page together; sections without data are left out."""
    sections = [
        not_shown(found),
        alarms(found),
        results_section(tables),
        breakdown(found),
        eps_curves(found),
        margins_section(found),
        distance(found),
        training(found),
        sweeps(found),
        gallery(found),
        facts(found),
        commands(found, references, folders, out),
    ]
    return Page(
        title=title or _title(found),
        summary=_summary(found, folders),
        sections=[section for section in sections if section is not None],
    )


def _title(found: Findings) -> str:
    labels = found.labels() or [f"sweep of {sweep.recipe}" for sweep in found.sweeps]
    recipes = [*(run.name for run in found.runs), *(e.name or e.label for e in found.evaluations)]
    for names in (labels, list(dict.fromkeys(recipes))):
        if len(names) <= FEW:
            return listed(names)
    return f"{counted(len(set(recipes)), 'recipe')} compared"


def _summary(found: Findings, folders: Sequence[Path]) -> str:
    parts = []
    for things, noun in ((found.runs, "run"), (found.evaluations, "evaluation"), (found.sweeps, "sweep")):
        if things:
            parts.append(counted(len(things), noun))
    waiting = sum(not run.finished and not run.unread for run in found.runs)
    waiting += sum(not evaluation.finished for evaluation in found.evaluations)
    unfinished = f", {waiting:,} of them unfinished" if waiting else ""
    return f"{listed(parts)}{unfinished}, from {listed([str(folder) for folder in folders])}."


def not_shown(found: Findings) -> Section | None:
    """The files that could not be shown, and why."""
    if not found.faults:
        return None
    lines = [f"This file could not be shown: {fault}." for fault in found.faults[:FAULTS]]
    if len(found.faults) > FAULTS:
        lines.append(f"And {len(found.faults) - FAULTS:,} more could not be shown.")
    return Section(id="not-shown", title="Files that could not be shown", lines=lines)


def html(content: Page, *, date: str, version: str) -> str:
    """The page as one HTML file; everything that came from files is escaped."""
    environment = Environment(
        loader=PackageLoader("widemargin.reports.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"legend": legend, "color_class": color_class}
    return environment.get_template("page.html").render(page=content, date=date, version=version)
