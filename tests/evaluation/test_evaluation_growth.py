"""The same folder takes more attacks, eps, steps, images and measurements later; only what is missing is computed."""

import json
import shutil

import numpy as np
import pytest
import torch
from evaluation_child import ATTACKS, CLASSES, COUNT, OPTIONS
from evaluation_child import evaluate as whole_evaluation
from official import assert_same
from small_networks import pictures, taught_conv
from test_evaluation_processes import two_processes
from test_evaluation_resume import CHILD, counted, records, weights

import widemargin
from widemargin import PGD, InputError
from widemargin.evaluation import certified, evaluator
from widemargin.evaluation.adversarial import read_adversarial
from widemargin.evaluation.comparison import wilson
from widemargin.evaluation.unfinished import read_unfinished

QUICK = {"sanity": False, "margins": False, "shard_size": 3, "batch_size": 2}


def evaluate(out, attacks, eps="0.2", model=None, limit=None, **options):
    settings = OPTIONS | {"distance": False} | {"eps": eps, "limit": limit} | options
    return widemargin.evaluate(model or counted(), pictures(CLASSES, COUNT), attacks, out=out, **settings)


def calls(out, attacks, **options):
    model = counted()
    evaluate(out, attacks, model=model, **options)
    return model.calls


GROWTHS = {
    "an attack": (["clean", "pgd20"], {}, {"attacks": ["clean", "pgd20", "fgsm"]}),
    "autoattack": (["clean", "fgsm"], {}, {"attacks": ["clean", "fgsm", "autoattack"]}),
    "eps": (["clean", "autoattack"], {}, {"attacks": ["clean", "autoattack"], "eps": ["0.2", "0.1"]}),
    "a whole shard": (["clean", "autoattack"], {"limit": 3}, {"attacks": ["clean", "autoattack"]}),
    "part of a shard": (["clean", "autoattack"], {"limit": 4}, {"attacks": ["clean", "autoattack"]}),
    "part of the first shard": (["clean", "autoattack"], {"limit": 2}, {"attacks": ["clean", "autoattack"]}),
    "margins": (["clean", "fgsm"], {"margins": False}, {"attacks": ["clean", "fgsm"]}),
    "distance": (["clean", "fgsm"], {}, {"attacks": ["clean", "fgsm"], "distance": True}),
    "sanity": (["clean", "fgsm"], {"sanity": False}, {"attacks": ["clean", "fgsm"]}),
    "the strongest": (["clean", "pgd20"], {}, {"attacks": ["clean", "pgd-strongest"]}),
    "everything": (
        ["clean", "fgsm"],
        {"limit": 4, "margins": False},
        {"attacks": ["clean", "fgsm", "autoattack"], "eps": ["0.2", "0.1"], "distance": True},
    ),
}


@pytest.mark.parametrize("name", GROWTHS)
def test_what_has_grown_is_what_was_made_at_once(name, tmp_path):
    attacks, begun, asked = GROWTHS[name]
    fresh = evaluate(tmp_path / "fresh", **asked)
    evaluate(tmp_path / "grown", attacks, **begun)
    grown = evaluate(tmp_path / "grown", **asked)
    for key, right in fresh.verdicts.items():
        assert grown.verdicts[key].tolist() == right.tolist(), key
    assert grown.verdicts.keys() == fresh.verdicts.keys()
    assert {**grown.accuracy} == {**fresh.accuracy}
    mine, theirs = (json.loads((tmp_path / folder / "report.json").read_text()) for folder in ("grown", "fresh"))
    for key in mine.keys() - {"seconds", "digest", "examples", "gallery"}:
        assert mine[key] == theirs[key], key
    mine, theirs = (
        [json.loads(line) for line in (tmp_path / folder / "examples.jsonl").read_text().splitlines()]
        for folder in ("grown", "fresh")
    )
    assert mine == theirs
    assert calls(tmp_path / "grown", **asked) == 1  # nothing is left to do
    assert not (tmp_path / "grown" / "parts").is_dir() or not list((tmp_path / "grown" / "parts").iterdir())


@pytest.mark.parametrize("name", ["autoattack", "eps", "a whole shard", "distance"])
def test_only_what_is_missing_is_computed(name, tmp_path):
    attacks, begun, asked = GROWTHS[name]
    first = calls(tmp_path / "grown", attacks, **begun)
    more = calls(tmp_path / "grown", **asked)
    assert first + more - 1 == calls(tmp_path / "fresh", **asked)  # a look at the first images each time


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.95])
def test_killed_while_it_grows(share, tmp_path):
    attacks, begun, asked = GROWTHS["everything"]
    evaluate(tmp_path / "whole", attacks, **begun)
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    model = counted()
    expected = evaluate(tmp_path / "whole", model=model, **asked)

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(tmp_path / "killed", model=counted(int(share * model.calls) + 1, interrupt), **asked)
    assert (
        json.loads((tmp_path / "killed" / "report.json").read_text())["attacks"] == attacks
    )  # still the one of before
    unfinished = read_unfinished(tmp_path / "killed")
    assert unfinished is not None
    assert unfinished.count >= 3
    assert_same(evaluate(tmp_path / "killed", **asked), expected)
    assert records(tmp_path / "killed") == records(tmp_path / "whole")


