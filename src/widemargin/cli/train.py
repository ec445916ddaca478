"""``widemargin train``: run a recipe, or go on with the run in a folder."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from widemargin.cli.arguments import DataDir, Device, EngineOption, seconds
from widemargin.config_files import with_overrides
from widemargin.recipes import find_recipe
from widemargin.training import RunResult
from widemargin.training import train as train_run


def train(
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="A recipe's name ('widemargin recipes' lists them) or a .toml file."),
    ],
    out: Annotated[Path, typer.Option(help="The run folder; the same command again goes on where it stopped.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a setting, e.g. emr.weight=0.3; 'none' removes it."),
    ] = None,
    max_time: Annotated[
        str | None,
        typer.Option(help="Stop at a step boundary with a checkpoint after 25m, 1h30m, ...", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    engine: EngineOption = "auto",
) -> None:
    """Train a recipe: progress on the screen, config, metrics and checkpoints in the run folder."""
    config = with_overrides(find_recipe(recipe).config, settings or [])
    limit = seconds("--max-time", max_time)
    console = Console(stderr=True)
    result = train_run(
        config, out=out, data_dir=data_dir, device=device, max_seconds=limit, console=console, engine=engine
    )
    console.print(_closing(result, config.epochs), highlight=False, soft_wrap=True)


def _closing(result: RunResult, epochs: int) -> str:
    if not result.finished:
        return f"time is out after {result.epoch} of {epochs} epochs; the same command goes on from {result.folder}"
    return f"done: {epochs} epochs in {result.folder}; next: widemargin evaluate {result.folder}"
