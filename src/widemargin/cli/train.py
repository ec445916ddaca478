"""``widemargin train``: run a recipe, or go on with the run in a folder."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from widemargin.cli.options import (
    IMPORTED,
    DataDir,
    Device,
    EngineOption,
    Json,
    OnNonfinite,
    Workers,
    listed,
    note_unreached,
    seconds,
)
from widemargin.config.toml import with_overrides
from widemargin.core.child_process import UNFINISHED
from widemargin.core.screen import console_for, say
from widemargin.core.signals import Stop
from widemargin.distributed.group import is_first_process
from widemargin.integrations import make_tracker
from widemargin.recipes import find_recipe
from widemargin.training.trainer import RunResult
from widemargin.training.trainer import train as train_run


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
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="In place of the recipe's: one of ours, timm:NAME, hf:NAME or torchvision:NAME.",
            show_default=False,
        ),
    ] = None,
    init_from: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="WEIGHTS",
            help="Begin with these weights: a run folder, a checkpoint, or a public file; the same as init_from.",
            show_default=False,
        ),
    ] = None,
    max_time: Annotated[
        str | None,
        typer.Option(help="Stop at a step boundary with a checkpoint after 25m, 1h30m, ...", show_default=False),
    ] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    engine: EngineOption = "auto",
    on_nonfinite: OnNonfinite = "stop",
    checkpoint_every: Annotated[
        int | None,
        typer.Option(metavar="STEPS", help="Also save a checkpoint every STEPS steps.", show_default=False),
    ] = None,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="On a GPU: the same bits every time, and after a resume; slower."),
    ] = False,
    workers: Workers = None,
    log: Annotated[
        str | None,
        typer.Option(metavar="TRACKER", help="tensorboard, wandb or mlflow; several: a,b.", show_default=False),
    ] = None,
    sync_bn: Annotated[
        bool | None,
        typer.Option(
            "--sync-bn/--no-sync-bn",
            help="Under torchrun: batch norm over the whole batch (the default), or over each process's part.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a recipe: progress on the screen, config, metrics and checkpoints in the run folder.

    SIGTERM, Ctrl-C and --max-time stop at a step boundary with a checkpoint; a second Ctrl-C stops at once.

    Exit codes: 0 only when the run is done; 75 when it stopped before its end and the same command goes on; 130 after a
    second Ctrl-C; 2 when something has to be put right first.

    Started by torchrun, several processes share every batch: torchrun --nproc-per-node 8 -m widemargin train ...
    """
    config = with_overrides(find_recipe(recipe).config, [*_model_settings(model), *(settings or [])])
    if init_from is not None:
        config = replace(config, init_from=str(init_from))
    limit = seconds("--max-time", max_time)
    console, stop = console_for(stderr=True, quiet=not is_first_process()), Stop()
    note_unreached([config], console)
    trackers = [make_tracker(name, out) for name in listed(log or "")]
    result = train_run(
        config,
        out=out,
        data_dir=data_dir,
        device=device,
        max_seconds=limit,
        console=console,
        engine=engine,
        on_nonfinite=on_nonfinite,
        stop=stop,
        sync_bn=sync_bn,
        checkpoint_every=checkpoint_every,
        deterministic=deterministic,
        workers=workers,
        trackers=trackers,
    )
    say(console, _closing(result, config.epochs, stop))
    if as_json and is_first_process():
        typer.echo(json.dumps(_record(result, config.epochs, stop), indent=2))
    if not result.finished:
        raise typer.Exit(UNFINISHED)


def _model_settings(model: str | None) -> list[str]:
    """As settings: a library's name has a colon before the name of the model."""
    if model is None:
        return []
    prefix, colon, name = model.partition(":")
    return [f"model.kind={prefix}", *([f"model.name={json.dumps(name)}"] if colon else [])]


def _stopped_by(result: RunResult, stop: Stop) -> str | None:
    if result.finished:
        return None
    return "time" if stop.received is None else stop.received.name


def _record(result: RunResult, epochs: int, stop: Stop) -> dict[str, Any]:
    """What a program wants to know of how it ended."""
    return {
        "folder": str(result.folder),
        "finished": result.finished,
        "stopped_by": _stopped_by(result, stop),
        "epoch": result.epoch,
        "epochs": epochs,
        "step": result.step,
        "last": result.metrics[-1] if result.metrics else None,
    }


def _closing(result: RunResult, epochs: int, stop: Stop) -> str:
    if not result.finished:
        by = _stopped_by(result, stop)
        why = "time is out" if by == "time" else f"stopped by {by}"
        inside = f" and {result.step} step{'s' * (result.step > 1)}" if result.step else ""
        return f"{why} after {result.epoch} of {epochs} epochs{inside}; the same command goes on from {result.folder}"
    imports = [part for name in IMPORTED for part in ("--import", name)]  # which this run needs
    target = f"./{result.folder}" if str(result.folder).startswith("-") else str(result.folder)
    command = shlex.join(["widemargin", *imports, "evaluate", target])
    return f"done: {epochs} epochs in {result.folder}; next: {command}"