def test_columns_stand_side_by_side(tmp_path):
    one = evaluate(tmp_path, ["pgd3"], step_size=0.02)
    other = evaluate(tmp_path, ["pgd3"])
    assert one.accuracy.keys() == {"clean", "pgd3"}
    assert list(other.accuracy) == ["clean", "pgd3 (step 0.02)", "pgd3"]
    assert other.verdicts["pgd3 (step 0.02)"].tolist() == one.verdicts["pgd3"].tolist()
    assert other.verdicts["pgd3"].tolist() == evaluate(None, ["pgd3"]).verdicts["pgd3"].tolist()
    third = evaluate(tmp_path, ["fgsm"], eps=["0.1"])
    assert list(third.accuracy) == ["clean", "pgd3 (step 0.02)@0.2", "pgd3@0.2", "fgsm@0.1"]
    assert third.attacks == ("fgsm", "pgd3")
    assert [radius.written for radius in third.eps] == ["0.1", "0.2"]
    record = third.to_json()
    assert record["columns"]["pgd3 (step 0.02)@0.2"] == {
        "attack": "pgd3",
        "eps": "0.2",
        "radius": 0.2,
        "step_size": 0.02,
    }
    assert set(record["curves"]) == {"pgd3 (step 0.02)", "pgd3", "fgsm"}
    assert evaluate(tmp_path, ["clean"], eps=1.0).to_json()["eps"] == [
        {"written": "0.2", "value": 0.2},
        {"written": "0.1", "value": 0.1},
    ]


def test_eps_is_one_however_it_is_written(tmp_path):
    evaluate(tmp_path, ["pgd3"], eps="1/4")
    again = counted()
    assert list(evaluate(tmp_path, ["pgd3"], eps="0.25", model=again).accuracy) == ["clean", "pgd3"]
    assert again.calls == 1


def test_what_is_known_of_some_images_is_left_out_and_said(tmp_path):
    evaluate(tmp_path, ["clean", "fgsm"], limit=3)
    report = evaluate(tmp_path, ["clean", "pgd20"])
    assert list(report.accuracy) == ["clean", "pgd20"]
    assert report.notes == ("fgsm@0.2 is known of 3 of these 8 images, so it is left out; ask for it to add the rest.",)
    assert "fgsm" not in (tmp_path / "examples.jsonl").read_text()
    both = evaluate(tmp_path, ["fgsm"])
    assert set(both.accuracy) == {"clean", "pgd20", "fgsm"}
    assert both.notes == ()
    assert evaluate(tmp_path, ["clean"], limit=3).count == 3


def test_two_processes_grow_it_as_one_does(tmp_path):
    torch.save(weights(), tmp_path / "weights.pt")
    for out in ("one", "two"):
        evaluate(tmp_path / out, ["clean", "pgd20"], eps="0.1")
    whole_evaluation(counted(), tmp_path / "one")
    finished = two_processes(CHILD, tmp_path / "weights.pt", tmp_path / "two")
    assert finished.returncode == 0, finished.stderr
    assert records(tmp_path / "two") == records(tmp_path / "one")
    assert records(tmp_path / "two")["report"]["attacks"] == ATTACKS


def test_an_evaluation_of_an_interrupted_growth_keeps_pieces_nobody_asks_for(tmp_path):
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate(tmp_path, ["clean", "fgsm", "autoattack"], model=counted(100, interrupt))
    evaluate(tmp_path, ["clean"])
    left = {path.name for path in (tmp_path / "parts").rglob("*.json")}
    assert any(name.startswith("autoattack-apgd-ce@0.2") for name in left)
    before = calls(tmp_path / "fresh", ["clean", "fgsm", "autoattack"])
    assert calls(tmp_path, ["clean", "fgsm", "autoattack"]) < before - 60
    assert not list((tmp_path / "parts").iterdir())


# Adversarial images


@pytest.fixture
def saved(tmp_path):
    attacks = ["clean", "pgd20", "autoattack", "pgd3-strongest"]
    return tmp_path, evaluate(tmp_path, attacks, model=taught_conv(CLASSES), eps="0.3", save_adversarial=True)


def test_images_are_those_that_were_broken(saved):
    folder, report = saved
    model, (x, y) = taught_conv(CLASSES), pictures(CLASSES, COUNT)
    assert not report.verdicts["autoattack"][report.verdicts["clean"]].all()
    for label in ("pgd20", "autoattack", "autoattack/apgd-ce", "pgd3-strongest"):
        found = read_adversarial(folder, label)
        right = report.verdicts["clean"]
        assert len(found.index) >= 2, label
        assert found.index.tolist() == (right & ~report.verdicts[label]).nonzero()[:, 0].tolist()
        assert torch.equal(found.label, y[found.index])
        assert (model(found.images).argmax(1) != found.label).all()
        assert float((found.images - x[found.index]).abs().max()) <= 0.3 + 1e-6
    attack = PGD(eps=0.3, step_size=0.075, steps=2)
    found = read_adversarial(folder, "pgd20")
    torch.testing.assert_close(found.images, attack(model, x, y)[found.index])
    evaluate(folder, ["pgd20"], model=taught_conv(CLASSES), eps="0.3")  # images stay where nobody asks for them
    assert read_adversarial(folder, "pgd20").index.tolist() == found.index.tolist()


