"""The code in docs/adding.md is run as it stands, and what it adds trains."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import torch

import widemargin
from widemargin.attacks import ATTACK_KINDS, ATTACKS
from widemargin.cli.main import run
from widemargin.config.toml import read_toml, to_dict
from widemargin.data import AUGMENTATIONS, DATASETS
from widemargin.evaluation.adversarial import read_adversarial
from widemargin.heads import HEADS
from widemargin.models import MODELS
from widemargin.objectives import OBJECTIVES
from widemargin.optimizers import OPTIMIZERS
from widemargin.schedules import SCHEDULES

PAGE = Path(__file__).parents[2] / "docs" / "adding.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def setting(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


TINY = setting("epochs=1", "data.test_limit=20", "data.train_limit=100", "watch.margins=[]")
TINY += setting("optimizer.schedule={kind = 'constant'}")
OWN_MODEL = setting("model={kind = 'tiny'}")
ATTACK = "{kind = 'pgd', eps = 0.1, step_size = 0.05, steps = 2}"
REGISTRIES = (MODELS, OBJECTIVES, HEADS, DATASETS, ATTACK_KINDS, SCHEDULES, OPTIMIZERS, AUGMENTATIONS)
CASES = {
    "model": OWN_MODEL,
    "loss": setting(f"objective={{kind = 'half-and-half', attack = {ATTACK}}}"),
    "head": setting("head={kind = 'shifted', shift = 2}"),
    "data": setting("data={name = 'stripes'}") + OWN_MODEL,
    "attack": setting("objective={kind = 'adversarial', attack = {kind = 'sparse', pixels = 9}}")
    + setting("watch.attack={kind = 'sparse'}"),
    "schedule": setting("optimizer.schedule={kind = 'square-root', epochs = 3}"),
    "optimizer": setting("optimizer.kind=rmsprop", "optimizer.alpha=0.9", "optimizer.clip=1"),
    "augmentation": setting("data.augmentation={kind = 'brightness', by = 0.5}"),
    "augmentation by name": setting("data.augmentation=brightness"),
}


@pytest.fixture
def my_module(tmp_path, monkeypatch):
    """The page's blocks as a user's module in the current folder; the registries are put back afterwards."""
    (tmp_path / "my_module.py").write_text("\n\n".join(BLOCKS), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    before = [(registry, dict(registry)) for registry in (*REGISTRIES, ATTACKS)]
    yield "my_module"
    sys.modules.pop("my_module", None)
    for registry, content in before:
        registry.clear()
        registry.update(content)


@pytest.mark.parametrize("case", CASES)
def test_what_the_page_adds_trains_and_is_judged(my_module, case, capsys):
    command = ["--import", my_module]
    assert run([*command, "train", "demo/plain", "--out", "run", *TINY, *CASES[case]]) == 0, capsys.readouterr().err
    assert run([*command, "evaluate", "run", "--limit", "20", "--json"]) == 0
    assert '"pgd20"' in capsys.readouterr().out


def test_the_attack_of_the_page_is_known_by_its_name(my_module, tmp_path, capsys):
    assert run(["--import", my_module, "train", "demo/plain", "--out", "run", *TINY]) == 0
    capsys.readouterr()
    command = ["evaluate", "run", "--attacks", "clean,pgd-random", "--eps", "0.05,0.1", "--limit", "20", "--json"]
    assert run(["--import", my_module, *command, "--out", "judged", "--save-adversarial"]) == 0
    accuracy = json.loads(capsys.readouterr().out)["accuracy"]
    assert list(accuracy) == ["clean", "pgd-random@0.05", "pgd-random@0.1"]
    assert accuracy["pgd-random@0.1"] < accuracy["clean"]
    broken = read_adversarial("judged", "pgd-random@0.1")
    assert (widemargin.load("run")(broken.images).argmax(1) != broken.label).all()
    sys.modules.pop(my_module)
    ATTACKS.pop("pgd-random")
    assert run(command) == 2
    assert "unknown attack 'pgd-random'" in capsys.readouterr().err


def test_tensors_at_hand_train(my_module, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(my_module)
    images, labels = torch.rand(30, 1, 28, 28), torch.arange(30) % 3
    result = module.train_on(tmp_path / "run", images, labels, 3)
    assert result.finished
    assert widemargin.load(tmp_path / "run")(images).shape == (30, 3)


def test_the_next_command_imports_the_module_too(my_module, capsys):
    assert run(["--import", my_module, "train", "demo/plain", "--out", "run", *TINY, *OWN_MODEL]) == 0
    said = capsys.readouterr().err
    assert "next: widemargin --import my_module evaluate run" in said
    assert run(["train", "demo/plain", "--out", "plain", *TINY]) == 0
    assert "next: widemargin evaluate plain" in capsys.readouterr().err


def test_there_are_ten_short_blocks():
    assert len(BLOCKS) == 10
    assert all(len(block.splitlines()) < 30 for block in BLOCKS)


def test_without_the_module_the_kind_is_unknown(tmp_path, capsys):
    assert run(["train", "demo/plain", "--out", str(tmp_path / "run"), *TINY, *OWN_MODEL]) == 2
    assert "model.kind must be one of" in capsys.readouterr().err


def test_a_sweep_over_a_class_of_ones_own_keeps_its_settings(my_module, tmp_path, capsys):
    command = ["--import", my_module, "sweep", "demo/plain", "--out", "grid", *TINY, *CASES["optimizer"]]
    assert run([*command, "--grid", "optimizer.alpha=0.5,0.9"]) == 0, capsys.readouterr().err
    configs = [read_toml(path) for path in Path("grid").rglob("config.toml")]
    assert sorted(to_dict(config)["optimizer"]["alpha"] for config in configs) == [0.5, 0.9]
    assert {to_dict(config)["optimizer"]["kind"] for config in configs} == {"rmsprop"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("objective={kind='adversarial', attack={kind='mine'}}", "objective.attack.kind must be one of fgsm, "),
        ("optimizer.schedule.kind=mine", "optimizer.schedule.kind must be one of constant, cosine, "),
        ("optimizer.kind=mine", "optimizer.kind must be one of adamw, sgd; got 'mine'; one of your own needs --import"),
        ("data.augmentation={kind='mine'}", "data.augmentation.kind must be one of "),
        ("data.augmentation=mine", "data.augmentation must be one of "),
    ],
)
def test_what_is_in_no_registry_is_refused_with_the_list(changed, message, capsys):
    assert run(["train", "demo/plain", "--out", "run", *setting(changed)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_module_that_is_not_there(capsys):
    assert run(["--import", "no_such_module", "recipes"]) == 2
    assert "no_such_module" in capsys.readouterr().err
