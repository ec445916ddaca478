"""``widemargin reproduce``: a table of the paper, row by row, beside the published numbers."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from widemargin.cli.arguments import DataDir, Device, seconds
from widemargin.errors import InputError
from widemargin.experiments.quick import SUMMARY
from widemargin.experiments.reproduce import Job, choose_rows, jobs
from widemargin.experiments.reproduce import reproduce as run_jobs
from widemargin.files import make_folder, write_text_whole
from widemargin.recipes.tables import Row, Table, all_tables, find_table
from widemargin.reports.comparison import Cell, compare, markdown


def reproduce(
    table: Annotated[str, typer.Argument(help=f"One of {', '.join(all_tables())}.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs; the same command again goes on where it stopped.")],
    rows: Annotated[
        str | None, typer.Option(help="Only these, comma-separated, e.g. st-emr,at-emr.", show_default=False)
    ] = None,
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds.")] = "0",
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny runs that exercise the code; the numbers mean nothing.")
    ] = False,
    max_time: Annotated[
        str | None, typer.Option(help="Stop with a checkpoint after 25m, 1h30m, ...", show_default=False)
    ] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
) -> None:
    """Train and judge the rows of a table, skipping what is done, and set our numbers beside the published ones."""
    chosen = find_table(table)
    wanted = choose_rows(chosen, None if rows is None else [name.strip() for name in rows.split(",") if name.strip()])
    work = jobs(chosen, wanted, _seeds(seeds), make_folder(out), is_quick=quick)
    limit = seconds("--max-time", max_time)
    console = Console(stderr=True)
    if quick:
        console.print(f"quick: {SUMMARY}; the numbers mean nothing", highlight=False)
    done = list(run_jobs(work, data_dir=data_dir, device=device, max_seconds=limit, console=console))
    _report(chosen, wanted, work, out / f"{table}.md", quick)
    if len(done) < len(work):
        console.print(f"time is out: {len(done)} of {len(work)} done; the same command goes on", highlight=False)


def _seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdigit() for part in parts) or len(set(parts)) != len(parts):
        raise InputError(f"--seeds: {text!r} must be different whole numbers, comma-separated, such as 0,1,2")
    return [int(part) for part in parts]


def _report(table: Table, rows: list[Row], work: list[Job], path: Path, quick: bool) -> None:
    compared: list[tuple[str, dict[str, Cell]]] = []
    for row in rows:
        results = [result for job in work if job.row is row and (result := job.result()) is not None]
        compared.append((row.recipe.name, compare(table.columns, row.published.results, results)))
    note = "quick runs: the numbers mean nothing" if quick else ""
    write_text_whole(path, markdown(table.title, table.columns, compared, note))
    shown = RichTable("row", *table.columns, title=f"{table.title}: ours / paper (difference)", caption=note or None)
    for name, cells in compared:
        shown.add_row(name.split("/")[1], *(cells[column].text() for column in table.columns))
    console = Console()
    console.print(shown)
    console.print(f"also in {path}", highlight=False)
