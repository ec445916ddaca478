"""AutoAttack through the evaluator is the backend called directly: verdicts, images and model calls."""

import json
from functools import cache

import pytest
import torch
from official import SHORT, STARTUP_CALLS, VERY_SHORT, assert_official, officially, shorten, shortened
from pyautoattack import AutoAttack
from small_networks import Around, Counted, Rough, pictures, taught_conv, taught_flat
from torch import nn

import widemargin
from widemargin.evaluation import judge
from widemargin.evaluation.autoattack import (
    PARTS,
    attacked,
    break_survivors,
    make_reference,
    part_attack,
    undisturbed,
)

COLORED = (3, 6, 6)
CASES = {
    # name: (model, classes, image shape, norm, eps, seed, batch size)
    "linf, several batches": (lambda: Rough(taught_conv()), 10, (1, 8, 8), "linf", 0.2, 0, 6),
    "l2, several batches": (lambda: Rough(taught_conv()), 10, (1, 8, 8), "l2", 1.3, 0, 6),
    "linf, one batch, another seed": (lambda: Rough(taught_conv()), 10, (1, 8, 8), "linf", 0.2, 5, 250),
    "l2, one batch, another seed": (lambda: Rough(taught_conv()), 10, (1, 8, 8), "l2", 0.8, 5, 20),
    "five classes, color, linf": (lambda: Rough(taught_conv(5, COLORED), 0.1, 120), 5, COLORED, "linf", 0.25, 0, 7),
    "an honest network": (lambda: taught_conv(), 10, (1, 8, 8), "linf", 0.1, 0, 250),
}


@cache
def rough_official():
    """What the backend does to the network of most tests here."""
    return officially(Rough(taught_conv()), *pictures(10, 20), eps=0.2, batch_size=6, lengths=SHORT)


@pytest.mark.parametrize("case", CASES)
def test_verdicts_are_those_of_the_backend_after_every_part(short, case):
    make, classes, shape, norm, eps, seed, batch_size = CASES[case]
    x, y = pictures(classes, 20, shape)
    options = {"eps": eps, "norm": norm, "seed": seed, "batch_size": batch_size}
    official = officially(make(), x, y, **options, classes=classes, lengths=SHORT)
    report = widemargin.evaluate(make(), (x, y), ["clean", "autoattack"], **options, sanity=False, margins=False)
    assert_official(report, official)
    clean = report.verdicts["clean"]
    changed = (official.x_adv != x).flatten(1).any(1)
    assert (clean & ~report.verdicts["autoattack"]).tolist() == (changed & clean).tolist()
    counts = [int(flags.sum()) for flags in (clean, *official.survivors.values())]
    if case != "an honest network":  # else the comparison would be of one part only
        assert len(set(counts)) >= 4, counts
    assert counts[-1] < counts[0]


def test_adversarial_images_are_those_of_the_backend(short):
    model, (x, y) = Rough(taught_conv()), pictures(10, 20)
    official = rough_official()
    reference = make_reference(model, eps=0.2, norm="linf", seed=0, num_classes=10, device=torch.device("cpu"))
    shorten(reference, **SHORT)
    survivors, x_adv = model(x).argmax(1) == y, x.clone()
    with torch.random.fork_rng(devices=[]):
        for part in PARTS:
            judge, moved = Counted(model), x.clone()
            broken = break_survivors(judge, x, y, survivors, reference=reference, part=part, batch_size=6).positions
            moved[survivors] = torch.cat(judge.seen)
            survivors[broken] = False
            x_adv[broken] = moved[broken]
    assert x_adv.equal(official.x_adv)


def test_each_shard_is_one_call_of_the_backend(very_short):
    model, (x, y) = Rough(taught_conv()), pictures(10, 20)
    report = widemargin.evaluate(
        model, (x, y), ["autoattack"], 0.2, shard_size=9, batch_size=6, sanity=False, margins=False
    )
    parts = [
        officially(model, images, labels, eps=0.2, batch_size=6, lengths=VERY_SHORT).survivors["square"]
        for images, labels in zip(x.split(9), y.split(9), strict=True)
    ]
    assert report.verdicts["autoattack"].tolist() == torch.cat(parts).tolist()


