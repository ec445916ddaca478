"""Runs and measurements as pictures and tables; reads results, never trains.

``write_report``: folders in, one HTML page out, with the same tables as Markdown, CSV and LaTeX beside it.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from widemargin.core.files import make_folder, write_text_atomic
from widemargin.core.records import visible
from widemargin.errors import InputError
from widemargin.report.certificates import certified
from widemargin.report.classes import accuracy_by_class
from widemargin.report.commands import reproducing_commands
from widemargin.report.compare import Reference
from widemargin.report.findings import Findings, search
from widemargin.report.leaderboard import check_columns, numbers_of, ranking
from widemargin.report.page import Page, Section, as_html, as_latex, as_markdown
from widemargin.report.paired import paired_differences
from widemargin.report.provenance import FACTS_TITLE, alarms, facts, faults
from widemargin.report.results import numbers_table, result_tables, shown_tables
from widemargin.report.sections import (
    accuracy_against_eps,
    autoattack,
    galleries,
    margin_against_distance,
    margins,
    training,
)
from widemargin.report.sweeps import sweep_table
from widemargin.report.wording import counted, listed

FEW = 3
"""So many names make a title."""


@dataclass(frozen=True)
class ReportFiles:
    """The files written, and what is in them."""

    files: Sequence[Path]
    page: Page
    found: Findings


def write_report(
    folders: str | Path | Sequence[str | Path],
    out: str | Path = "report.html",
    *,
    references: Mapping[str, Reference] | None = None,
    title: str | None = None,
    version: str = "",
    baseline: str | None = None,
    columns: Sequence[str] | None = None,
) -> ReportFiles:
    """Show everything in the folders; ``references`` are the recipes to compare with, by name.

    ``baseline`` is the model that every other one is compared with, image by image. With ``columns`` the leaderboard
    has these alone, and the tables beside the page are the leaderboard, for a paper.
    """
    target = Path(out)
    if target.suffix != ".html" or target.is_dir():
        raise InputError(f"--out must name an .html file, got {target}; the other formats are written beside it")
    folders = [folders] if isinstance(folders, str | Path) else folders
    if not folders:
        raise InputError("report: give at least one folder")
    places = [Path(folder) for folder in folders]
    check_columns(columns or ())
    found, known = search(places), references or {}
    tables = result_tables(found, known)
    best = Section("leaderboard", "Leaderboard", ranking(found, known, columns))
    against = [] if baseline is None else paired_differences(found, known, baseline)
    sections = [
        best,
        Section("paired", "Paired differences", against),
        Section("not-shown", "Files that could not be shown", faults(found)),
        Section("alarms", "Alarms", alarms(found)),
        Section("results", "Results", shown_tables(tables), folded="Every number, by evaluation and by seed"),
        Section("autoattack", "AutoAttack, part by part", autoattack(found)),
        Section("classes", "Class by class", accuracy_by_class(found, known)),
        Section("accuracy-versus-eps", "Accuracy against the size of the attack", accuracy_against_eps(found)),
        Section("margins", "Effective margins", margins(found)),
        Section("margin-versus-distance", "Margin against distance", margin_against_distance(found)),
        Section("certified", "Certified, margin and attacked", certified(found)),
        Section("training", "Training", training(found)),
        Section("sweeps", "Sweeps", [sweep_table(sweep) for sweep in found.sweeps]),
        Section("gallery", "Examples and their adversarial twins", galleries(found)),
        Section("facts", FACTS_TITLE, facts(found)),
        Section("reproduce", "How to reproduce", reproducing_commands(found, known, places, target)),
    ]
    shown = [section for section in sections if section.parts]
    page = Page(title or _title(found), _summary(found, places), shown)
    beside = page if columns is None else replace(page, sections=[best])
    numbers = numbers_table(tables, found.evaluations) if columns is None else numbers_of(found, known, columns)
    texts = {
        ".html": as_html(page, date=datetime.date.today().isoformat(), version=version),
        ".md": as_markdown(beside),
        ".csv": numbers.csv(),
        ".tex": as_latex(beside),
    }
    make_folder(target.parent)
    for suffix, text in texts.items():
        write_text_atomic(target.with_suffix(suffix), visible(text, lines=True))
    return ReportFiles([target.with_suffix(suffix) for suffix in texts], page, found)


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
