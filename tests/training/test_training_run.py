"""A run from beginning to end: it learns, it is reproducible, and it leaves the files it promises."""

import io
import json
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from faults import contents
from widemargin import InputError
from widemargin.config import DataConfig, OptimizerConfig
from widemargin.config.checkpoint import load_checkpoint
from widemargin.config.toml import read_toml
from widemargin.core.files import write_text_atomic
from widemargin.engine import Plan
from widemargin.errors import WidemarginWarning
from widemargin.optimizers import make_optimizer
from widemargin.training import step as steps_module
from widemargin.training import train, trainer
from widemargin.training.progress import describe_epoch
from widemargin.training.setup import load_splits
from widemargin.training.state import Best, TrainState
from widemargin.training.step import train_step
from widemargin.types import Nets

VALIDATED = ("data.held_out=40", 'watch.attack={kind="pgd", eps=0.1, step_size=0.05, steps=2}')
ALWAYS = {"epoch", "samples", "loss", "total", "train_accuracy", "lr", "seconds"}
WATCHED = {
    "test_clean",
    "train_margin_mean",
    "train_margin_std",
    "test_margin_mean",
    "test_margin_std",
    "watch_seconds",
}


def test_a_tiny_run_learns(tiny, tmp_path):
    config = tiny("epochs=8", "data.train_limit=600", "data.test_limit=300", "optimizer.schedule.milestones=[6]")
    result = train(config, out=tmp_path / "run")
    assert result.finished
    assert result.epoch == 8
    first, last = result.metrics[0], result.metrics[-1]
    assert last["loss"] < 0.5 * first["loss"]
    assert last["test_clean"] > 75
    assert last["train_accuracy"] > first["train_accuracy"]


def test_the_folder_holds_configuration_metrics_and_last_checkpoint(tiny, tmp_path):
    config, out = tiny(), tmp_path / "a" / "run"
    result = train(config, out=out)
    assert sorted(path.name for path in out.iterdir()) == [
        "config.toml",
        "last.safetensors",
        "metrics.jsonl",
        "previous.safetensors",
    ]
    assert read_toml(out / "config.toml") == config
    lines = [json.loads(text) for text in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines == result.metrics
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert all(line.keys() == ALWAYS | WATCHED for line in lines)
    assert [line["samples"] for line in lines] == [150, 150, 150]
    assert [line["lr"] for line in lines] == pytest.approx([0.1, 0.1, 0.01])


def test_every_step_has_the_learning_rate_of_its_epoch(tiny, tmp_path, monkeypatch):
    used = []

    def noted(state, *args, **options):
        used.append([group["lr"] for group in state.optimizer.param_groups])
        return train_step(state, *args, **options)

    monkeypatch.setattr(steps_module, "train_step", noted)
    train(tiny(), out=tmp_path / "run")
    assert used == [[pytest.approx(rate)] for rate in (0.1, 0.1, 0.01) for _ in range(4)]


def test_the_optimizer_is_what_the_configuration_says_and_no_more():
    nets = Nets(model=nn.Linear(3, 2), teacher=nn.BatchNorm1d(2))
    optimizer = make_optimizer(nets.all().values(), OptimizerConfig(lr=0.3, momentum=0.8, weight_decay=0.02))
    (group,) = optimizer.param_groups
    said = {"lr": 0.3, "momentum": 0.8, "weight_decay": 0.02, "nesterov": False, "dampening": 0, "maximize": False}
    assert {name: group[name] for name in said} == said
    assert [id(p) for p in group["params"]] == [id(p) for net in (nets.model, nets.teacher) for p in net.parameters()]


def test_metrics_name_robust_accuracy_validation_and_emr_where_there_are_any(tiny, tmp_path):
    config = tiny("epochs=1", *VALIDATED, 'emr={kind="approximate", weight=0.1}')
    (line,) = train(config, out=tmp_path / "run").metrics
    extra = {"validation_clean", "validation_robust", "test_robust", "emr"}
    assert line.keys() == ALWAYS | WATCHED | extra
    assert line["total"] == pytest.approx(line["loss"] + 0.1 * line["emr"], rel=1e-5)


def test_emr_taken_every_second_step_is_averaged_over_the_samples_it_saw(tiny, tmp_path):
    lines = [
        train(
            tiny("epochs=1", "optimizer.lr=1e-9", f'emr={{kind="exact", weight=0.1, every={every}}}'), out=out
        ).metrics[0]["emr"]
        for every, out in ((1, tmp_path / "every"), (2, tmp_path / "second"))
    ]
    assert lines[1] == pytest.approx(lines[0], rel=0.2)  # a wrong count would halve it


def test_a_finished_run_is_left_as_it_is(tiny, tmp_path, left_in):
    train(tiny(), out=tmp_path)
    before = contents(tmp_path)
    assert train(tiny(), out=tmp_path).finished
    assert contents(tmp_path) == before


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tiny, tmp_path, left_in):
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        train(tiny(f"seed={seed}", 'emr={kind="stochastic", weight=0.1}'), out=tmp_path / name)
    one, again, other = (left_in(tmp_path / name) for name in ("one", "again", "other"))
    one.assert_same(again)
    assert not one.tensors["last.safetensors"]["fcs.0.weight"].equal(other.tensors["last.safetensors"]["fcs.0.weight"])