@pytest.mark.parametrize(("norm", "eps", "share"), [("linf", 0.4, 0.5), ("l2", 1.7, 0.75)])
def test_the_model_sees_fewer_images(monkeypatch, norm, eps, share):
    """Broken images leave: the same verdicts for less work, where most images break.

    In float64, since so rough a network makes much of how batches of other sizes are rounded in float32.
    """
    x, y = pictures(10, 12)
    lengths = {"apgd": 20, "fab": 5, "queries": 20}
    monkeypatch.setattr(judge, "make_reference", shortened(judge.make_reference, lengths))
    wide = Around(Rough(taught_conv()).double(), lambda network, x: network(x.double()).float())
    bare, ours = Counted(wide), Counted(wide)
    bare.__deepcopy__ = lambda memo: bare  # watch this one, not the copy
    official = officially(bare, x, y, eps=eps, norm=norm, lengths=lengths)
    report = widemargin.evaluate(ours, (x, y), ["clean", "autoattack"], eps, norm, sanity=False, margins=False)
    assert_official(report, official)
    theirs = sum(len(images) for images in bare.seen[STARTUP_CALLS:])
    assert sum(len(images) for images in ours.seen) < share * theirs


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("part", ["apgd-t", "fab-t"])
@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.2), ("l2", 1.0)])
def test_targets_together_break_what_they_break_one_after_the_other(part, norm, eps, seed):
    """In float64, where the size of a batch makes no difference; targets break images here, and are drawn for again."""
    model = Around(Rough(taught_conv()).double(), lambda network, x: network(x.double()).float())
    x, y = pictures(10, 12)
    right = model(x).argmax(1) == y
    x, y = x[right], y[right]
    options = {"norm": norm, "seed": seed, "num_classes": 10, "device": torch.device("cpu")}
    reference = shorten(make_reference(model, eps=eps, **options), apgd=12, fab=6, queries=1)
    with torch.no_grad(), undisturbed(model):
        theirs = part_attack(reference, part).perturb(x.clone(), y.clone())
        ours = attacked(reference, part, x, y)
        broken = model(theirs).argmax(1) != y
        assert (model(ours).argmax(1) != y).equal(broken)
    assert 0 < int(broken.sum()) < len(x)


def plain(attack):
    kept = {key: value for key, value in vars(attack).items() if isinstance(value, int | float | str | None)}
    return {key: value for key, value in kept.items() if key not in ("targeted", "device")}


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_attacks_have_the_standard_settings(norm):
    model = nn.Flatten()
    bare = AutoAttack(model, norm={"linf": "Linf", "l2": "L2"}[norm], eps=0.1, seed=3, device="cpu")
    reference = make_reference(model, eps=0.1, norm=norm, seed=3, num_classes=10, device=torch.device("cpu"))
    for name in ("apgd", "apgd_targeted", "fab", "square"):
        assert plain(getattr(reference, name)) == plain(getattr(bare, name)), name
    assert reference.square.n_queries == 5000
    assert tuple(bare.attacks_to_run) == PARTS
    assert part_attack(reference, "fab-t").targeted
    assert part_attack(reference, "apgd-ce").loss == "ce"


@pytest.mark.parametrize(("classes", "targets"), [(2, 1), (3, 2), (5, 4), (9, 8), (10, 9), (11, 9), (100, 9)])
def test_there_are_as_many_targets_as_other_classes_up_to_nine(classes, targets):
    reference = make_reference(
        nn.Flatten(), eps=0.1, norm="linf", seed=0, num_classes=classes, device=torch.device("cpu")
    )
    assert reference.apgd_targeted.n_target_classes == reference.fab.n_target_classes == targets


def test_the_whole_standard_attack_unshortened():
    model, (x, y) = nn.Sequential(nn.Flatten(), taught_flat(5)), pictures(5, 3)
    official = officially(model, x, y, eps=0.08, classes=5)
    report = widemargin.evaluate(model, (x, y), ["autoattack"], 0.08, sanity=False, margins=False)
    assert_official(report, official)
    assert report.verdicts["autoattack"].any()


def test_records_say_which_part_broke_which_example(short, tmp_path):
    model, (x, y) = Rough(taught_conv()), pictures(10, 20)
    official = rough_official()
    report = widemargin.evaluate(
        model, (x, y), ["clean", "autoattack"], 0.2, out=tmp_path, shard_size=20, batch_size=6, sanity=False
    )
    rows = [json.loads(line) for line in (tmp_path / "examples.jsonl").read_text().splitlines()]
    assert [row["index"] for row in rows] == list(range(20))
    assert [row["label"] for row in rows] == y.tolist()
    assert [row["prediction"] for row in rows] == model(x).argmax(1).tolist()
    for position, row in enumerate(rows):
        broken = [part for part, survivors in official.survivors.items() if not survivors[position]]
        expected = broken[0] if broken and report.verdicts["clean"][position] else None
        assert row["broken_by"] == expected
        assert row["verdicts"] == {name: bool(flags[position]) for name, flags in report.verdicts.items()}
        assert row["margin"] == pytest.approx(float(report.margin[position]))
    assert len({row["broken_by"] for row in rows}) >= 4
