"""``widemargin results``: finished jobs as a small tree to commit, and the page made of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from paper.collect import collect
from paper.page import generate
from paper.rows import PaperRow, PaperTable
from widemargin.cli.report import references
from widemargin.core.screen import console_for, say
from widemargin.recipes.tables import all_tables

SHOWN = 10


def results(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR...]", help="What 'widemargin reproduce --out' named; none: only the page again."),
    ] = None,
    into: Annotated[Path, typer.Option(help="The tree; its README.md and figures are made from it alone.")] = Path(
        "results"
    ),
) -> None:
    """Collect finished jobs (no weights; the same job again replaces it), then write the page and its figures."""
    console = console_for(stderr=True)
    if folders:
        names, unfinished = collect(folders, into)
        say(console, f"collected {len(names)} jobs in {into}")
        _name_unfinished(unfinished, console)
    for path in generate(into, paper_tables()):
        say(console_for(), str(path))


def _name_unfinished(folders: Sequence[Path], console: Console) -> None:
    if folders:
        say(console, f"left out, not finished: {len(folders)}")
        for folder in folders[:SHOWN]:
            say(console, f"  {folder}")


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
