"""Which rows are best, what they are judged with later, and which jobs take longest."""

import json

import pytest

from widemargin.cli.main import run
from widemargin.experiments.best import best_rows, block_of
from widemargin.experiments.cost import cost
from widemargin.experiments.job import jobs
from widemargin.recipes import all_recipes
from widemargin.recipes.tables import all_tables, find_table


def test_blocks_are_the_methods_on_one_network():
    blocks = {name: list(dict.fromkeys(map(block_of, table.rows))) for name, table in all_tables().items()}
    methods = ("ST", "ST+LSoftmax", "ST+EMR", "AT", "AT+LSoftmax", "AT+EMR")
    assert blocks["table1"] == [("mnist-mlp", method) for method in methods]
    assert blocks["baselines"] == [("mnist-mlp", "ST"), ("cifar-cnn", "ST"), ("cifar-cnn", "AT")]
    assert len(blocks["approximation"]) == 8


def test_the_best_row_of_a_method_has_the_highest_mean_under_its_pgd(tmp_path):
    table = find_table("table2")
    work = jobs(table, table.rows, [0, 1], tmp_path, is_quick=False)
    scores = {"at-wd0.01": (50, 52), "at-wd0.001": (54, None), "at-wd0.0001": (90, 10), "at-emr": (20, 30)}
    for job in work:
        score = scores.get(job.row.recipe.name.split("/")[1], (None, None))[job.seed]
        if score is not None:
            job.folder.mkdir(parents=True)
            accuracy = {"fgsm": 99.0, "pgd10": score, "clean": 90.0}
            (job.folder / "result.json").write_text(json.dumps({"quick": False, "accuracy": accuracy}))
    assert [row.recipe.name for row in best_rows(table.rows, work)] == ["cifar-cnn/at-wd0.001", "cifar-cnn/at-emr"]
    assert best_rows(table.rows[:1], work) == []


@pytest.mark.parametrize(
    ("longer", "shorter"),
    [
        ("mnist-mlp/at-wd0.01", "mnist-mlp/st-wd0.01"),
        ("mnist-mlp/at-emr", "mnist-mlp/at-approximate-emr"),
        ("mnist-mlp/st-emr", "mnist-mlp/st-approximate-emr"),
        ("mnist-mlp/st-approximate-emr", "mnist-mlp/st-wd0.01"),
        ("cifar-cnn/st-wd0.01", "mnist-mlp/at-emr"),
        ("cifar-wrn/trades-emr", "cifar-resnet18/trades-emr"),
        ("cifar-resnet18/trades", "cifar-resnet18/at"),
        ("cifar-resnet18/at-igr", "cifar-resnet18/at"),
        ("cifar-wrn/at-mail-emr", "cifar-wrn/at-mail"),
    ],
)
def test_what_takes_longer_costs_more(longer, shorter):
    assert cost(all_recipes()[longer].config) > cost(all_recipes()[shorter].config)


def test_the_best_rows_are_judged_later_once_the_table_is_done(tmp_path, capsys):
    command = ["reproduce", "table1", "--quick", "--device", "cpu", "--rows", "st-wd0.01,at-wd0.01", "--out"]
    command += [str(tmp_path), "--judge-with", "autoattack,distance"]
    assert run([*command, "--max-time", "0.001s"]) == 0
    assert "time is out: 0 of 2 done" in capsys.readouterr().err
    assert run(command) == 0
    said = capsys.readouterr()
    assert "3/4 mnist-mlp/st-wd0.01, seed 0, distance" in said.err
    head, _, *rows = (tmp_path / "table1.md").read_text().splitlines()[-4:]
    assert head.endswith("| autoattack |")
    assert not any(row.endswith("| - / - |") for row in rows)
    for folder in ("mnist-mlp-st-wd0.01", "mnist-mlp-at-wd0.01"):
        reports = {
            name: json.loads((tmp_path / folder / "seed-0" / name / "report.json").read_text())
            for name in ("autoattack", "distance")
        }
        assert reports["autoattack"]["eps"] == [{"written": "0.1", "value": 0.1}]
        assert reports["distance"]["norm"] == "l2"
        assert reports["distance"]["distance"]["count"] > 0
    assert run(command) == 0
    assert capsys.readouterr().err.count("done before") == 6
