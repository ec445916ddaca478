"""A row whose weights another row's run keeps beside its own: trained once, judged twice."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from paper.__main__ import PAPER

from widemargin.cli.main import run
from widemargin.config.checkpoint import load_checkpoint
from widemargin.config.toml import read_toml, to_dict
from widemargin.evaluation.target import load_target
from widemargin.jobs.job import choose_rows, jobs
from widemargin.jobs.judging import _averaged_line, adopt_averaged
from widemargin.recipes.tables import find_table
from widemargin.training import RunResult, train
from widemargin.training.run_folder import read_metrics

PLAIN, AVERAGED = "at-wd0.0005", "at-wd0.0005-averaged"
TIMES = ("seconds", "watch_seconds")


def reproduce(out: Path, *rows: str) -> int:
    command = ["reproduce", "resnet18-emr", "--quick", "--device", "cpu", "--out", str(out)]
    return run([*command, "--rows", ",".join(rows)])


def job_of(out, row, *, quick=True):
    table = find_table("resnet18-emr")
    (job,) = jobs(table, choose_rows(table, [row]), [0], out, is_quick=quick)
    return job


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    assert reproduce(folder, PLAIN, AVERAGED) == 0
    return folder


@pytest.fixture(scope="module")
def alone(out):
    """The averaged row trained by itself."""
    folder = out / "alone"
    train(job_of(out, AVERAGED).config, out=folder)
    return folder


def test_both_rows_are_judged_and_one_is_trained(out):
    results = {name: json.loads((job_of(out, name).folder / "result.json").read_text()) for name in (PLAIN, AVERAGED)}
    assert {result["trained_as"] for result in results.values()} == {f"cifar-resnet18/{PLAIN}"}
    assert results[AVERAGED]["recipe"] == f"cifar-resnet18/{AVERAGED}"
    assert results[AVERAGED]["config"]["averaging"] == {"decay": 0.999, "beside": False}
    assert "weights averaged with decay 0.999" in results[AVERAGED]["selection"]
    assert "averaged" not in results[PLAIN]["selection"]
    assert results[AVERAGED]["training_seconds"] == results[PLAIN]["training_seconds"]


def test_the_folder_is_that_of_a_run_of_its_own(out, alone):
    job = job_of(out, AVERAGED)
    assert read_toml(job.folder / "run" / "config.toml") == read_toml(alone / "config.toml") == job.config
    ours, theirs = (load_target(folder) for folder in (job.folder / "run", alone))
    assert ours.path.name == theirs.path.name == "best.safetensors"
    weights, expected = ours.model.state_dict(), theirs.model.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in weights.items())
    lines = [
        [{key: value for key, value in line.items() if key not in TIMES} for line in read_metrics(folder)]
        for folder in (job.folder / "run", alone)
    ]
    assert lines[0] == lines[1]
    last = load_checkpoint(job.folder / "run" / "last.safetensors")
    report = json.loads((job.folder / "evaluation" / "report.json").read_text())
    assert report["name"] == f"cifar-resnet18/{AVERAGED}"
    assert report["config"] == last.description.config == to_dict(job.config)
    assert last.training == {}


def test_its_alarms_are_those_of_its_own_measurements(tmp_path):
    """The trained weights overfit, the averaged ones do not; or the other way round."""
    job = job_of(tmp_path, AVERAGED, quick=False)
    falling, rising = [50.0, 50, 42, 42, 42, 42, 42, 42, 42, 42], [46.0 + i for i in range(10)]
    for trained, averaged, expected in ((falling, rising, []), (rising, falling, ["robust-overfitting"])):
        lines = [
            {"epoch": i + 1, "train_accuracy": 40.0 + i, "validation_robust": a, "averaged_validation_robust": b}
            for i, (a, b) in enumerate(zip(trained, averaged, strict=True))
        ]
        lines[8]["alarms"] = ["robust-overfitting"]
        run = RunResult(tmp_path / "run", finished=True, epoch=10, metrics=lines)
        adopted = adopt_averaged(job, run).metrics
        assert [name for line in adopted for name in line.get("alarms", [])] == expected
        assert [line["validation_robust"] for line in adopted] == averaged
        assert read_metrics(job.folder / "run") == adopted


def test_it_can_come_first_and_alone(out, tmp_path):
    assert reproduce(tmp_path, AVERAGED) == 0
    assert not (job_of(tmp_path, PLAIN).folder / "result.json").exists()
    ours, before = (load_target(job_of(folder, AVERAGED).folder / "run").model for folder in (tmp_path, out))
    assert all(a.equal(b) for a, b in zip(ours.parameters(), before.parameters(), strict=True))


def test_it_is_judged_later_and_collected_like_every_row(out, tmp_path):
    command = ["reproduce", "resnet18-emr", "--quick", "--device", "cpu", "--out", str(out), "--rows", AVERAGED]
    assert run([*command, "--judge-rows", AVERAGED, "--judge-with", "distance"]) == 0
    assert (job_of(out, AVERAGED).folder / "distance" / "report.json").is_file()
    for name in (PLAIN, AVERAGED):
        whole = tmp_path / "runs" / job_of(out, name).folder.relative_to(out)
        shutil.copytree(job_of(out, name).folder, whole)
        result = json.loads((whole / "result.json").read_text())
        (whole / "result.json").write_text(
            json.dumps(dict(list(result.items())[:-1]) | {"quick": False, "training_seconds": 3600.0})
        )
    assert run(["collect", str(tmp_path / "runs"), "--into", str(tmp_path / "results")], PAPER) == 0
    kept = tmp_path / "results" / "rows" / f"cifar-resnet18-{AVERAGED}" / "seed-0"
    assert json.loads((kept / "evaluation.json").read_text())["name"] == f"cifar-resnet18/{AVERAGED}"
    page = (tmp_path / "results" / "README.md").read_text()
    table = page.partition("## ResNet-18: EMR at the same weight decay")[2]
    assert f"| {AVERAGED} | 1 |" in table
    assert "60 min of training" in table  # one run for two rows


def test_what_was_measured_of_the_trained_weights_is_not_the_averages():
    line = {"epoch": 1, "loss": 0.5, "test_margin_mean": 2.0, "averaged_test_clean": 9.0}
    assert _averaged_line(line) == {"epoch": 1, "loss": 0.5, "test_clean": 9.0}
