"""Recipes: complete run configurations by name, one for each published row, beside the published numbers."""

import difflib
from functools import cache
from pathlib import Path

from widemargin.config.toml import read_toml
from widemargin.errors import InputError
from widemargin.recipes import cifar_cnn, cifar_resnet18, cifar_wrn, demo, equal_passes, mnist_mlp, modern
from widemargin.recipes.recipe import Recipe


@cache
def all_recipes() -> dict[str, Recipe]:
    """Name -> recipe, in the order of the paper, those that are not in it last."""
    modules = (demo, mnist_mlp, cifar_cnn, cifar_resnet18, cifar_wrn, modern, equal_passes)
    return {recipe.name: recipe for module in modules for recipe in module.recipes()}


def find_recipe(name: str) -> Recipe:
    """A recipe by name, or a TOML file by path."""
    if name in all_recipes():
        return all_recipes()[name]
    if name.endswith(".toml"):
        return Recipe(config=read_toml(Path(name)))
    near = difflib.get_close_matches(name, list(all_recipes()), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise InputError(f"unknown recipe {name!r}; {hint}'widemargin recipes' lists them, and a path to a .toml works too")


__all__ = ["Recipe", "all_recipes", "find_recipe"]
