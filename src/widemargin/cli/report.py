"""``widemargin report``: runs, evaluations and sweeps as one page, beside the published numbers."""

import re
from pathlib import Path
from typing import Annotated

import typer

from widemargin.cli.options import listed
from widemargin.config.checkpoint import software_versions
from widemargin.config.toml import to_dict
from widemargin.core.screen import console_for, say
from widemargin.recipes import all_recipes
from widemargin.report import write_report
from widemargin.report.compare import Reference


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Run, evaluation, sweep or reproduce folders; each is searched."),
    ],
    out: Annotated[Path, typer.Option(help="The page; the tables go beside it as .md, .csv and .tex.")] = Path(
        "report.html"
    ),
    title: Annotated[str | None, typer.Option(help="Default: what is compared.", show_default=False)] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Compare every model with this one, paired on the same images, with intervals.",
            show_default=False,
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME",
            help="Of the leaderboard, which then is all that .md, .csv and .tex have: data, threat, clean, autoattack, "
            "pgd, distance, certified, differs.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write one HTML page that needs no network, and its tables as Markdown, CSV and LaTeX; unfinished runs too."""
    written = write_report(
        folders,
        out,
        references=references(),
        title=title,
        version=software_versions()["widemargin"],
        baseline=baseline,
        columns=None if columns is None else listed(columns),
    )
    for path in written.files:
        say(console_for(), str(path))
    if written.found.faults:
        first, *more = written.found.faults
        others = f" (and {len(more):,} more)" if more else ""
        say(console_for(stderr=True, failures=True), f"not shown: {first}{others}; the page names each")


def references() -> dict[str, Reference]:
    """Every recipe as something to be compared with, by name."""
    found = {}
    for name, recipe in all_recipes().items():
        source, results = "", {}
        if recipe.published is not None:
            number = re.match(r"table(\d+)", recipe.published.table)  # of table3_wide_resnet, not supplement_resnet18
            place = recipe.published.source or (f"Table {number[1]}" if number else "the supplement")
            source = f"{place}, {recipe.published.row}"
            results = recipe.published.results
        found[name] = Reference(settings=to_dict(recipe.config), results=results, source=source, note=recipe.note)
    return found