def test_images_are_saved_later_of_what_was_judged_before(saved, tmp_path_factory):
    folder, report = saved
    later = tmp_path_factory.mktemp("later")
    options = {"attacks": ["clean", "pgd20", "autoattack"], "eps": "0.3"}
    evaluate(later, model=taught_conv(CLASSES), limit=5, **options)
    again = evaluate(later, model=taught_conv(CLASSES), save_adversarial=True, **options)
    for label in ("pgd20", "autoattack"):
        assert again.verdicts[label].tolist() == report.verdicts[label].tolist()
        assert torch.equal(read_adversarial(later, label).images, read_adversarial(folder, label).images)


def test_images_that_are_not_there_or_were_changed(saved):
    folder, _ = saved
    with pytest.raises(
        InputError, match="has no adversarial images of 'fgsm'; it has those of pgd20, autoattack/apgd-ce"
    ):
        read_adversarial(folder, "fgsm")
    path = folder / "adversarial" / "00001" / "pgd20@0.3.npz"
    with np.load(path) as stored:
        arrays = dict(stored)
    np.savez_compressed(path, **(arrays | {"images": 0 * arrays["images"]}))
    with pytest.raises(InputError, match=r"pgd20@0.3.npz does not fit its digest"):
        read_adversarial(folder, "pgd20")
    path.unlink()
    with pytest.raises(InputError, match=r"pgd20@0.3.npz is missing; evaluate again with --save-adversarial"):
        read_adversarial(folder, "pgd20")
    evaluate(folder, ["pgd20"], model=taught_conv(CLASSES), eps="0.3", save_adversarial=True)
    assert len(read_adversarial(folder, "pgd20").index)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"out": None, "attacks": ["fgsm"]}, r"adversarial images are saved in a folder; give out=... \(--out\)"),
        ({"out": "a", "attacks": ["clean"]}, "save_adversarial has no effect where nothing attacks"),
    ],
)
def test_nothing_to_save(options, says, tmp_path):
    options["out"] = options["out"] and tmp_path
    with pytest.raises(InputError, match=says):
        evaluate(**options, save_adversarial=True)


# What the record has of each accuracy


def test_intervals_and_classes(tmp_path):
    report = evaluate(tmp_path, ["clean", "fgsm"])
    record = json.loads((tmp_path / "report.json").read_text())
    _, y = pictures(CLASSES, COUNT)
    for name, right in report.verdicts.items():
        assert record["intervals"][name] == list(wilson(int(right.sum()), COUNT))
        expected = [100 * float(right[y == label].double().mean()) for label in range(CLASSES)]
        assert record["classes"]["accuracy"][name] == pytest.approx(expected)
    assert record["classes"]["count"] == [int((y == label).sum()) for label in range(CLASSES)]
    x, y = pictures(CLASSES, COUNT)
    few = widemargin.evaluate(taught_conv(CLASSES), (x[y != 1], y[y != 1]), ["clean"], 0.1, **QUICK).to_json()[
        "classes"
    ]
    assert (few["count"][1], few["accuracy"]["clean"][1]) == (0, None)


def test_a_shard_that_lacks_what_is_asked_for_is_refused(tmp_path, monkeypatch):
    evaluate(tmp_path, ["clean", "fgsm"])
    monkeypatch.setattr("widemargin.evaluation.evaluator.is_judged", lambda *_: True)
    with pytest.raises(InputError, match="0 of 8 examples in the shards have 'pgd3'; remove the shards that lack it"):
        evaluate(tmp_path, ["pgd3"])


def test_certified_radii_are_those_of_more_images_later(tmp_path, monkeypatch):
    model, options = taught_conv(CLASSES), {"out": tmp_path, "attacks": ["clean"]}
    evaluate(**options, model=model, certify=4)
    asked = []
    certified_margin = certified.certified_margin
    monkeypatch.setattr(
        certified, "certified_margin", lambda net, x, *args: asked.append(len(x)) or certified_margin(net, x, *args)
    )
    monkeypatch.setattr(certified, "check_certifiable", lambda *_: None)
    monkeypatch.setattr(evaluator, "check_certifiable", lambda *_: None)
    grown = evaluate(**options, model=model, certify="all")
    assert asked == [2, 2]  # of shards of 3, 3 and 2 images
    whole = evaluate(None, ["clean"], model=model, certify="all").certified
    torch.testing.assert_close(grown.certified, whole, rtol=0.02, atol=0)  # the bisection is that of a batch
    del asked[:]
    assert evaluate(**options, model=model, certify=2).certified.equal(grown.certified)
    assert asked == []
