"""``widemargin recipes``: what can be trained, and what the paper reports for it."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from widemargin.config_files import to_toml
from widemargin.recipes import Recipe, all_recipes, find_recipe

recipes_app = typer.Typer(help="List the recipes; 'recipes show NAME' prints one.", invoke_without_command=True)


@recipes_app.callback()
def recipes(context: typer.Context) -> None:
    """List every recipe with the published numbers of its row."""
    if context.invoked_subcommand is not None:
        return
    table = Table("recipe", "published results (the paper's row)", title="recipes")
    for recipe in all_recipes().values():
        table.add_row(recipe.name, _published(recipe) or f"- {recipe.note}".rstrip(" -"))
    Console().print(table)


@recipes_app.command("show")
def show(name: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's name, or a .toml file.")]) -> None:
    """Print a recipe as TOML, with the published numbers beside it."""
    recipe = find_recipe(name)
    for line in (_published(recipe), recipe.note):
        if line:
            typer.echo(f"# {line}")
    typer.echo(to_toml(recipe.config), nl=False)


def _published(recipe: Recipe) -> str:
    if recipe.published is None:
        return ""
    parts = [f"{key} {_number(value)}" for key, value in recipe.published.results.items()]
    return f"{recipe.published.row}: {', '.join(parts)}"


def _number(value: object) -> str:
    return f"{value[0]}±{value[1]}" if isinstance(value, list) else str(value)
