"""The commands and the code of the tutorials run in their order, with small runs in the place of long ones."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import widemargin
from widemargin.cli.main import run
from widemargin.models import ResNet18Config
from widemargin.objectives import OBJECTIVES

DOCS = Path(__file__).parents[2] / "docs"
SMALL = [
    "epochs=1",
    "data.train_limit=40",
    "data.test_limit=12",
    "watch.margins=[]",
    "optimizer.schedule={kind='constant'}",
]
CIFAR = [*SMALL, "data.name=cifar10-embedded", "data.held_out=20", "model.width=2", "batch_size=10"]
CIFAR += ["objective.attack.steps=1", "evaluation.attacks=['clean']", "watch.attack=none"]


def text_of(page):
    return (DOCS / page).read_text(encoding="utf-8")


def commands(page):
    return [shlex.split(line)[1:] for line in re.findall(r"^widemargin .*$", text_of(page), re.MULTILINE)]


def python(page):
    return re.findall(r"```python\n(.*?)```", text_of(page), re.DOTALL)


def made_small(words, changes):
    """The same command on few images, with a small network."""
    verb = words[2] if words[0] == "--import" else words[0]
    data = [place + 1 for place, word in enumerate(words) if word == "--dataset"]
    words = ["cifar10-embedded" if place in data else word for place, word in enumerate(words)]
    if verb == "train":
        words = words + [word for change in changes for word in ("--set", change)]
    if verb == "evaluate":
        words = [re.sub("autoattack", "apgd-ce", word) for word in words]
        at = words.index("--limit") if "--limit" in words else len(words)
        words = [*words[:at], "--limit", "6", *words[at + 2 :]]
    return ["apgd-ce" if word == "autoattack" else word for word in words]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in; what a page's module puts into the registry is taken out again."""
    monkeypatch.chdir(tmp_path)
    before = dict(OBJECTIVES)
    yield tmp_path
    OBJECTIVES.clear()
    OBJECTIVES.update(before)
    for name in ("my_method", "my_models"):
        sys.modules.pop(name, None)


def done(words, capsys):
    code = run(words)
    said = capsys.readouterr()
    assert code == 0, said.err
    return said.out


def test_five_minutes_and_the_first_page(here, capsys):
    shown = commands("start.md")
    assert [words[0] for words in shown] == ["demo", "train", "evaluate", "report"]
    for words in shown[1:]:
        done(made_small(words, [*SMALL, "model.hidden=[8]"]), capsys)
    assert (here / "report.html").exists()
    assert python("README.md")[0].split() == [
        *python("start.md")[0].replace("1.0)", "1.0) # two lines in your own training loop", 1).split()
    ]
    names = {"widemargin": widemargin, "F": F, "model": nn.Sequential(nn.Flatten(), nn.Linear(12, 3))}
    names |= {"x": torch.rand(4, 3, 2, 2), "y": torch.tensor([0, 1, 2, 0])}
    for block in python("start.md"):
        exec(block, names)
    names["loss"].backward()
    assert names["report"].accuracy.keys() == {"clean", "pgd20"}


def test_the_code_of_the_page_on_evaluation():
    """On a network that every part of AutoAttack breaks, so that it is over soon."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 10))
    model[1].weight.data *= 30
    images = torch.rand(8, 3, 4, 4)
    labels = model(images).argmax(1)
    names = {"widemargin": widemargin, "PGD": widemargin.PGD, "model": model, "images": images, "labels": labels}

    def my_attack(model, x, y):
        return (x + 0.03).clamp(0, 1)

    names["my_attack"] = my_attack
    (block,) = python("evaluation.md")
    exec(block, names)
    accuracy = names["report"].accuracy
    assert accuracy["autoattack"] <= accuracy["pgd-strongest"] <= accuracy["clean"] == 100


def test_cifar_10_with_and_without_emr(here, capsys):
    shown = commands("tutorial-cifar.md")
    train = [words for words in shown if words[0] == "train"]
    assert [words[1] for words in train] == ["cifar-resnet18/at-wd0.0005", *["cifar-resnet18/at-emr"] * 3]
    judge = [words for words in shown if words[0] == "evaluate"]
    compare = [words for words in shown if words[0] in ("compare", "report") and "reproduce" not in words][:2]
    for words in (*train[:2], *judge, *compare):
        out = done(made_small(words, CIFAR), capsys)
    assert {path.name for path in here.iterdir()} >= {"runs", "evaluations", "report.html", "report.tex"}
    first, second = (json.loads((here / "evaluations" / name / "report.json").read_text()) for name in ("at", "at-emr"))
    assert first["eps"][0]["written"] == second["eps"][0]["written"] == "0.031"
    assert out


def test_a_downloaded_model(here, capsys, monkeypatch):
    model = ResNet18Config(width=2).build(image_shape=(3, 32, 32), num_classes=10, seed=0)
    torch.save(model.state_dict(), "weights.pt")
    module, call = python("tutorial-downloaded.md")
    (here / "my_models.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(here)
    for words in commands("tutorial-downloaded.md"):
        if words[1] == "weights.pt" and words[0] == "evaluate":
            words = [*words, "--normalize", "cifar10"]
        done(made_small(words, []), capsys)
    import my_models

    names = {"widemargin": widemargin, "make_net": my_models.make_net}
    names |= {"images": torch.rand(4, 3, 32, 32), "labels": torch.arange(4)}
    exec("model = make_net().eval()\n" + call, names)
    assert "clean" in capsys.readouterr().out


def test_a_method_of_ones_own(here, capsys, monkeypatch):
    (module,) = python("tutorial-own-method.md")
    assert len(module.splitlines()) <= 30
    (here / "my_method.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(here)
    for words in commands("tutorial-own-method.md"):
        out = done(made_small(words, SMALL), capsys)
    assert "apgd-ce" in out
    with_more = ["awp.gamma=0.005", "emr={kind='approximate', weight=0.01}", *SMALL]
    train = next(words for words in commands("tutorial-own-method.md") if "--import" in words)
    both = [*train[:-1], "runs/more", *(word for change in with_more for word in ("--set", change))]
    done(both, capsys)