def test_training_leaves_the_global_random_state_alone(tiny, tmp_path):
    before = torch.get_rng_state()
    train(tiny("epochs=1", 'emr={kind="stochastic", weight=0.1}', "data.augmentation=crop-flip"), out=tmp_path)
    assert torch.get_rng_state().equal(before)


def test_the_best_checkpoint_is_that_of_the_highest_robust_validation_accuracy(tiny, tmp_path, monkeypatch):
    scores = iter([(90.0, 20.0, 99.0), (50.0, 40.0, 1.0), (95.0, 40.0, 100.0), (99.0, 30.0, 100.0)])
    weights = []

    def watched(nets, config, splits, *, epoch, **_):
        weights.append(nets.model.state_dict()["fcs.0.weight"].clone())
        clean, robust, test = next(scores)
        return {"validation_clean": clean, "validation_robust": robust, "test_clean": test, "test_robust": test}

    monkeypatch.setattr(trainer, "watch", watched)
    train(tiny("epochs=4", *VALIDATED), out=tmp_path)
    best = load_checkpoint(tmp_path / "best.safetensors")
    assert best.description.epoch == 2  # the highest; of equals the first; whatever clean and test accuracies say
    assert best.weights["fcs.0.weight"].equal(weights[1])
    assert best.description.scores["validation_robust"] == 40.0
    assert best.training == {}


@pytest.mark.parametrize(("precision", "tf32"), [("float32", False), ("tf32", False), ("bfloat16", True)])
def test_what_trains_in_bfloat16_is_watched_in_tf32(tiny, tmp_path, monkeypatch, precision, tf32):
    asked = []
    monkeypatch.setattr(trainer, "make_plan", lambda *_, **__: Plan(engine="fast", precision=precision))
    monkeypatch.setattr(trainer, "watch", lambda *_, **options: asked.append(options["tf32"]) or {})
    train(tiny("epochs=1"), out=tmp_path)
    assert asked == [tf32]


def test_the_best_epoch_really_scored_highest_on_held_out_training_images(tiny, tmp_path):
    result = train(tiny("epochs=5", "optimizer.lr=0.3", *VALIDATED), out=tmp_path)
    robust = [line["validation_robust"] for line in result.metrics]
    assert load_checkpoint(tmp_path / "best.safetensors").description.epoch == 1 + robust.index(max(robust))


def test_the_validation_split_is_taken_from_the_training_images_before_the_limit(tiny):
    config = tiny("data.held_out=40").data
    splits = load_splits(config, seed=0, data_dir=None, device=torch.device("cpu"))
    assert splits.validation is not None
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (150, 40, 60)
    assert splits.validation.labels.bincount().tolist() == [4] * 10
    more = load_splits(replace(config, train_limit=300), seed=0, data_dir=None, device=torch.device("cpu"))
    assert more.validation is not None
    assert more.validation.images.equal(splits.validation.images)
    apart = torch.cdist(splits.validation.floats().flatten(1), more.train.floats().flatten(1))
    assert apart.min() > 0


def own_data(path, *, train_size=8, size=8, labels=(0, 1, 2)):
    """An .npz of three classes; the test images may be otherwise."""
    rng = np.random.default_rng(0)
    train, test = np.arange(30) % 3, np.resize(labels, 12)
    sides = ((train, train_size), (test, size))
    images = [rng.random((len(part), side, side), dtype=np.float32) for part, side in sides]
    np.savez(path, train_images=images[0], train_labels=train, test_images=images[1], test_labels=test)
    return path


def load_own(path):
    return load_splits(DataConfig(name=str(path)), seed=0, data_dir=None, device=torch.device("cpu"))


def test_test_images_of_another_shape_are_refused_before_training(tmp_path):
    with pytest.raises(InputError, match=r"the test images are \(1, 7, 7\) .* training images \(1, 8, 8\)"):
        load_own(own_data(tmp_path / "own.npz", size=7))


def test_test_labels_that_no_training_image_has_are_told(tmp_path):
    load_own(own_data(tmp_path / "alike.npz"))
    with pytest.warns(WidemarginWarning, match=r"no training image has \(5, 7\)"):
        load_own(own_data(tmp_path / "own.npz", labels=(0, 5, 7)))


