"""The study spends the same number of passes in every row, and its rows differ in nothing that they do not say."""

from dataclasses import replace

import pytest

from widemargin.config.toml import from_dict, to_dict
from widemargin.jobs.cost import run_passes
from widemargin.recipes import all_recipes
from widemargin.recipes.equal_passes import BEFORE, BUDGET, recipes
from widemargin.recipes.tables import find_table
from widemargin.schedules import Steps

STUDY = {recipe.name: recipe for recipe in recipes()}


@pytest.mark.parametrize("name", [name for name in STUDY if name != BEFORE])
def test_every_row_takes_the_budget(name):
    recipe = STUDY[name]
    passes = run_passes(recipe.config)["model"]
    if recipe.starts_from:
        passes += run_passes(STUDY[recipe.starts_from].config)["model"]
    assert passes == pytest.approx(BUDGET, rel=0.05)


@pytest.mark.parametrize("recipe", STUDY.values(), ids=STUDY)
def test_rows_are_those_of_the_table_and_differ_in_the_method_alone(recipe):
    config = recipe.config
    assert from_dict(to_dict(config)) == config
    first = all_recipes()["mnist-mlp/st-wd0.001"].config
    like = replace(config.optimizer, schedule=first.optimizer.schedule)
    assert like == first.optimizer
    assert config.optimizer.schedule == Steps(milestones=(0.6 * config.epochs,))
    same = ("batch_size", "data", "model", "head", "evaluation", "averaging", "teacher")
    assert all(getattr(config, field) == getattr(first, field) for field in same)


def test_the_table_has_every_row():
    assert [row.recipe.name for row in find_table("equal-passes").rows] == list(STUDY)
