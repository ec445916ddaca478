"""``widemargin recipes``: what can be trained, and what the paper reports for it."""

from typing import Annotated

import typer

from widemargin.config.toml import to_toml
from widemargin.core.screen import console_for, say, show_table
from widemargin.recipes import all_recipes, find_recipe
from widemargin.recipes.recipe import Recipe

recipes = typer.Typer(help="List the recipes; 'recipes show NAME' prints one.", invoke_without_command=True)


@recipes.callback()
def list_recipes(context: typer.Context) -> None:
    """List every recipe with the published numbers of its row."""
    if context.invoked_subcommand is not None:
        return
    rows = [(recipe.name, _published(recipe) or f"- {recipe.note}".rstrip(" -")) for recipe in all_recipes().values()]
    show_table(console_for(), ("recipe", "published results (the paper's row)"), rows, left=2, title="recipes")


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
    return f"{recipe.published.row}: {', '.join(parts)}"