def test_the_schedule_of_emr_drives_its_weight(tiny, tmp_path):
    falling = 'emr={kind="exact", weight=0.1, schedule={kind="steps", milestones=[1], factor=0.5}}'
    lines = train(tiny("epochs=2", "optimizer.schedule.milestones=[2]", falling), out=tmp_path).metrics
    for line, weight in zip(lines, (0.1, 0.05), strict=True):
        assert line["total"] == pytest.approx(line["loss"] + weight * line["emr"], rel=1e-5)


@pytest.mark.parametrize("wrong", ["data.name=mnsit", "data.held_out=5", "model={kind='cnn'}", "seed=-1"])
def test_a_run_that_cannot_begin_gives_the_folder_back(tiny, tmp_path, wrong):
    settings = [wrong]
    if "cnn" in wrong:  # digits of 28 x 28 fit the network, those of 4 x 4 do not
        settings.append(f"data.name={own_data(tmp_path / 'small.npz', train_size=4, size=4)}")
    fresh, empty = tmp_path / "fresh", tmp_path / "empty"
    empty.mkdir()
    for out in (fresh, empty):
        with pytest.raises(InputError):
            train(tiny(*settings), out=out)
    assert not fresh.exists()
    assert list(empty.iterdir()) == []
    train(tiny("epochs=1"), out=fresh)


def test_config_toml_is_what_a_person_can_read_and_train_again(tiny, tmp_path, left_in):
    config = tiny('objective={kind="adversarial", attack={kind="fgsm", eps="8/255"}}')
    train(config, out=tmp_path / "one")
    table = tomllib.loads((tmp_path / "one" / "config.toml").read_text())
    assert table["objective"]["attack"]["eps"] == "8/255"
    write_text_atomic(tmp_path / "copy.toml", (tmp_path / "one" / "config.toml").read_text())
    train(read_toml(tmp_path / "copy.toml"), out=tmp_path / "two")
    left_in(tmp_path / "one").assert_same(left_in(tmp_path / "two"))


@pytest.mark.parametrize(("epoch", "over"), [(7, False), (8, True)])
def test_patience_counts_the_epochs_that_are_watched(tiny, epoch, over):
    config = tiny("data.held_out=40", "stopping={patience=2}", "watch.every=3")
    state = TrainState(nets=None, optimizer=None, epoch=epoch, best=Best(score=1.0, epoch=2))
    assert trainer.patience_is_over(state, config) == over


def test_a_finished_run_of_which_only_the_best_weights_were_kept_stays_finished(tiny, tmp_path, monkeypatch):
    config, out = tiny("epochs=3", *VALIDATED), tmp_path / "run"
    whole = train(config, out=out)
    for name in ("last.safetensors", "previous.safetensors"):
        (out / name).unlink()
    before = contents(out)
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "load_splits", lambda *_, **__: pytest.fail("nothing is left to train"))
        again = train(config, out=out)
    assert (again.finished, again.epoch, again.metrics) == (True, 3, whole.metrics)
    assert contents(out) == before
    with pytest.raises(InputError, match="holds another run"):
        train(replace(config, seed=config.seed + 1), out=out)
    assert contents(out) == before


def test_an_unfinished_run_without_its_last_checkpoint_begins_anew(tiny, tmp_path):
    config, out = tiny("epochs=3", *VALIDATED), tmp_path / "run"
    whole = train(config, out=out)
    for name in ("last.safetensors", "previous.safetensors"):
        (out / name).unlink()
    lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").write_text("".join(lines[:2]))
    with pytest.warns(WidemarginWarning, match=r"after its 2 epochs, so the run begins anew"):
        again = train(config, out=out)
    assert (out / "metrics.jsonl.damaged").read_text() == "".join(lines[:2])
    keys = ALWAYS - {"seconds"}
    assert [[line[key] for key in keys] for line in again.metrics] == [
        [line[key] for key in keys] for line in whole.metrics
    ]


# What a person sees of a run


def test_the_line_of_an_epoch_has_both_penalties():
    line = {"epoch": 3, "loss": 0.5, "seconds": 1.25, "emr": 0.01234, "igr": 2.5}
    assert describe_epoch(line, 12) == "epoch  3/12  loss 0.5000  emr 0.0123  igr 2.5  1.2 s"


@pytest.mark.parametrize(
    ("options", "read"),
    [({"force_terminal": True}, True), ({}, False), ({"force_terminal": True, "quiet": True}, False)],
)
def test_the_loss_is_read_where_it_is_shown(tiny, tmp_path, monkeypatch, options, read):
    asked = []

    def mean_loss(state):
        asked.append(state.step)
        return 1.0

    monkeypatch.setattr(trainer, "mean_loss", mean_loss)
    monkeypatch.setattr(trainer, "REFRESH_SECONDS", -1.0)
    console = Console(file=io.StringIO(), **options)
    train(tiny("epochs=1", "watch.margins=[]"), out=tmp_path, console=console)
    assert asked == ([1, 2, 3, 4] if read else [])
