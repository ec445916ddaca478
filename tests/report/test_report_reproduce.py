"""The commands on the page, given again: in place nothing is refused, elsewhere they make the same numbers."""

import html
import json
import re
import shlex
import shutil

import numpy as np
import pytest
import torch

from widemargin.cli.main import run
from widemargin.data import load
from widemargin.evaluation import evaluator
from widemargin.models import MLPConfig

RECIPE = "mnist-mlp/st-wd0.01"
TINY = ("epochs=1", 'data.name="mnist-embedded"', "data.train_limit=200", "data.test_limit=50", "model.hidden=[16]")
TINY += ("data.held_out=40",)
EVALUATIONS = {
    "own plan": ("runs/tiny",),
    "usual step": ("runs/tiny", "--attacks", "clean,pgd3", "--eps", "8/255"),
    "own step": ("runs/tiny", "--attacks", "pgd3", "--eps", "0.5", "--norm", "l2", "--step-size", "1/10"),
    "several eps": ("runs/tiny", "--attacks", "clean,fgsm,pgd3", "--eps", "2/255,0.1", "--seed", "5", "--distance"),
    "clean alone": ("runs/tiny", "--attacks", "clean", "--batch-size", "5", "--shard-size", "7"),
    "distances": ("runs/tiny", "--distance", "quick", "--attacks", "clean"),
    "as earlier versions": ("runs/tiny", "--attacks", "clean", "--distance", "fab-t"),
    "held out": ("runs/tiny", "--attacks", "clean,pgd3", "--eps", "0.1", "--split", "validation"),
    "searched otherwise": ("runs/tiny", "--attacks", "pgd3", "--eps", "0.1", "--search", "tf32", "--distance"),
    "own data": ("runs/tiny", "--attacks", "fgsm", "--eps", "0.1", "--dataset", "my data/own.npz"),
    "public weights": ("net.pt", "--attacks", "fgsm", "--eps", "0.1", "--dataset", "mnist-embedded"),
}


def fill(place):
    """What the commands need and do not make."""
    (place / "my data").mkdir(parents=True)
    data = load("mnist-embedded", "test", limit=20)
    images, labels = data.images.numpy(), data.labels.numpy()
    parts = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
    np.savez(place / "my data" / "own.npz", **parts)
    model = MLPConfig(hidden=(8,)).build(image_shape=(1, 28, 28), num_classes=10, seed=0)
    torch.save(model.state_dict(), place / "net.pt")


@pytest.fixture(scope="module", autouse=True)
def _tf32_here():
    """As if this device had TF32: the option goes into the command and out of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluator, "has_tf32", lambda device: True)
        yield


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """(the folder, the commands copied from its page)."""
    place = tmp_path_factory.mktemp("first")
    fill(place)
    settings = [word for setting in TINY for word in ("--set", setting)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert run(["train", RECIPE, *settings, "--out", "runs/tiny"]) == 0
        for name, words in EVALUATIONS.items():
            assert run(["evaluate", *words, "--limit", "20", "--out", f"evaluations/{name}"]) == 0, name
        assert run(["report", "runs", "evaluations", "--out", "report.html"]) == 0
    page = (place / "report.html").read_text(encoding="utf-8")
    found = re.findall(r"<li><code>(.*?)</code></li>", page)
    return place, [html.unescape(re.sub("<[^>]+>", "", command)) for command in found]


def give(commands, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "widemargin"
        code = run(words)
        assert code == 0, f"{command}\n{capsys.readouterr().err}"


def numbers(place):
    kept = ("accuracy", "margins", "distance", "eps", "step_size", "seed", "data", "attacks", "norm")
    reports = {path.parent.name: json.loads(path.read_text()) for path in place.glob("evaluations/*/report.json")}
    return {name: {key: report[key] for key in kept} for name, report in reports.items()}


def test_a_run_and_an_evaluation_that_were_moved_belong_together(printed, monkeypatch, tmp_path):
    place, _ = printed
    shutil.copytree(place / "runs" / "tiny", tmp_path / "moved" / "b")
    shutil.copytree(place / "evaluations" / "own plan", tmp_path / "moved" / "e")
    monkeypatch.chdir(tmp_path)
    assert run(["report", "moved", "--out", "both.html"]) == 0
    assert run(["report", "moved/e", "--out", "alone.html"]) == 0
    for name in ("both.md", "alone.md"):
        text = (tmp_path / name).read_text()
        assert "not evaluated" not in text
        assert f"- {RECIPE}: judged on the first 20 of 3,000 test images; " in text
        assert '| epochs=1, data.name="mnist-embedded"' in text


def test_there_is_a_command_for_everything(printed):
    verbs = [command.split()[1] for command in printed[1]]
    assert verbs == ["train", *["evaluate"] * len(EVALUATIONS), "report"]


def test_in_place_they_find_everything_done(printed, monkeypatch, capsys):
    place, commands = printed
    before = numbers(place)
    times = {path: path.stat().st_mtime_ns for path in place.glob("evaluations/*/shards/*.jsonl")}
    give(commands, place, monkeypatch, capsys)
    assert {path: path.stat().st_mtime_ns for path in place.glob("evaluations/*/shards/*.jsonl")} == times
    assert numbers(place) == before


def test_elsewhere_they_make_the_same_numbers(printed, monkeypatch, capsys, tmp_path):
    place, commands = printed
    fill(tmp_path)
    give(commands, tmp_path, monkeypatch, capsys)
    assert numbers(tmp_path) == numbers(place)
    assert numbers(place).keys() == EVALUATIONS.keys()
    assert (tmp_path / "report.csv").read_text() == (place / "report.csv").read_text()
