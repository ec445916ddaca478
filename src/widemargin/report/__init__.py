"""Runs and measurements as pictures and tables; reads results, never trains.

``write_report``: folders in, one HTML page out, with the same tables as Markdown, CSV and LaTeX beside it.
"""

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from widemargin.core.files import make_folder, write_text_atomic
from widemargin.core.records import visible
from widemargin.errors import InputError
from widemargin.report.compare import Reference
from widemargin.report.findings import Findings, search
from widemargin.report.page import Page, build_page, html
from widemargin.report.results import numbers_table, result_tables
from widemargin.report.tables import plain_text


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
) -> ReportFiles:
    """Show everything in the folders; ``references`` are the recipes to compare with, by name."""
    target = Path(out)
    if target.suffix != ".html" or target.is_dir():
        raise InputError(f"--out must name an .html file, got {target}; the other formats are written beside it")
    folders = [folders] if isinstance(folders, str | Path) else folders
    if not folders:
        raise InputError("report: give at least one folder")
    places = [Path(folder) for folder in folders]
    found, known = search(places), references or {}
    tables = result_tables(found, known)
    content = build_page(found, tables, known, folders=places, out=target, title=title)
    texts = {
        ".html": html(content, date=datetime.date.today().isoformat(), version=version),
        ".md": as_markdown(content),
        ".csv": numbers_table(tables, found.evaluations).csv(),
        ".tex": as_latex(content),
    }
    make_folder(target.parent)
    for suffix, text in texts.items():
        write_text_atomic(target.with_suffix(suffix), visible(text, lines=True))
    return ReportFiles([target.with_suffix(suffix) for suffix in texts], content, found)


def as_markdown(content: Page) -> str:
    """The tables and sentences of the page as Markdown."""
    parts = [f"# {plain_text(content.title)}\n\n{plain_text(content.summary)}\n"]
    for section in content.sections:
        body = [f"{plain_text(line)}\n" for line in section.lines]
        for table in section.tables:
            body += [f"### {plain_text(table.title)}\n"] * (table.title != section.title) + [table.markdown()]
        if section.commands:
            body.append(_fenced("\n".join(section.commands)))
        if body:
            parts.append("\n".join([f"## {section.title}\n", *body]))
    return "\n".join(parts)


def _fenced(text: str) -> str:
    """Text between fences that it cannot break."""
    fence = max(["```", *(f"{ticks}`" for ticks in re.findall("`+", text))], key=len)
    return f"{fence}sh\n{text}\n{fence}\n"


def as_latex(content: Page) -> str:
    """The tables of the page as LaTeX."""
    tables = [table.latex() for section in content.sections for table in section.tables]
    return "% \\usepackage{booktabs}\n\n" + "\n".join(tables)
