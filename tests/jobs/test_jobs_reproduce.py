"""Tables of the paper, made quick: trained, judged, compared, gone on with; and how a recipe is made small."""

import json
import re
from dataclasses import fields, is_dataclass

import pytest

from widemargin.attacks import PGD
from widemargin.cli import reproduce as reproduce_module
from widemargin.cli.main import run
from widemargin.config.toml import to_toml
from widemargin.jobs.job import smoke
from widemargin.objectives import Mail
from widemargin.recipes import all_recipes, find_recipe
from widemargin.recipes.tables import all_tables
from widemargin.schedules import Constant, OneCycle
from widemargin.training import step as steps_module

ROWS = {"table1": 16, "table2": 14, "table3": 14, "table4": 4, "approximation": 8, "resnet18": 6}
OURS = {"resnet18-emr": 5, "wrn-more": 3, "baselines": 4, "modern": 14, "equal-passes": 10}


def test_every_recipe_but_the_demo_and_a_variant_of_l_softmax_is_in_a_table():
    rows = {row.recipe.name for table in all_tables().values() for row in table.rows}
    assert {name for name in all_recipes() if not name.startswith("demo/") and "-m4-" not in name} == rows


def test_the_tables_have_the_papers_rows():
    assert {name: len(table.rows) for name, table in all_tables().items()} == ROWS | OURS


def rows_in(page):
    """How many rows the table has, without its header."""
    return len(re.findall(r"^\| (?!:?--)", page.read_text(), re.MULTILINE)) - 1


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        ("table2", "st-emr"),
        ("table3", None),
        ("table4", "cifar-resnet18/trades-emr-clean"),
        ("approximation", "mnist-mlp/at-approximate-emr"),
        ("wrn-more", None),
        ("modern", "wang2023-wrn28-10-emr,ikl,rodriguez-munoz-clean,rodriguez-munoz"),
    ],
)
def test_quick_rows_train_are_judged_and_compared(table, rows, tmp_path, capsys):
    command = ["reproduce", table, "--quick", "--out", str(tmp_path), "--device", "cpu"]
    assert run(command + (["--rows", rows] if rows else [])) == 0
    said = capsys.readouterr()
    assert "the numbers mean nothing" in said.err
    assert "the numbers mean nothing" in said.out
    wanted = rows.split(",") if rows else [row.recipe.name for row in all_tables()[table].rows]
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*/seed-0/result.json")]
    assert len(results) == len(wanted)
    assert all(name.split("/")[-1] in said.out for name in wanted), "a row's name is cut"
    for result in results:
        assert result["quick"] is True
        assert result["config"]["epochs"] == 2
        assert all(0 <= value <= 100 for value in result["accuracy"].values())
        assert ("margin_test" in result) == (table in ("table1", "table2", "approximation"))
    assert rows_in(tmp_path / f"{table}.md") == len(wanted)


def test_several_tables_share_what_they_have_in_common(tmp_path, capsys):
    command = ["reproduce", "table1,approximation", "--quick", "--device", "cpu", "--out", str(tmp_path)]
    assert run([*command, "--rows", "mnist-mlp/st-emr,st-wd0.01,mnist-mlp/st-approximate-emr"]) == 0
    assert "1/3 mnist-mlp/st-emr, seed 0" in capsys.readouterr().err
    assert len(list(tmp_path.glob("*/seed-0/result.json"))) == 3
    assert [rows_in(tmp_path / f"{name}.md") for name in ("table1", "approximation")] == [2, 2]
    command += ["--max-time", "0.001s"]
    run([*command, "--rows", "mnist-mlp/at-approximate-emr,cifar-cnn/at-approximate-emr"])
    said = capsys.readouterr().out
    assert "mnist-mlp/at-approximate-emr" in said  # of two networks: the network before the name
    assert "cifar-cnn/at-approximate-emr" in said
    assert run([*command, "--rows", "st-emr,nonsense"]) == 2
    assert "--rows: 'nonsense' is not in this table; its rows are mnist-mlp/st-wd0.1," in capsys.readouterr().err


