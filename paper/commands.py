"""The verbs of ``python -m paper``: finished jobs as a small tree to commit, and the page made of it alone."""

from pathlib import Path
from typing import Annotated

import typer

from paper.collect import collect as collect_jobs
from paper.page import generate
from paper.rows import PaperRow, PaperTable
from widemargin.cli.report import references
from widemargin.core.screen import console_for, say
from widemargin.recipes.tables import all_tables

SHOWN = 10

Into = Annotated[Path, typer.Option(help="The tree; its README.md and figures are made from it alone.")]
RESULTS = Path("results")


def collect(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="What 'widemargin reproduce --out' named; each is searched.")
    ],
    into: Into = RESULTS,
) -> None:
    """Collect finished jobs (no weights; the same job again replaces it), then write the page and its figures."""
    console = console_for(stderr=True)
    names, unfinished = collect_jobs(folders, into)
    say(console, f"collected {len(names)} jobs in {into}")
    if unfinished:
        say(console, f"left out, not finished: {len(unfinished)}")
    for folder in unfinished[:SHOWN]:
        say(console, f"  {folder}")
    page(into)


def page(into: Into = RESULTS) -> None:
    """Write the page and its figures again, from what was collected."""
    for path in generate(into, paper_tables()):
        say(console_for(), str(path))


def paper_tables() -> list[PaperTable]:
    """Every table, with the recipes of its rows."""
    known = references()
    return [
        PaperTable(
            name,
            table.title,
            table.columns,
            [PaperRow(row.recipe.name, row.published.results, known[row.recipe.name]) for row in table.rows],
        )
        for name, table in all_tables().items()
    ]
