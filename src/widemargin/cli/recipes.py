"""``widemargin recipes``: what can be trained, what a run of it costs, and what is published for it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from widemargin.cli.options import Json
from widemargin.config.run import RunConfig
from widemargin.config.toml import to_toml
from widemargin.core.screen import console_for, say, show_table
from widemargin.errors import InputError
from widemargin.jobs.cost import run_passes
from widemargin.models import MODELS
from widemargin.recipes import all_recipes, find_recipe
from widemargin.recipes.recipe import Recipe
from widemargin.report.wording import column_title

HELP = "List the recipes: data, epochs, what a run costs, published numbers; 'recipes show NAME' prints one."
recipes = typer.Typer(help=HELP, invoke_without_command=True)
PASSES = (
    "passes: over the network for each training image in a whole run; a forward pass, a backward pass and the "
    "gradients of the weights count one each. What is watched meanwhile and the judgment are not counted."
)
PUBLISHED = (
    "clean, robust: published accuracies, robust under the strongest attack there; 'recipes show NAME' says more"
)


@recipes.callback()
def list_recipes(
    context: typer.Context,
    data: Annotated[str | None, typer.Option(help="Only of data sets whose name has this in it.")] = None,
    model: Annotated[str | None, typer.Option(help="Only of models whose name has this in it, e.g. wrn.")] = None,
    match: Annotated[str | None, typer.Option(help="Only recipes whose name or note has this in it.")] = None,
    hours: Annotated[
        bool, typer.Option("--hours", help="Estimate the hours of training here: times a step of each network.")
    ] = False,
    device: Annotated[str, typer.Option(help="For --hours: auto, cpu, cuda or cuda:1.")] = "auto",
    as_json: Json = False,
) -> None:
    """List the recipes: data, epochs, what a run costs, and the published numbers of its row."""
    if context.invoked_subcommand is not None:
        if any((data, model, match, hours, as_json)):
            raise InputError("recipes show prints one recipe: options of the list have no effect on it; leave them out")
        return
    if device != "auto" and not hours:
        raise InputError("--device has no effect without --hours; add it, or leave --device out")
    chosen = _chosen(data, model, match)
    spent, where = _hours(chosen, device) if hours else ([None] * len(chosen), None)
    if as_json:
        entries = [_entry(recipe, time, where) for recipe, time in zip(chosen, spent, strict=True)]
        typer.echo(json.dumps(entries, indent=2))
    else:
        _show(chosen, spent, where)


def _chosen(data: str | None, model: str | None, match: str | None) -> list[Recipe]:
    """Those that every filter lets through; one that lets none through is refused with what there is."""
    found = list(all_recipes().values())
    for option, text, names in (
        ("--data", data, lambda recipe: [recipe.config.data.name]),
        ("--model", model, lambda recipe: [_model(recipe.config)]),
        ("--match", match, lambda recipe: [recipe.name, recipe.note]),
    ):
        if text is None:
            continue
        fitting = [recipe for recipe in found if any(text.lower() in name.lower() for name in names(recipe))]
        if not fitting:
            there = sorted({names(recipe)[0] for recipe in found})
            raise InputError(f"{option}: no recipe has {text!r}; there are {', '.join(there)}")
        found = fitting
    return found


def _model(config: RunConfig) -> str:
    """Its name in the list of models."""
    return {made: name for name, made in MODELS.items()}.get(type(config.model), type(config.model).__name__)


def _hours(chosen: Sequence[Recipe], device: str) -> tuple[list[float | None], str]:
    """Of each recipe, and the machine they are of."""
    from widemargin.core.device import choose_device, hardware_name  # here: the list itself trains nothing
    from widemargin.jobs.speed import Stopwatch

    console, place = console_for(stderr=True), choose_device(device)
    stopwatch = Stopwatch(place, lambda text: say(console, text))
    return [stopwatch.hours(recipe.config) for recipe in chosen], hardware_name(place)


def _entry(recipe: Recipe, hours: float | None, where: str | None) -> dict[str, Any]:
    config, numbers = recipe.config, recipe.published
    return {
        "name": recipe.name,
        "data": config.data.name,
        "extra": config.data.extra,
        "model": _model(config),
        "epochs": config.epochs,
        "batch_size": config.batch_size,
        "weight_decay": float(config.optimizer.weight_decay),
        "passes": run_passes(config),
        "hours": None if hours is None else float(f"{hours:.3g}"),
        "hours_on": where,
        "published": None
        if numbers is None
        else {"table": numbers.table, "row": numbers.row, "source": numbers.source, "results": numbers.results},
        "averages_of": recipe.averages_of or None,
        "starts_from": recipe.starts_from or None,
        "note": recipe.note,
    }


@dataclass(frozen=True)
class Column:
    """A column of the list; the one of the lowest rank is the first to go where the screen is too narrow."""

    title: str
    cells: list[str]
    rank: int

    @property
    def width(self) -> int:
        """With the space between two."""
        return 2 + max(len(text) for text in (self.title, *self.cells))


def _show(chosen: Sequence[Recipe], spent: Sequence[float | None], where: str | None) -> None:
    console, configs = console_for(), [recipe.config for recipe in chosen]
    robust = [_robust(recipe) for recipe in chosen]
    columns = [
        Column("recipe", [recipe.name for recipe in chosen], 9),
        Column("data", [config.data.name for config in configs], 7),
        Column("model", [_model(config) for config in configs], 2),
        Column("epochs", [str(config.epochs) for config in configs], 6),
        Column("passes", [f"{run_passes(config)['model']:,.0f}" for config in configs], 8),
        Column("hours", ["-" if time is None else _figures(time) for time in spent], 5 if where else 0),
        Column("clean", [_number(recipe, "clean") for recipe in chosen], 3),
        Column("robust", [number for number, _ in robust], 4),
        Column("under", [attack for _, attack in robust], 1),
    ]
    columns = [column for column in columns if column.rank]
    left_out: list[str] = []
    while sum(column.width for column in columns) > console.width:
        least = min(columns, key=lambda column: column.rank)
        columns.remove(least)
        left_out.append(least.title)
    notes = [PASSES, PUBLISHED]
    if where:
        notes.append(
            f"hours: an estimate for {where}: a small step of each network timed just now, times the passes, not "
            "compiled; training alone"
        )
    if left_out:
        notes.append(f"too narrow for {', '.join(reversed(left_out))}: a wider screen, a pipe or --json has them")
    rows = list(zip(*(column.cells for column in columns), strict=True))
    left = sum(column.title in ("recipe", "data", "model") for column in columns)
    show_table(console, [column.title for column in columns], rows, left=left, notes=notes, plain=True)


def _robust(recipe: Recipe) -> tuple[str, str]:
    """The accuracy under the strongest published attack, and that attack."""
    results = {} if recipe.published is None else recipe.published.results
    attacks = [name for name in results if name != "clean" and not name.startswith("margin")]
    return (_number(recipe, attacks[-1]), column_title(attacks[-1])) if attacks else ("-", "")


def _number(recipe: Recipe, column: str) -> str:
    """To two places; of a mean with its deviation the mean."""
    value = None if recipe.published is None else recipe.published.results.get(column)
    return "-" if value is None else f"{value[0] if isinstance(value, list) else value:.2f}"


def _figures(hours: float) -> str:
    """Two figures, or whole hours."""
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2g}"


@recipes.command("show")
def show(name: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's name, or a .toml file.")]) -> None:
    """Print a recipe as TOML, with the published numbers beside it."""
    recipe, console = find_recipe(name), console_for()
    for line in (_published(recipe), recipe.note):
        if line:
            say(console, f"# {line}")
    for line in to_toml(recipe.config).splitlines():
        say(console, line)


def _published(recipe: Recipe) -> str:
    if recipe.published is None:
        return ""
    results = recipe.published.results.items()
    parts = [f"{key} {'±'.join(map(str, value)) if isinstance(value, list) else value}" for key, value in results]
    source = f" ({recipe.published.source})" if recipe.published.source else ""
    return f"{recipe.published.row}: {', '.join(parts)}{source}"