def test_what_one_table_has_anyway_is_judged_for_the_other(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(reproduce_module, "run_in_turn", lambda tasks, *_, **__: begun.extend(tasks))
    monkeypatch.setattr(reproduce_module.Task, "done", True)
    monkeypatch.setattr(reproduce_module, "_report", lambda *_: None)
    command = ["reproduce", "table1,resnet18", "--quick", "--device", "cpu", "--out", str(tmp_path)]
    rows = ["--rows", "mnist-mlp/at-emr,cifar-resnet18/at", "--judge-rows", "all"]
    assert run([*command, *rows, "--judge-with", "autoattack"]) == 0
    names = [(task.job.row.recipe.name, task.judgment) for task in begun]
    assert names == [("mnist-mlp/at-emr", None), ("cifar-resnet18/at", None), ("mnist-mlp/at-emr", "autoattack")]


class TestGoingOn:
    """Three rows, one of them cut off in the middle."""

    COMMAND = ("reproduce", "resnet18", "--quick", "--rows", "at,at-igr,at-emr", "--device", "cpu")

    def test_after_an_interruption_done_rows_are_skipped_and_the_rest_is_the_same(self, tmp_path, monkeypatch, capsys):
        whole, cut = tmp_path / "whole", tmp_path / "cut"
        assert run([*self.COMMAND, "--out", str(whole)]) == 0
        real, steps = steps_module.train_step, iter(range(100))

        def interrupted(*args, **options):
            if next(steps) == 6:  # four steps a row: in the second row
                raise KeyboardInterrupt
            return real(*args, **options)

        monkeypatch.setattr(steps_module, "train_step", interrupted)
        assert run([*self.COMMAND, "--out", str(cut)]) == 130
        monkeypatch.undo()
        capsys.readouterr()
        assert run([*self.COMMAND, "--out", str(cut)]) == 0
        assert capsys.readouterr().err.count("done before") == 1
        for name in ("at", "at-igr", "at-emr"):
            ours, theirs = (
                json.loads((out / f"cifar-resnet18-{name}" / "seed-0" / "result.json").read_text())
                for out in (whole, cut)
            )
            assert ours["accuracy"] == theirs["accuracy"]

    def test_seeds_are_averaged(self, tmp_path, capsys):
        command = ["reproduce", "resnet18", "--quick", "--rows", "at", "--device", "cpu", "--seeds", "0,1"]
        assert run([*command, "--out", str(tmp_path)]) == 0
        assert len(list(tmp_path.glob("cifar-resnet18-at/seed-*/result.json"))) == 2

    def test_quick_and_full_results_are_not_mixed(self, tmp_path, capsys):
        folder = tmp_path / "cifar-resnet18-at" / "seed-0"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps({"quick": False, "accuracy": {}}))
        assert run(["reproduce", "resnet18", "--quick", "--rows", "at", "--out", str(tmp_path)]) == 2
        assert "choose another --out" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("part", "before", "code"),
        [("margin", 1, 0), ("every", 7, 0), ("margin", 4, 2)],  # as it is now, what is only watched, another head
    )
    def test_a_job_of_what_the_recipe_was_before_is_not_taken_for_one_of_it(self, part, before, code, tmp_path, capsys):
        name, numbers = "at-lsoftmax-wd0.01", {"clean": 50.61, "pgd20": 49.48}
        config = re.sub(
            rf"\n{part} = \d+\n", f"\n{part} = {before}\n", to_toml(find_recipe(f"mnist-mlp/{name}").config)
        )
        job = tmp_path / f"mnist-mlp-{name}" / "seed-0"
        (job / "run").mkdir(parents=True)
        (job / "run" / "config.toml").write_text(config)
        margins = {name: {"mean": 2.34} for name in ("margin_train", "margin_test")}
        (job / "result.json").write_text(json.dumps({"quick": False, "accuracy": numbers} | margins))
        assert run(["reproduce", "table1", "--rows", name, "--device", "cpu", "--out", str(tmp_path)]) == code
        said = capsys.readouterr()
        assert ("50.61" in said.out) == (code == 0)
        assert ("as another version defines it (head.margin: 1 here, 4 there); choose another" in said.err) == bool(
            code
        )

    def test_time_is_out(self, tmp_path, capsys):
        assert run([*self.COMMAND, "--out", str(tmp_path), "--max-time", "0.001s"]) == 0
        assert "time is out" in capsys.readouterr().err


MISTAKES = {
    "table9": "unknown table 'table9'; known are table1",
    "table1,nonsense": "unknown table 'nonsense'",
    "table1 --rows nope": "'nope' is not in this table; its rows are mnist-mlp/st-wd0.1",
    "table1 --seeds 0,x": "--seeds: '0,x'",
    "table1 --seeds 1,1": "--seeds: '1,1'",
    "table1 --workers 0": "--workers must be at least 1, got 0",
    "table1 --judge-with guessing": "--judge-with: 'guessing' is unknown; known are autoattack, strongest",
    "table1 --judge-rows best": "--judge-rows has no effect without --judge-with",
    "table1 --judge-with autoattack --judge-rows nope": "--judge-rows: 'nope' is not in this table",
    "resnet18 --judge-with autoattack": "resnet18 reports it for every row",
    "table1 --judge-with autoattack-8-255": "is for rows on cifar10 at linf 0.031, but mnist-mlp/st-wd0.1 is on mnist",
    "approximation --judge-with autoattack-8-255": "but mnist-mlp/st-emr is on mnist at linf 0.1; choose others with",
    "baselines --judge-with autoattack-8-255 --judge-rows mnist-mlp/st-wd0": "but mnist-mlp/st-wd0 is on mnist",
}


@pytest.mark.parametrize("given", MISTAKES)
def test_mistakes_are_refused_before_anything_is_trained(given, refused, tmp_path):
    assert MISTAKES[given] in refused("reproduce", *given.split(), "--quick", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


PUBLISHED = [name for name in all_recipes() if not name.startswith("demo/")]


def parts(value):
    yield value
    if is_dataclass(value):
        for field in fields(value):
            yield from parts(getattr(value, field.name))


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_recipe_is_made_small_and_keeps_its_methods(name):
    full = all_recipes()[name].config
    small = smoke(full)
    assert (small.epochs, small.data.train_limit, small.data.test_limit) == (2, 64, 40)
    assert small.data.name == f"{full.data.name}-embedded"
    assert all(part.steps <= 2 for part in parts(small) if isinstance(part, PGD))
    for part in ("objective", "head", "emr", "igr", "teacher", "averaging", "model"):
        assert type(getattr(small, part)) is type(getattr(full, part))
    assert bool(small.data.held_out) == bool(full.data.held_out)
    if small.emr is not None:
        assert (small.emr.kind, small.emr.weight, small.emr.temperature) == (
            full.emr.kind,
            full.emr.weight,
            full.emr.temperature,
        )
    for long, short in ((full.optimizer, small.optimizer), (full.emr, small.emr)):
        if long is not None and not isinstance(long.schedule, Constant | OneCycle):  # drops as often as in full
            assert short.schedule(2 - 1e-6) == pytest.approx(long.schedule(full.epochs - 1e-6), abs=1e-5)
    if isinstance(small.objective, Mail):  # which passes through both phases
        assert bool(small.objective.burn_in) == bool(full.objective.burn_in)
        assert small.objective.burn_in < small.epochs
