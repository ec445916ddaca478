"""Every recipe is complete, readable as TOML, and stands beside the row of the paper it is to be held against."""

import dataclasses
import json
import tomllib
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from widemargin import InputError
from widemargin.cli.main import run
from widemargin.config.toml import from_dict, read_toml, to_dict, to_toml
from widemargin.data import DATASETS
from widemargin.models import build_model
from widemargin.recipes import all_recipes, find_recipe, tables
from widemargin.recipes.recipe import published
from widemargin.recipes.tables import all_tables

RECIPES = all_recipes()
TABLES = json.loads(files("widemargin.recipes").joinpath("published.json").read_text("utf-8"))
PUBLISHED = {name: recipe for name, recipe in RECIPES.items() if recipe.published is not None}


@pytest.mark.parametrize("folder", ["rows", "tried"])
def test_the_configurations_of_published_results_still_load(folder):
    for path in (Path(__file__).parents[2] / "results" / folder).rglob("config.toml"):
        assert read_toml(path).data.name in DATASETS


@pytest.mark.parametrize("name", RECIPES)
def test_show_prints_toml_with_the_published_numbers_as_comments(name, capsys):
    assert run(["recipes", "show", name]) == 0
    text = capsys.readouterr().out
    assert from_dict(tomllib.loads(text)) == RECIPES[name].config
    recipe = RECIPES[name]
    comments = [line for line in text.splitlines() if line.startswith("# ")]
    assert len(comments) == (recipe.published is not None) + bool(recipe.note)
    if recipe.published is not None:
        assert comments[0].startswith(f"# {recipe.published.row}: ")
        for key, value in recipe.published.results.items():
            shown = "±".join(map(str, value)) if isinstance(value, list) else str(value)
            assert f"{key} {shown}" in comments[0]


@pytest.mark.parametrize("name", RECIPES)
def test_names_and_data_are_known(name):
    assert RECIPES[name].name == name == RECIPES[name].config.name
    assert RECIPES[name].config.data.name in DATASETS
    assert name.count("/") == 1
    assert name == name.lower()


def test_names_are_unique_and_so_are_configurations():
    tables = [
        json.dumps(to_dict(dataclasses.replace(recipe.config, name="")), sort_keys=True) for recipe in RECIPES.values()
    ]
    repeated = [table for table, count in Counter(tables).items() if count > 1]
    assert repeated == []


def test_every_model_can_be_built():
    shapes = {"mnist": (1, 28, 28), "mnist-embedded": (1, 28, 28), "cifar10": (3, 32, 32)}
    sizes = {}
    for recipe in RECIPES.values():
        config, shape = recipe.config, shapes[recipe.config.data.name]
        if (config.model, shape) not in sizes:
            model = build_model(config.model, image_shape=shape, num_classes=10, seed=0)
            sizes[config.model, shape] = sum(parameter.numel() for parameter in model.parameters())
    assert {3_962_890, 276_426, 11_173_962, 45_901_914} <= set(sizes.values())


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_row_exists_and_its_numbers_come_from_the_file(name):
    recipe = PUBLISHED[name]
    rows = [row for row in TABLES[recipe.published.table]["rows"] if row["row"] == recipe.published.row]
    results = recipe.published.results
    assert len(results) >= 2
    matching = [row for row in rows if all(row.get(key) == value for key, value in results.items())]
    assert len(matching) == 1, "the numbers differ from published.json, or two rows have the same"
    (row,) = matching
    config = recipe.config
    if "weight_decay" in row:
        assert config.optimizer.weight_decay == row["weight_decay"]
    if row.get("emr_weight") is not None:
        assert config.emr is not None
        assert config.emr.weight == row["emr_weight"]


def test_no_two_recipes_claim_the_same_published_numbers():
    claims = Counter(json.dumps(recipe.published.results) + recipe.published.table for recipe in PUBLISHED.values())
    assert max(claims.values()) == 1


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_published_result_is_retyped_in_the_code(name):
    """A result such as 87.56 stands in published.json and nowhere else."""
    sources = [path for path in files("widemargin.recipes").iterdir() if path.name.endswith(".py")]
    code = "\n".join(path.read_text("utf-8") for path in sources)
    numbers = [value for value in RECIPES[name].published.results.values() if isinstance(value, float)]
    assert not [number for number in numbers if f"{number:.2f}" in code]


def test_a_row_that_is_not_there_or_not_the_only_one():
    with pytest.raises(LookupError, match="0 rows of table1_mnist_mlp match"):
        published("table1_mnist_mlp", "ST+WISHES")
    with pytest.raises(LookupError, match="4 rows of table1_mnist_mlp match"):
        published("table1_mnist_mlp", "ST")


def test_the_list_of_recipes_names_each_one(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert run(["recipes"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in RECIPES)
    assert "87.56" in text


def test_finding_a_recipe(tmp_path):
    (tmp_path / "copy.toml").write_text(to_toml(RECIPES["mnist-mlp/st-emr"].config))
    assert find_recipe(str(tmp_path / "copy.toml")).config == RECIPES["mnist-mlp/st-emr"].config
    assert find_recipe("mnist-mlp/st-emr") is RECIPES["mnist-mlp/st-emr"]
    with pytest.raises(InputError, match=r"unknown recipe 'mnist-mlp/st-em'; did you mean 'mnist-mlp/st-emr'\?"):
        find_recipe("mnist-mlp/st-em")
    with pytest.raises(InputError, match=r"unknown recipe 'qqq'; 'widemargin recipes' lists them"):
        find_recipe("qqq")


def test_a_row_of_a_paper_table_has_published_numbers(monkeypatch):
    bare = dataclasses.replace(RECIPES["mnist-mlp/st-emr"], published=None)
    monkeypatch.setattr(tables, "all_recipes", lambda: RECIPES | {bare.name: bare})
    with pytest.raises(LookupError, match="mnist-mlp/st-emr has no published numbers"):
        tables._published("mnist-mlp", ("st-wd0.1", "st-emr"))


def test_a_row_has_the_numbers_that_its_recipe_has_in_the_same_table():
    rows = [row for table in all_tables().values() for row in table.rows]
    same = [row for row in rows if row.recipe.published and row.recipe.published.table == row.published.table]
    assert {"table1", "table2", "table3", "table4", "approximation", "resnet18"} <= {
        name for name, table in all_tables().items() if any(row in same for row in table.rows)
    }
    assert [row.recipe.name for row in same if row.published != row.recipe.published] == []


@pytest.mark.parametrize("name", all_tables())
def test_no_two_rows_of_a_table_have_the_same_numbers(name):
    numbers = [json.dumps(row.published.results) for row in all_tables()[name].rows if row.published.results]
    assert len(set(numbers)) == len(numbers)
