"""train -> resume -> evaluate -> margins -> demo, as a user goes through them."""

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from benchmarks.__main__ import BENCHMARKS
from PIL import Image

from faults import clock_of_steps, interrupt_at
from image_files import image_folder
from widemargin.attacks import attack_named
from widemargin.cli import demo as demo_module
from widemargin.cli import main as main_module
from widemargin.cli import margins as margins_module
from widemargin.cli.main import VERBS, CommandLine
from widemargin.cli.margins import own_attack
from widemargin.config import EMRConfig
from widemargin.config.toml import read_toml, to_toml
from widemargin.core.child_process import UNFINISHED
from widemargin.core.versions import own_version
from widemargin.data import in_order, load
from widemargin.evaluation import load_target, measure_margins, percent, verdicts
from widemargin.models import MODELS, MLPConfig
from widemargin.recipes import Recipe
from widemargin.report.pictures import demo_figure
from widemargin.training import progress, trainer
from widemargin.training.run_folder import read_metrics
from widemargin.training.setup import load_splits


def epochs_of(folder):
    return [json.loads(line)["epoch"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def is_picture(path):
    with Image.open(path) as image:
        image.verify()
        return image.format == "PNG" and min(image.size) > 300


def test_train_writes_the_run_and_says_what_comes_next(command, recipe, tmp_path):
    answer = command("train", recipe, "--out", tmp_path / "run")
    assert answer.code == 0
    assert answer.out == ""  # what a script would read; progress is for people
    assert "epoch 1/2" in answer.err
    assert "clean " in answer.err
    assert "done: 2 epochs" in answer.err
    assert "next: widemargin evaluate" in answer.err
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "config.toml",
        "last.safetensors",
        "metrics.jsonl",
        "previous.safetensors",
    ]
    assert epochs_of(tmp_path / "run") == [1, 2]


@pytest.mark.parametrize("place", ["before", "after"])
def test_quiet_and_verbose(command, recipe, tmp_path, monkeypatch, place):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    monkeypatch.setattr(trainer, "REFRESH_SECONDS", -1.0)

    def train(option):
        words = ("train", recipe, "--out", tmp_path / option)
        return command(option, *words) if place == "before" else command(*words, option)

    quiet, verbose = train("-q"), train("-v")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    assert verbose.code == 0
    assert verbose.err.startswith(f"widemargin {own_version()}, torch {torch.__version__}")
    assert "step 3 of 10  loss " in verbose.err
    usual = command("train", recipe, "--out", tmp_path / "usual")  # how much is said is of one command alone
    assert "epoch 1/2" in usual.err
    assert "step 3" not in usual.err


def test_quiet_commands_still_tell_of_mistakes(command, refused, recipe, tmp_path):
    assert "unknown recipe" in refused("-q", "train", "nosuch", "--out", tmp_path / "run")
    where = command("-v", "train", "nosuch", "--out", tmp_path / "run")
    assert "in find_recipe" in where.err
    assert where.err.splitlines()[-1].startswith("widemargin: unknown recipe")


def test_a_run_on_streamed_images_is_judged_on_them(command, refused, recipe, tmp_path):
    jpegs, settings = image_folder(tmp_path / "jpegs"), ("data.image_size=12", "data.streaming=true", "data.held_out=9")
    table = f'data={{name="{jpegs}", augmentation="random-resized-crop"}}'
    changes = [part for text in (table, *settings, "epochs=1") for part in ("--set", text)]
    run = tmp_path / "run"
    answer = command("train", recipe, "--out", run, "--workers", 1, *changes)
    assert answer.code == 0, answer.err
    judged = json.loads(command("evaluate", run, "--attacks", "clean", "--workers", 1, "--json").out)
    assert judged["data"]["count"] == 12
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    best = command("evaluate", run, "--attacks", "clean", "--split", "validation", "--json")
    assert json.loads(best.out)["accuracy"]["clean"] == pytest.approx(last["validation_clean"])
    other = command("evaluate", run, "--attacks", "clean", "--dataset", jpegs, "--image-size", 12, "--json")
    assert json.loads(other.out)["accuracy"] == judged["accuracy"]
    assert json.loads(command("margins", run, "--split", "train", "--json").out)["all"]["count"] == 27
    assert "set data.image_size" in refused("evaluate", run, "--attacks", "clean", "--dataset", jpegs)
    assert "as the run did" in refused("evaluate", run, "--split", "validation", "--image-size", 12)


def test_the_same_command_goes_on_after_an_interrupt(command, recipe, trained, tmp_path, monkeypatch):
    interrupt_at(monkeypatch, 7)
    answer = command("train", recipe, "--out", tmp_path)
    assert answer.code == 130
    assert "interrupted; a training run goes on from its last checkpoint" in answer.err
    assert "Traceback" not in answer.err
    monkeypatch.undo()
    assert command("train", recipe, "--out", tmp_path).code == 0
    assert (tmp_path / "last.safetensors").read_bytes() == (trained / "last.safetensors").read_bytes()


def test_a_run_stopped_by_max_time_is_judged_as_unfinished_and_goes_on(command, recipe, trained, tmp_path, monkeypatch):
    clock_of_steps(monkeypatch)
    answer = command("train", recipe, "--out", tmp_path, "--max-time", "3s", "--json")
    monkeypatch.undo()
    assert answer.code == UNFINISHED
    told = json.loads(answer.out)
    assert told == {
        "folder": str(tmp_path),
        "finished": False,
        "stopped_by": "time",
        "epoch": 0,
        "epochs": 2,
        "step": 3,
        "last": None,
    }
    assert "time is out after 0 of 2 epochs and 3 steps; the same command goes on" in answer.err
    assert load_target(tmp_path).description.step == 3
    note, judge = "The run is not finished: these are its weights after 0 of 2 epochs.", ("--attacks", "clean")
    judged = command("evaluate", tmp_path, *judge, "--limit", 5)
    assert f"note: {note}" in judged.text
    assert "(epoch 0)" in judged.text
    assert json.loads(command("evaluate", tmp_path, *judge, "--limit", 5, "--json").out)["notes"] == [note]
    done = command("train", recipe, "--out", tmp_path, "--json")
    assert (done.code, "done" in done.err) == (0, True)
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert json.loads(done.out) == told | {"finished": True, "stopped_by": None, "epoch": 2, "step": 0, "last": last}
    assert json.loads(command("evaluate", tmp_path, *judge, "--limit", 5, "--json").out)["notes"] == []
    assert (tmp_path / "last.safetensors").read_bytes() == (trained / "last.safetensors").read_bytes()


SETTINGS = {
    "emr={kind='stochastic', weight=0.1}": {},  # what the next one changes
    "emr.weight=0.3": {"emr": {"kind": "stochastic", "weight": 0.3}},
    "evaluation.eps=8/255": {"evaluation": {"eps": "8/255"}},
    "epochs=1": {"epochs": 1},
    "watch.test=false": {"watch": {"test": False}},
    "watch.margins=[]": {"watch": {"margins": []}},
    "watch.attack=none": {"watch": {"attack": None}},
    "data.augmentation=crop-flip": {"data": {"augmentation": "crop-flip"}},
    'name="my run"': {"name": "my run"},
    "model.hidden=[8, 8]": {"model": {"hidden": [8, 8]}},
    'optimizer.schedule={kind="steps", milestones=[1]}': {"optimizer": {"schedule": {"milestones": [1.0]}}},
}


def test_set_every_kind_of_value(command, recipe, tmp_path):
    flags = [word for setting in SETTINGS for word in ("--set", setting)]
    answer = command("train", recipe, "--out", tmp_path / "run", *flags)
    assert answer.code == 0, answer.err

    def assert_within(expected, found):
        for key, value in expected.items():
            if isinstance(value, dict):
                assert_within(value, found[key])
            else:
                assert found.get(key) == value, key

    written = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    for expected in SETTINGS.values():
        assert_within(expected, written)


def test_evaluate_prints_the_runs_own_plan_as_a_table(command, trained):
    answer = command("evaluate", trained, "--limit", 30)
    assert answer.code == 0
    assert "the first 30 of 3,000 test images of mnist-embedded; linf eps 0.05; step 0.02; seed 0" in answer.text
    target, data = load_target(trained), load("mnist-embedded", "test", limit=30)
    attack = attack_named("pgd3", eps=0.05, step_size=0.02)
    assert f"clean {percent(verdicts(target.model, data)):.2f}" in answer.text
    assert f"pgd3 {percent(verdicts(target.model, data, attack)):.2f}" in answer.text
    assert "weights: last, the last step trained (epoch 2)" in answer.text


def test_evaluate_prints_json_that_agrees_with_the_library(command, trained):
    options = ("--attacks", "clean,fgsm,pgd20", "--eps", "0.1", "--step-size", "0.01", "--limit", 30)
    answer = command("evaluate", trained, *options, "--json")
    assert answer.err == ""  # no remains of a progress bar where there is no terminal
    record = json.loads(answer.out)
    target, data = load_target(trained), load("mnist-embedded", "test", limit=30)
    expected = {"clean": percent(verdicts(target.model, data))}
    for name in ("fgsm", "pgd20"):
        attack = attack_named(name, eps=0.1, step_size=0.01)
        expected[name] = percent(verdicts(target.model, data, attack))
    assert record["accuracy"] == expected
    assert record["eps"] == [{"written": "0.1", "value": 0.1}]
    assert (record["step_size"], record["norm"]) == (0.01, "linf")
    assert (record["weights"], record["epoch"]) == ("last", 2)
    assert record["data"] == {"name": "mnist-embedded", "split": "test", "count": 30, "whole": 3000}
    assert record["versions"].keys() == {"widemargin", "torch", "python"}


def test_the_test_limit_of_a_run_holds_when_it_is_judged(command, trained, tmp_path):
    anything = ("--dataset", "mnist-embedded", "--limit", 50)  # not the run's own question
    for options, count in (((), 40), (("--limit", 15), 15), (("--limit", 50), 40), (anything, 50)):
        record = json.loads(command("evaluate", trained, "--attacks", "clean", *options, "--json").out)
        assert record["data"] == {"name": "mnist-embedded", "split": "test", "count": count, "whole": 3000}
        measured = command("margins", trained, "--picture", tmp_path / "margins.png", *options, "--json")
        assert json.loads(measured.out)["all"]["count"] == count


@pytest.mark.parametrize(
    ("options", "eps", "step_size", "says"),
    [
        (("--eps", "0.05"), 0.05, 0.02, "linf eps 0.05; step 0.02;"),  # the run's own eps keeps its own step
        (("--eps", "0.1"), 0.1, 0.025, "linf eps 0.1; step eps/4;"),
        (("--eps", "8/255"), 8 / 255, 2 / 255, "linf eps 8/255"),
        (("--eps", "0.2", "--step-size", "0.0001"), 0.2, 0.0001, "linf eps 0.2; step 0.0001;"),
    ],
)
def test_evaluate_takes_eps_and_step_size_as_they_are_told(command, trained, options, eps, step_size, says):
    record = json.loads(command("evaluate", trained / "last.safetensors", *options, "--limit", 40, "--json").out)
    assert record["target"] == str(trained / "last.safetensors")
    assert (record["eps"], record["step_size"]) == ([{"written": options[1], "value": eps}], step_size)
    target, data = load_target(trained), load("mnist-embedded", "test", limit=40)
    attack = attack_named("pgd3", eps=eps, step_size=step_size)
    assert record["accuracy"]["pgd3"] == percent(verdicts(target.model, data, attack))
    assert says in command("evaluate", trained, *options, "--limit", 5).text


def test_the_step_at_an_eps_is_the_same_however_many_eps_there_are(command, trained):
    several = command("evaluate", trained, "--eps", "0.05,0.1,8/255", "--limit", 40, "--json")
    record = json.loads(several.out)
    for eps in ("0.05", "0.1", "8/255"):
        one = json.loads(command("evaluate", trained, "--eps", eps, "--limit", 40, "--json").out)
        assert record["columns"][f"pgd3@{eps}"].get("step_size") == one["columns"]["pgd3"].get("step_size")
        assert record["accuracy"][f"pgd3@{eps}"] == one["accuracy"]["pgd3"]
    assert record["columns"]["pgd3@0.05"]["step_size"] == 0.02
    assert "step eps/4 (0.02 at 0.05);" in command("evaluate", trained, "--eps", "0.05,0.1", "--limit", 5).text


FACTORY = """
import torch
def untrained():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
"""


def test_margins_of_models_from_elsewhere(command, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_factory.py").write_text(FACTORY)
    data = ("--dataset", "mnist-embedded", "--limit", 30)
    answer = command("margins", "my_factory:untrained", *data, "--json")
    record = json.loads(answer.out)
    model = sys.modules["my_factory"].untrained()
    expected = measure_margins(model, in_order(load("mnist-embedded", "test", limit=30), 30)).over_all()
    assert record["all"]["mean"] == pytest.approx(expected.mean, abs=1e-6)
    assert record["picture"] == "margins-my_factory-untrained-test-clean-l2.png"
    assert is_picture(tmp_path / record["picture"])
    public = to_public(MLPConfig(hidden=(8,)), tmp_path / "weights.pt")
    measured = command("margins", public, *data, "--split", "train", "--normalize", "none")
    assert measured.code == 0, measured.err
    assert "weights: public file" in measured.text
    for options, says in (
        ((), "--dataset is missing"),
        (("--split", "validation"), "--split validation: only a run of ours says what that is, my_factory:untrained"),
        ((*data, "--at", "adversarial"), "--at adversarial: only a run of ours says what that is"),
        ((*data, "--normalize", "none"), "--normalize is for public weights"),
    ):
        assert says in refused("margins", "my_factory:untrained", *options)


def to_public(config, path):
    model = config.build(image_shape=(1, 28, 28), num_classes=10, seed=0)
    torch.save(model.state_dict(), path)
    return path


HELD = ("--set", "data.held_out=30", "--set", "epochs=1")


def test_held_out_images_are_judged_and_measured(command, recipe, tmp_path):
    run, out = tmp_path / "run", tmp_path / "evaluation"
    command("train", recipe, "--out", run, *HELD)
    config = load_target(run).description.run_config()
    held = load_splits(config.data, seed=config.seed, data_dir=None, device=torch.device("cpu")).validation
    model = load_target(run).model.eval()
    expected = 100 * (model(held.images.float() / 255).argmax(1) == held.labels).double().mean().item()
    options = ("--split", "validation", "--attacks", "clean,pgd2", "--out", out)
    answer = command("evaluate", run, *options)
    assert "30 held-out images of mnist-embedded" in answer.text
    record = json.loads(command("evaluate", run, *options, "--json").out)
    assert record["data"] == {"name": "mnist-embedded", "split": "validation", "count": 30}
    assert record["accuracy"]["clean"] == pytest.approx(expected)
    measured = json.loads(command("margins", run, "--split", "validation", "--json").out)
    assert measured["all"]["count"] == 30
    refused = command("evaluate", run, "--attacks", "clean,pgd2", "--out", out, "--limit", 30)
    assert refused.code == 2
    assert "holds another evaluation" in refused.err
    command("report", run, out, "--out", tmp_path / "report.html")
    page = (tmp_path / "report.md").read_text()
    assert "judged on held-out images" in page
    assert re.search(r"--split(</span>)? validation", (tmp_path / "report.html").read_text())


def test_evaluate_judges_a_run_in_its_own_norm(command, recipe, tmp_path):
    settings = ("epochs=1", "evaluation.norm=l2", "evaluation.eps=1.5", "evaluation.step_size=0.5")
    flags = [part for setting in settings for part in ("--set", setting)]
    assert command("train", recipe, "--out", tmp_path / "run", *flags).code == 0
    record = json.loads(command("evaluate", tmp_path / "run", "--limit", 10, "--json").out)
    assert (record["norm"], record["eps"][0]["value"], record["step_size"]) == ("l2", 1.5, 0.5)
    target, data = load_target(tmp_path / "run"), load("mnist-embedded", "test", limit=10)
    attack = attack_named("pgd3", eps=1.5, step_size=0.5, norm="l2")
    assert record["accuracy"]["pgd3"] == percent(verdicts(target.model, data, attack))


def test_a_run_without_a_plan_or_an_attack_is_judged_clean_unless_told(command, refused, recipe, tmp_path):
    flags = ("--set", "evaluation=none", "--set", "epochs=1", "--set", "watch.attack=none")
    assert command("train", recipe, "--out", tmp_path, *flags).code == 0
    assert json.loads(command("evaluate", tmp_path, "--limit", 5, "--json").out)["accuracy"].keys() == {"clean"}
    assert "--eps is missing for pgd3; give e.g. --eps 8/255" in refused("evaluate", tmp_path, "--attacks", "pgd3")
    assert "this run has no attack of its own" in refused("margins", tmp_path, "--at", "adversarial")


@pytest.mark.parametrize("at", ["clean", "adversarial"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_margins(command, trained, tmp_path, split, at):
    picture = tmp_path / "margins.png"
    options = ("--split", split, "--at", at, "--limit", 40, "--picture", picture)
    answer = command("margins", trained, *options, "--json")
    assert answer.err == ""
    record = json.loads(answer.out)
    assert is_picture(picture)
    assert record["picture"] == str(picture)
    target, data = load_target(trained), load("mnist-embedded", split, limit=40)
    attack = read_toml(trained / "config.toml").watch.attack if at == "adversarial" else None
    points = [(x if attack is None else attack(target.model, x, y), y) for x, y in in_order(data, 40)]
    measured = measure_margins(target.model, points)
    for key, summary in (("all", measured.over_all()), ("correctly classified", measured.over_correct())):
        assert record[key]["count"] == summary.count
        assert record[key]["mean"] == pytest.approx(summary.mean, rel=1e-5)
        assert record[key]["std"] == pytest.approx(summary.std, rel=1e-4)
        assert record[key]["quantiles"] == pytest.approx(summary.quantiles, rel=1e-4, abs=1e-6)


def test_training_images_are_those_trained_on(command, recipe, tmp_path):
    run, picture = tmp_path / "run", tmp_path / "margins.png"
    watched = ("--set", 'watch.margins=["train"]', "--set", "data.held_out=50")
    assert command("train", recipe, "--out", run, *watched).code == 0
    options = ("--split", "train", "--json", "--picture", picture)
    record = json.loads(command("margins", run / "last.safetensors", *options).out)
    assert record["all"]["count"] == 100
    measured = read_metrics(run)[-1]["train_margin_mean"]
    assert record["correctly classified"]["mean"] == pytest.approx(measured, rel=1e-5)


def test_margins_at_attacked_images_leave_batch_norm_alone(command, recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(margins_module, "BATCH", 20)
    run = tmp_path / "run"
    attack = 'objective={kind="adversarial", attack={kind="pgd", eps=0.1, step_size=0.1, steps=1, mode="train"}}'
    model = 'model={kind="resnet18", width=2}'
    assert command("train", recipe, "--out", run, "--set", model, "--set", attack, "--set", "epochs=1").code == 0
    target = load_target(run)
    before = {name: buffer.clone() for name, buffer in target.model.named_buffers()}
    data, perturb = load("mnist-embedded", "test", limit=40), own_attack(target).perturb
    assert len(list(margins_module._points(data, perturb, target.model))) == 2
    assert all(buffer.equal(before[name]) for name, buffer in target.model.named_buffers())


def test_margins_prints_a_table_and_puts_the_picture_beside_the_checkpoint(command, recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert command("train", recipe, "--out", tmp_path).code == 0
    answer = command("margins", tmp_path, "--limit", 40, "--norm", "linf")
    assert answer.code == 0
    assert is_picture(tmp_path / "margins-test-clean-linf.png")
    assert "effective margins (linf), tiny: test images, clean" in answer.text
    assert "weights: last, the last step trained (epoch 2)" in answer.text
    assert "note:" not in answer.text
    for word in ("all", "correct", "mean", "std", "0.05", "0.5", "0.95", "histogram: "):
        assert word in answer.text
    assert "…" not in answer.out  # it fits an ordinary terminal


def test_margins_at_the_images_of_the_attack_the_run_trained_on(command, recipe, tmp_path):
    attack = 'objective={kind="adversarial", attack={kind="pgd", eps=0.05, step_size=0.02, steps=2}}'
    assert command("train", recipe, "--out", tmp_path, "--set", attack, "--set", "watch.attack=none").code == 0
    record = json.loads(command("margins", tmp_path, "--at", "adversarial", "--limit", 20, "--json").out)
    target, data = load_target(tmp_path), load("mnist-embedded", "test", limit=20)
    x = read_toml(tmp_path / "config.toml").objective.attack(target.model, data.floats(), data.labels)
    assert record["all"]["mean"] == pytest.approx(measure_margins(target.model, [(x, data.labels)]).over_all().mean)
    assert record["attack"].startswith(
        'that of training, objective = {kind = "adversarial", attack = {kind = "pgd", eps = 0.05'
    )


def test_margins_of_an_unfinished_run_say_so_and_name_the_attack(command, recipe, tmp_path):
    assert command("train", recipe, "--out", tmp_path).code == 0
    stopped = tmp_path / "previous.safetensors"
    answer = command("margins", stopped, "--at", "adversarial", "--limit", 20)
    assert 'attack: that of its watch, {kind = "fgsm", eps = 0.1' in answer.text
    assert "note: The run is not finished: these are its weights after 1 of 2 epochs." in answer.text
    record = json.loads(command("margins", stopped, "--limit", 20, "--json").out)
    assert record["weights"] == "last, the checkpoint before the last one (epoch 1)"
    assert len(record["notes"]) == 1
    assert "attack" not in record


@pytest.mark.parametrize("form", ["an .npz", "a folder of images"])
def test_own_images_are_trained_and_judged(command, recipe, tmp_path, arrays, form):
    data = tmp_path / ("own.npz" if form == "an .npz" else "images")
    if form == "an .npz":
        np.savez(data, **arrays)
    for split in ("train", "test") if form == "a folder of images" else ():
        pairs = zip(arrays[f"{split}_images"], arrays[f"{split}_labels"], strict=True)
        for number, (pixels, label) in enumerate(pairs):
            place = data / split / ("zero", "one", "two")[label]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(place / f"{number}.png")
    answer = command("train", recipe, "--out", tmp_path / "run", "--set", f"data.name={data}", "--set", "epochs=6")
    assert answer.code == 0, answer.err
    record = json.loads(command("evaluate", tmp_path / "run", "--attacks", "clean", "--json").out)
    assert (record["data"]["count"], record["data"]["whole"]) == (40, 45)
    assert record["accuracy"]["clean"] > 60
    description = load_target(tmp_path / "run").description
    assert (description.image_shape, description.num_classes) == ((1, 14, 14), 3)


@pytest.mark.filterwarnings("always::widemargin.errors.WidemarginWarning")
def test_a_warning_is_one_line_without_source_code(command, recipe, tmp_path, arrays):
    np.savez(tmp_path / "single.npz", images=arrays["train_images"], labels=arrays["train_labels"])
    answer = command("train", recipe, "--out", tmp_path / "run", "--set", f"data.name={tmp_path / 'single.npz'}")
    assert answer.code == 0
    (line,) = [line for line in answer.err.splitlines() if line.startswith("widemargin: warning: ")]
    assert "no test part of its own" in line
    assert ".py" not in answer.err


def test_the_demo_on_tiny_runs(command, recipe, tmp_path, monkeypatch):
    config = replace(read_toml(recipe), epochs=4)
    tiny = {
        "demo/plain": Recipe(config=replace(config, name="demo/plain")),
        "demo/emr": Recipe(config=replace(config, name="demo/emr", emr=EMRConfig(kind="approximate", weight=0.1))),
    }
    monkeypatch.setattr(demo_module, "find_recipe", tiny.__getitem__)
    monkeypatch.setattr(demo_module, "load", lambda name, split: load(name, split, limit=60))
    drawn = []

    def drawing(*arguments, **attack):
        drawn.append(arguments)
        assert attack == {"attack": "PGD-20", "eps": 0.1}
        return demo_figure(*arguments, **attack)

    monkeypatch.setattr(demo_module, "demo_figure", drawing)
    answer = command("demo", "--out", tmp_path / "demo", "--seed", 3)
    assert answer.code == 0
    assert is_picture(tmp_path / "demo" / "demo.png")
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == ["demo.png", "emr", "plain"]
    assert read_toml(tmp_path / "demo" / "emr" / "config.toml").seed == 3
    assert "60 test digits" in answer.text
    data = load("mnist-embedded", "test", limit=60)
    for folder, name in (("plain", "plain"), ("emr", "EMR")):
        model = load_target(tmp_path / "demo" / folder).model
        clean = percent(verdicts(model, data))
        robust = percent(verdicts(model, data, demo_module.ATTACK))
        mean = measure_margins(model, in_order(data, 60)).over_all().mean
        assert f"{name} {clean:.2f} {robust:.2f} {mean:.3f}" in answer.text
        ((margins, shown, labels, twins),) = drawn
        attacked = demo_module.ATTACK(model, shown, labels)
        assert twins[name].images.equal(attacked)
        assert twins[name].predictions.equal(model(attacked).argmax(1))
        assert twins[name].accuracy == robust
        assert len(margins[name]) == 60
    assert "points under attack" in answer.text


EVIL = "[/b] :factory: \x1b[31mred\x9b2J\u202e[bold"
"""Markup, a name of a picture, escapes that steer terminals, a change of direction."""
SHOWN = "[/b] :factory: \\u001b[31mred\\u009b2J\\u202e[bold"


@pytest.fixture(scope="module")
def evil(recipe, tmp_path_factory):
    """A finished run whose name is hostile, in a folder of such a name."""
    path = tmp_path_factory.mktemp("evil")
    (path / "evil.toml").write_text(to_toml(replace(read_toml(recipe), name=EVIL)))
    assert main_module.run(["train", str(path / "evil.toml"), "--out", str(path / "[/b] run")]) == 0
    return path


HOSTILE = {
    "recipes": (("recipes", "show", "EVIL/evil.toml"), "name = "),
    "train": (("train", "EVIL/evil.toml", "--out", "[/b]\x1b"), "next: widemargin evaluate '[/b]\\u001b'"),
    "evaluate": (("evaluate", "EVIL/[/b] run", "--limit", 9, "--out", "[/b]\x1b"), "records: [/b]\\u001b"),
    "margins": (("margins", "EVIL/[/b] run", "--limit", 9, "--picture", "[/b].png"), f"(l2), {SHOWN}: test images"),
    "sweep": (("sweep", "EVIL/evil.toml", "--grid", "seed=0", "--out", "[/b]?%41 #"), f"{SHOWN}: 1 of 1 points"),
    "report": (("report", "EVIL/[/b] run", "--out", "[b].html"), "[b].html"),
    "a mistake": (("train", "EVIL/evil.toml", "--out", "\x1b[31m", "--set", "\x1b=1"), "widemargin: "),
    "a target": (("evaluate", "\x1b]0;title\x07"), "\\u001b]0;title\\u0007"),
}


@pytest.mark.parametrize("verb", HOSTILE)
def test_hostile_names_are_printed_as_text(command, evil, tmp_path, monkeypatch, verb):
    arguments, says = HOSTILE[verb]
    monkeypatch.chdir(tmp_path)
    answer = command(*(str(argument).replace("EVIL", str(evil)) for argument in arguments))
    said = answer.out + answer.err
    assert answer.code == (2 if verb in ("a mistake", "a target") else 0), said
    assert says in said
    assert all(character.isprintable() or character == "\n" for character in said)
    assert "🏭" not in said


TINY_BENCHMARK = ("--model", "mlp", "--batch-size", "2", "--rounds", "1")
PIPED = {
    "recipes": ("recipes",),
    "recipes show": ("recipes", "show", "cifar-cnn/at-emr"),
    "train": ("train", "RECIPE", "--out", "a-folder-of-a-long-name/and-another/" + "x" * 100),
    "evaluate": ("evaluate", "RUN", "--limit", "9", "--eps", "1/255,2/255,3/255,4/255,5/255,6/255,7/255", "--out", "o"),
    "margins": ("margins", "RUN", "--limit", "9", "--picture", "x" * 100 + ".png"),
    "sweep": ("sweep", "RECIPE", "--grid", "data.train_limit=30,40", "--grid", "optimizer.lr=0.1", "--out", "x" * 90),
    "python -m benchmarks step": (BENCHMARKS, "step", "--emr", "approximate", *TINY_BENCHMARK),
    "python -m benchmarks paper": (BENCHMARKS, "paper", *TINY_BENCHMARK),
    "report": ("report", "RUN", "--out", "x" * 100 + ".html"),
    "reproduce": ("reproduce", "table1", "--quick", "--rows", "st-wd0.1", "--out", "x" * 100),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("verb", PIPED)
def test_what_goes_into_a_pipe_is_neither_wrapped_nor_cut(command, recipe, trained, tmp_path, monkeypatch, verb):
    if BENCHMARKS in PIPED[verb]:
        monkeypatch.setitem(MODELS, "mlp", partial(MLPConfig, hidden=(16,)))
    lines = []
    for width in (None, "40", "1000"):
        monkeypatch.delenv("COLUMNS") if width is None else monkeypatch.setenv("COLUMNS", width)
        folder = tmp_path / str(width)
        folder.mkdir()
        monkeypatch.chdir(folder)
        answer = command(*(recipe if word == "RECIPE" else trained if word == "RUN" else word for word in PIPED[verb]))
        assert answer.code == 0, answer.err
        assert "…" not in answer.out + answer.err
        said = re.sub(r"[^\x20-\x7e\n…]", "", re.sub(r"-?[\d.,]+(e[+-]?\d+)?|[GT]FLOP", "0", answer.out + answer.err))
        lines.append([line.split() for line in said.splitlines()])
    assert lines[0] == lines[1] == lines[2]


STREAMS = {
    "a full log": ("train RECIPE --out run 2>/dev/full", 0, ""),
    "a closed log": ("train RECIPE --out run 2>&-", 0, ""),
    "a log nobody reads": ("train RECIPE --out run 2> >(exit)", 0, ""),
    "a mistake into a full log": ("train RECIPE --out run --set seed=-1 2>/dev/full", 2, ""),
    "a full disk": ("recipes >/dev/full", 2, "widemargin: cannot write to standard output: No space left on device"),
    "a reader who has enough": ("recipes --json | (exec 0<&-; sleep 9); exit ${PIPESTATUS[0]}", 141, ""),
    "closed output": ("recipes >&-", 0, ""),
    "a terminal of ASCII": ("evaluate RUN --limit 9 >out", 0, ""),
}


@pytest.mark.parametrize("stream", STREAMS)
def test_streams_that_cannot_be_written(recipe, trained, tmp_path, stream):
    words, code, says = STREAMS[stream]
    line = f"{sys.executable} -m widemargin {words.replace('RECIPE', str(recipe)).replace('RUN', str(trained))}"
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "OMP_NUM_THREADS": "1"}  # as here: bits depend on it
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    said = "".join(line for line in done.stderr.splitlines() if not line.startswith("shard "))
    assert said.startswith(says)
    assert bool(said) == bool(says)
    if words.startswith("train") and code == 0:
        assert epochs_of(tmp_path / "run") == [1, 2]
        assert (tmp_path / "run" / "last.safetensors").read_bytes() == (trained / "last.safetensors").read_bytes()


@pytest.mark.parametrize("verb", VERBS)
def test_an_interrupt_speaks_of_the_verb(monkeypatch, capsys, verb):
    def interrupted(**kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(CommandLine, "command", lambda line: interrupted)
    assert main_module.run([verb]) == 130
    assert capsys.readouterr().err == f"widemargin: {VERBS[verb].interrupted}\n"
    assert ("training run" in VERBS[verb].interrupted) == (verb == "train")


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch):
    def broken(**kwargs):
        raise RuntimeError("a bug")

    monkeypatch.setattr(CommandLine, "command", lambda line: broken)
    with pytest.raises(RuntimeError, match="a bug"):
        main_module.run(["recipes"])
