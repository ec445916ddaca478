"""Recipes: complete run configurations, one for each published row, beside the published numbers."""

from widemargin.recipes.catalog import all_recipes, find_recipe
from widemargin.recipes.recipe import Recipe

__all__ = ["Recipe", "all_recipes", "find_recipe"]
