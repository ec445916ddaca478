"""What trackers are told, by one that remembers; what they may do to the run, which is nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from widemargin import WidemarginWarning
from widemargin.config.checkpoint import load_checkpoint
from widemargin.config.toml import from_dict
from widemargin.training import train
from widemargin.types import ShowsPictures


class Remembers:
    """Everything it is told, in order."""

    def __init__(self):
        self.told = []

    def begin(self, config, name):
        self.told.append(("begin", dict(config), name))

    def log(self, metrics, step):
        self.told.append(("log", dict(metrics), step))

    def finish(self):
        self.told.append(("finish",))

    def of(self, kind):
        return [words[1:] for words in self.told if words[0] == kind]


class RemembersPictures(Remembers):
    def histogram(self, name, values, step):
        self.told.append(("histogram", name, values, step))

    def image(self, name, image, step):
        self.told.append(("image", name, image, step))


@pytest.fixture(scope="module")
def plain(tiny, tmp_path_factory):
    """The run without trackers."""
    return train(tiny(), out=tmp_path_factory.mktemp("plain") / "run", device="cpu")


def weights(result, name="last.safetensors"):
    checkpoint = load_checkpoint(result.folder / name)
    return checkpoint.weights | checkpoint.training


def assert_same(one, other):
    for name in ("last.safetensors", "best.safetensors"):
        left, right = weights(one, name), weights(other, name)
        assert left.keys() == right.keys()
        assert all(torch.equal(left[key], right[key]) for key in left)


def numbers(line):
    return {key: value for key, value in line.items() if isinstance(value, int | float) and "seconds" not in key}


def test_it_is_told_all_and_nothing_else_changes(tiny, plain, tmp_path):
    tracker = RemembersPictures()
    assert isinstance(tracker, ShowsPictures)
    result = train(tiny(), out=tmp_path / "run", device="cpu", trackers=[tracker])
    assert_same(result, plain)
    ((config, name),) = tracker.of("begin")
    assert from_dict(config) == tiny()
    assert name == "tiny/st"
    assert [step for _, step in tracker.of("log")] == [1, 2, 3]
    for (metrics, _), line in zip(tracker.of("log"), result.metrics, strict=True):
        assert metrics == {key: value for key, value in line.items() if key != "alarms"} | {"alarms": 0.0}
        assert {"loss", "emr", "train_accuracy", "validation_robust", "test_margin_mean", "lr"} <= metrics.keys()
    assert tracker.told[-1] == ("finish",)


def test_margins_and_adversarial_images_of_held_out_data(tiny, tmp_path):
    tracker = RemembersPictures()
    train(tiny("watch.every=2"), out=tmp_path / "run", device="cpu", trackers=[tracker])
    assert [step for _, _, step in tracker.of("image")] == [2, 3]  # where something is measured
    (name, values, _), *_ = tracker.of("histogram")
    assert (name, values.shape) == ("margins", (20,))
    (_, image, _), *_ = tracker.of("image")
    assert image.shape == (1, 3 * 28, 8 * 28)
    clean, adversarial, difference = image.split(28, dim=1)
    assert 0 < float((adversarial - clean).abs().max()) <= 8 / 255 + 1e-6
    assert torch.allclose(difference, (0.5 + 5 * (adversarial - clean)).clamp(0, 1), atol=1e-5)


def test_without_an_attack_there_are_margins_alone(tiny, tmp_path):
    tracker = RemembersPictures()
    train(tiny("watch.attack=none", "epochs=1"), out=tmp_path / "run", device="cpu", trackers=[tracker])
    assert len(tracker.of("histogram")) == 1
    assert tracker.of("image") == []


def test_a_run_that_goes_on_tells_what_was_before(plain, tmp_path, train_in_two_calls):
    trackers = []

    def make():
        trackers.append(Remembers())
        return [trackers[-1]]

    result = train_in_two_calls(tmp_path / "run", make)
    assert_same(result, plain)
    first, second = trackers
    assert [step for _, step in first.of("log")] == [1]
    assert [step for _, step in second.of("log")] == [1, 2, 3]
    assert second.of("log")[0] == first.of("log")[0]
    third = Remembers()
    train(from_dict(second.of("begin")[0][0]), out=tmp_path / "run", device="cpu", trackers=[third])
    assert third.of("log") == second.of("log")
    (tmp_path / "run" / "last.safetensors").unlink()
    (tmp_path / "run" / "previous.safetensors").unlink(missing_ok=True)
    fourth = Remembers()  # of a finished run that has its best weights alone
    train(from_dict(second.of("begin")[0][0]), out=tmp_path / "run", device="cpu", trackers=[fourth])
    assert fourth.told == third.told


@pytest.mark.parametrize("what", ["begin", "log", "histogram", "image", "finish"])
def test_a_failure_is_one_warning_and_the_run_goes_on(what, tiny, plain, tmp_path, monkeypatch):
    def fail(*_):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(RemembersPictures, what, fail)
    failing, working = RemembersPictures(), Remembers()
    with pytest.warns(
        WidemarginWarning, match=r"RemembersPictures does not log any more \(ConnectionError: no"
    ) as found:
        result = train(tiny(), out=tmp_path / "run", device="cpu", trackers=[failing, working])
    assert len(found) == 1
    assert result.finished
    assert_same(result, plain)
    assert len(working.of("log")) == 3
    assert len(failing.of("log")) == {"begin": 0, "log": 0, "histogram": 0, "image": 0, "finish": 3}[what]


def test_an_unknown_tracker_and_a_missing_library_are_refused(refused, tmp_path, monkeypatch):
    line = refused("train", "demo/plain", "--out", tmp_path / "run", "--log", "tensorbord")
    assert "--log must be one of tensorboard, wandb, mlflow, got 'tensorbord'" in line
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.delitem(sys.modules, "widemargin.integrations.wandb", raising=False)
    line = refused("train", "demo/plain", "--out", tmp_path / "run", "--log", "wandb")
    assert "--log wandb cannot import its library" in line
    assert "pip install 'widemargin[wandb]'" in line
    assert not (tmp_path / "run").exists()


def test_no_library_is_imported_before_it_is_used(tmp_path):
    script = (
        "import sys, widemargin.cli.train, widemargin.cli.evaluate, widemargin.evaluation.target, "
        "widemargin.integrations\n"
        "print(*(name for name in ('tensorboard', 'wandb', 'mlflow', 'lightning', 'transformers', 'huggingface_hub', "
        "'onnx') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_extra_is_named_as_its_module():
    import tomllib

    from widemargin.integrations import TRACKERS

    table = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(TRACKERS) <= set(table["project"]["optional-dependencies"])
