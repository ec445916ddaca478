"""Folders of an earlier version go on: a run stopped within its second epoch, an evaluation killed within a shard.

``before_0_1_0`` holds both, and the same run and evaluation finished (their files as that version wrote them).
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

from widemargin.config.checkpoint import load_checkpoint
from widemargin.training.run_folder import read_metrics

OLD = Path(__file__).parent / "before_0_1_0"
EVALUATE = (
    *("evaluate", "run", "--attacks", "clean,fgsm,pgd5,autoattack", "--eps", "0.03", "--step-size", "0.01"),
    *("--distance", "--shard-size", "20", "--limit", "40"),
)
NOTES = ("did not record the model's answers", "wrote shards without a digest")
"""What docs/evaluation.md says of records of earlier versions."""


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of the folders, and the working directory."""
    shutil.copytree(OLD, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def measured(line):
    """Without times."""
    return {name: value for name, value in line.items() if not name.endswith("seconds")}


def judged(folder):
    """Verdicts, margin and distance of each image."""
    return [json.loads(line) for line in (folder / "examples.jsonl").read_text().splitlines()]


def numbers(images, key):
    """By index, of the images that have one."""
    return {image["index"]: image[key] for image in images if image[key] is not None}


def test_a_stopped_run_goes_on_and_ends_like_the_finished_one(command, old):
    (before,) = read_metrics(old / "run-stopped")
    answer = command("train", "run-stopped/config.toml", "--out", "run-stopped")
    assert answer.code == 0, answer.err
    assert "epoch 1/3" not in answer.err
    lines, finished = read_metrics(old / "run-stopped"), read_metrics(old / "run")
    assert lines[0] == before
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    for line, other in zip(lines, finished, strict=True):
        assert measured(line) == pytest.approx(measured(other), rel=1e-4)
    for name in ("last", "best", "averaged/last", "averaged/best"):
        ours, theirs = (load_checkpoint(old / run / f"{name}.safetensors") for run in ("run-stopped", "run"))
        assert ours.description.config == theirs.description.config
        assert ours.weights.keys() == theirs.weights.keys()
        for key, value in ours.weights.items():
            torch.testing.assert_close(value, theirs.weights[key], rtol=1e-4, atol=1e-5)


def test_a_finished_run_is_known_as_finished_and_judged(command, old):
    before = {path: path.read_bytes() for path in (old / "run").rglob("*") if path.is_file()}
    assert "done: 3 epochs" in command("train", "run/config.toml", "--out", "run").err
    assert {path: path.read_bytes() for path in before} == before
    record = json.loads(command("evaluate", "run", "--limit", "40", "--json").out)
    old_record = json.loads((old / "evaluation" / "report.json").read_text())
    for key in ("name", "weights", "selection", "epoch", "config", "checkpoint"):
        assert record[key] == old_record[key]
    assert record["notes"] == []
    assert command("margins", "run/averaged", "--limit", "40").code == 0


@pytest.mark.parametrize("folder", ["evaluation-stopped", "evaluation"])
def test_an_evaluation_goes_on_and_ends_with_the_same_verdicts(command, old, folder):
    if folder == "evaluation":  # both shards are finished, what is made of them is lost
        for name in ("report.json", "examples.jsonl"):
            (old / folder / name).unlink()
    answer = command(*EVALUATE, "--out", folder)
    assert answer.code == 0, answer.err
    assert "shard 1 of 2" not in answer.err
    ours, theirs = judged(old / folder), judged(OLD / "evaluation")
    assert [image["verdicts"] for image in ours] == [image["verdicts"] for image in theirs]
    for key in ("margin", "distance"):
        assert numbers(ours, key) == pytest.approx(numbers(theirs, key), rel=1e-3)
    report, other = (json.loads((place / "report.json").read_text()) for place in (old / folder, OLD / "evaluation"))
    assert report["accuracy"] == other["accuracy"]
    assert len(report["notes"]) == len(NOTES)
    assert all(any(words in note for note in report["notes"]) for words in NOTES)


def test_a_report_shows_them_all(command, old):
    answer = command("report", "run", "run-stopped", "evaluation", "evaluation-stopped", "--out", "page.html")
    assert answer.code == 0
    assert "not shown" not in answer.err
    text = (old / "page.md").read_text()
    assert "2 runs and 2 evaluations, 2 of them unfinished" in text
    assert "| old/at-emr · run | 20.00 | 15.00 | 15.00 | 15.00 |" in text
    assert "| evaluation-stopped | 20.00 | 20.00 | 20.00 | 20.00 |" in text
    assert "epoch 1 of 3" in text
