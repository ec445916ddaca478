"""A row whose weights another row's run keeps beside its own: trained once, judged twice."""

import json
from pathlib import Path

import pytest
import torch

from widemargin.checkpoints import load_checkpoint
from widemargin.cli.main import run
from widemargin.config_files import read_toml
from widemargin.evaluation.target import load_target
from widemargin.experiments.job import choose_rows, jobs
from widemargin.recipes.tables import find_table
from widemargin.training import train
from widemargin.training.log import read_metrics

PLAIN, AVERAGED = "at-wd0.0005", "at-wd0.0005-averaged"
TIMES = ("seconds", "watch_seconds")


def reproduce(out: Path, *rows: str) -> int:
    command = ["reproduce", "resnet18-emr", "--quick", "--device", "cpu", "--out", str(out)]
    return run([*command, "--rows", ",".join(rows)])


def job_of(out, row):
    table = find_table("resnet18-emr")
    (job,) = jobs(table, choose_rows(table, [row]), [0], out, is_quick=True)
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
    assert load_checkpoint(job.folder / "run" / "last.safetensors").training == {}


def test_it_can_come_first_and_alone(out, tmp_path):
    assert reproduce(tmp_path, AVERAGED) == 0
    assert not (job_of(tmp_path, PLAIN).folder / "result.json").exists()
    ours, before = (
        json.loads((job_of(folder, AVERAGED).folder / "result.json").read_text()) for folder in (tmp_path, out)
    )
    assert ours["accuracy"] == before["accuracy"]


def test_it_is_collected_and_judged_later_like_every_row(out, tmp_path, capsys):
    command = ["reproduce", "resnet18-emr", "--quick", "--device", "cpu", "--out", str(out), "--rows", AVERAGED]
    assert run([*command, "--judge-rows", AVERAGED, "--judge-with", "distance"]) == 0
    assert (job_of(out, AVERAGED).folder / "distance" / "report.json").is_file()
