"""Attacks by all their names, and attacks as values: single parts of AutoAttack, the strongest PGD, the user's own."""

import json
from dataclasses import dataclass, replace

import pytest
import torch
from official import SHORT, officially
from small_networks import Rough, pictures, taught_conv, taught_flat
from torch import nn

import widemargin
from widemargin import FGSM, PGD, InputError
from widemargin.attacks import ATTACKS, StrongestPGD, attack_named
from widemargin.evaluation.alarms import alarms_of_numbers
from widemargin.evaluation.settings import EvaluationSettings

QUICK = {"sanity": False, "margins": False}
PARTS = ("apgd-ce", "apgd-t", "fab-t", "square")


def evaluated(attacks, eps=0.1, model=None, count=20, **options):
    return widemargin.evaluate(model or taught_conv(), pictures(10, count, seed=5), attacks, eps, **(QUICK | options))


# Parts of AutoAttack alone


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.2), ("l2", 1.3)])
def test_a_part_alone_is_the_backend_s(short, part, norm, eps):
    x, y = pictures(10, 20)
    options = {"eps": eps, "norm": norm, "seed": 3, "batch_size": 6}
    official = officially(Rough(taught_conv(), 0.02, 40), x, y, **options, lengths=SHORT, parts=[part])
    report = widemargin.evaluate(Rough(taught_conv(), 0.02, 40), (x, y), [part], **options, **QUICK)
    assert report.verdicts[part].tolist() == official.survivors[part].tolist()
    assert list(report.verdicts) == ["clean", part]
    assert report.verdicts[part].sum() < report.verdicts["clean"].sum()


def test_parts_alone_leave_the_whole_as_it_is(short):
    data = pictures(10, 20)
    options = {"eps": 0.2, "batch_size": 6, **QUICK}
    whole = widemargin.evaluate(Rough(taught_conv()), data, ["autoattack"], **options)
    beside = widemargin.evaluate(Rough(taught_conv()), data, [*PARTS, "autoattack"], **options)
    for name, right in whole.verdicts.items():
        assert beside.verdicts[name].tolist() == right.tolist()
    assert beside.verdicts["apgd-ce"].tolist() == whole.verdicts["autoattack/apgd-ce"].tolist()
    assert beside.verdicts["square"].tolist() != whole.verdicts["autoattack/square"].tolist()


@pytest.mark.parametrize(
    ("attacks", "classes", "says"),
    [
        (["apgd-t"], 3, "apgd-t needs 4 classes, the model has 3; leave it out"),
        (["pgd2-dlr"], 2, "pgd2-dlr needs 3 classes, the model has 2; leave it out"),
    ],
)
def test_what_needs_more_classes(attacks, classes, says):
    with pytest.raises(InputError, match=says):
        widemargin.evaluate(taught_conv(classes), pictures(classes, 6), attacks, 0.1, **QUICK)


def test_only_square_wants_squares(short):
    model, (x, y) = taught_flat(), pictures(10, 6)
    signals = x.flatten(1)[:, None, :63]
    narrow = nn.Sequential(nn.Flatten(), nn.ZeroPad1d((0, 1)), model)
    report = widemargin.evaluate(narrow, (signals, y), ["apgd-ce", "fab-t"], 0.1, **QUICK)
    assert {"apgd-ce", "fab-t"} <= report.verdicts.keys()
    with pytest.raises(InputError, match=r"square takes images .* leave square out"):
        widemargin.evaluate(narrow, (signals, y), ["square"], 0.1, **QUICK)


# The strongest PGD


def test_the_strongest_is_the_worst_of_its_variants_and_says_which(tmp_path):
    names = ["pgd5", "pgd5-ce-s3", "pgd5-ce-s10", "pgd5-margin", "pgd5-dlr"]
    report = evaluated(["pgd5-strongest"], 0.12, Rough(taught_conv(), 0.05, 60), 60, out=tmp_path, shard_size=25)
    assert list(report.verdicts) == ["clean", *names, "pgd5-strongest"]
    each = torch.stack([evaluated([n], 0.12, Rough(taught_conv(), 0.05, 60), 60).verdicts[n] for n in names])
    assert torch.equal(torch.stack([report.verdicts[name] for name in names]), each)
    assert torch.equal(report.verdicts["pgd5-strongest"], each.all(0))
    clean, record = report.verdicts["clean"], json.loads((tmp_path / "report.json").read_text())
    rows = [json.loads(line) for line in (tmp_path / "examples.jsonl").read_text().splitlines()]
    for place, row in enumerate(rows):
        broken = [name for name, right in zip(names, each[:, place], strict=True) if not right]
        assert row["strongest_by"] == {"pgd5-strongest": broken[0] if broken and clean[place] else None}
    assert record["attacks"] == ["pgd5-strongest"]
    for n, name in enumerate(names):
        told = record["strongest"]["pgd5-strongest"][name]
        assert told["first"] == sum(row["strongest_by"]["pgd5-strongest"] == name for row in rows)
        assert told["alone"] == int((clean & ~each[n] & (each.sum(0) == 4)).sum())
    assert sum(told["first"] > 0 for told in record["strongest"]["pgd5-strongest"].values()) >= 2


def test_the_strongest_with_its_own_steps_at_several_eps_and_of_two_classes():
    report = evaluated(["pgd3-strongest", "pgd3"], ["0.05", "0.1"], step_size=0.02)
    assert "pgd3-strongest@0.05" in report.verdicts
    assert len(report.verdicts) == 1 + 2 * 6
    found = StrongestPGD(eps=0.1, step_size=0.02, steps=3)(taught_conv(), *pictures(10, 20, seed=5))
    right = taught_conv()(found).argmax(1) == pictures(10, 20, seed=5)[1]
    assert report.verdicts["pgd3-strongest@0.1"].tolist() == right.tolist()
    two = widemargin.evaluate(taught_conv(2), pictures(2, 6), ["pgd-strongest"], 0.1, **QUICK)
    assert list(two.verdicts)[1:] == ["pgd20", "pgd20-ce-s3", "pgd20-ce-s10", "pgd20-margin", "pgd-strongest"]


@pytest.mark.parametrize(
    ("accuracy", "count", "rings"),
    [
        ({"pgd20": 71.8, "pgd20-margin": 67.7}, 1000, True),
        ({"pgd20": 71.8, "pgd20-ce-s10": 67.6, "pgd20-margin": 72.0}, 1000, True),
        ({"pgd20": 71.8, "pgd20-margin": 71.0}, 1000, False),
        ({"pgd20": 70.0, "pgd20-margin": 68.0}, 100, False),  # two images
        ({"pgd20": 71.8, "pgd100-margin": 60.0}, 1000, False),  # more steps
        ({"pgd20": 71.8, "pgd20x10-margin": 60.0}, 1000, False),  # more starts
        ({"pgd20": 14.6, "pgd20-margin": 18.7}, 1000, False),
        ({"pgd20-dlr": 71.8, "pgd20-margin": 60.0}, 1000, False),
        ({"pgd20@0.1": 71.8, "pgd20-margin@0.1": 67.7, "pgd20@0.2": 3.0, "pgd20-margin@0.2": 9.0}, 1000, True),
        ({"pgd20@0.1": 71.8, "pgd20-margin@0.2": 9.0}, 1000, False),
    ],
)
def test_the_alarm_of_a_flattering_loss(accuracy, count, rings):
    settings = EvaluationSettings(attacks=("clean", "pgd20"), eps=(0.1,))
    found = alarms_of_numbers({"clean": 90.0} | accuracy, settings, count)
    assert [alarm.name for alarm in found] == ["flattering-loss"] * rings
    if rings:
        lowest = "pgd20-ce-s10 67.6%" if "pgd20-ce-s10" in accuracy else "pgd20-margin 67.7%"
        assert found[0].message.startswith(f"pgd20 leaves 71.8%, {lowest}")
        assert found[0].message.endswith(" at eps 0.1") == ("pgd20@0.1" in accuracy)


# Attacks as values


def half_way(model, x, y):
    """Half of FGSM's step, at whatever eps it was made for."""
    return x + 0.5 * (FGSM(eps=0.1)(model, x, y) - x)


def at_eps(model, x, y, *, eps, norm, generator):
    assert norm == "linf"
    noise = torch.rand(x.shape, generator=generator)
    return (x + eps * (2 * noise - 1).sign()).clamp(0, 1)


@dataclass(frozen=True)
class Shifted:
    """A class that takes eps."""

    eps: float

    def __call__(self, model, x, y):
        return FGSM(eps=self.eps)(model, x, y)


def test_an_attack_is_as_good_as_its_name():
    attack = PGD(eps=0.1, step_size=0.025, steps=4)
    report = evaluated(["clean", attack, "pgd4", half_way, ("mine", attack), {"a": attack, "b": half_way}])
    assert list(report.verdicts) == ["clean", repr(attack), "pgd4", "half_way", "mine", "a", "b"]
    for name in (repr(attack), "mine", "a"):
        assert torch.equal(report.verdicts[name], report.verdicts["pgd4"])
    x, y = pictures(10, 20, seed=5)
    assert (
        report.verdicts["half_way"].tolist() == (taught_conv()(half_way(taught_conv(), x, y)).argmax(1) == y).tolist()
    )
    assert report.verdicts["b"].tolist() == report.verdicts["half_way"].tolist() != report.verdicts["pgd4"].tolist()
    alone = evaluated(attack)
    assert torch.equal(alone.verdicts[repr(attack)], report.verdicts["pgd4"])


def test_at_which_eps_an_attack_is_run():
    own = FGSM(eps=0.03)
    report = evaluated(["fgsm", ("shifted", Shifted), ("noise", at_eps), ("own", own)], ["0.05", "0.1"])
    names = [f"{name}@{eps}" for eps in ("0.05", "0.1") for name in ("fgsm", "shifted", "noise")]
    assert set(report.verdicts) == {"clean", *names, "own"}
    for eps in ("0.05", "0.1"):
        assert torch.equal(report.verdicts[f"shifted@{eps}"], report.verdicts[f"fgsm@{eps}"])
    assert torch.equal(report.verdicts["own"], evaluated(["fgsm"], 0.03).verdicts["fgsm"])
    assert set(report.curves) == {"fgsm", "shifted", "noise"}
    assert report.to_json()["columns"]["own"]["radius"] == 0.03
    assert torch.equal(report.verdicts["noise@0.1"], evaluated([("noise", at_eps)], 0.1).verdicts["noise"])


def test_a_transfer_attack_and_one_straight_through():
    surrogate = taught_conv(10, dropout=0.5)
    attack = PGD(eps=0.1, step_size=0.025, steps=4, surrogate=surrogate)
    through = replace(attack, surrogate=None, straight_through=("ReLU",))
    report = evaluated([("transfer", attack), ("through", through)], model=Rough(taught_conv()))
    x, y = pictures(10, 20, seed=5)
    for name, found in (
        ("transfer", PGD(eps=0.1, step_size=0.025, steps=4)(surrogate, x, y)),
        ("through", through(Rough(taught_conv()), x, y)),
    ):
        assert report.verdicts[name].tolist() == (Rough(taught_conv())(found).argmax(1) == y).tolist()
    assert report.verdicts["through"].tolist() != report.verdicts["transfer"].tolist()


def wrong(change):
    def attack(model, x, y):
        return change(x)

    return ("wrong", attack)


@pytest.mark.parametrize(
    ("attack", "says"),
    [
        (
            wrong(lambda x: x[:1]),
            r"wrong must return images of shape \(20, 1, 8, 8\), floating point, got torch.float32 \(1,",
        ),
        (wrong(lambda x: x.numpy()), "wrong must return images of shape .* got ndarray"),
        (wrong(lambda x: (255 * x).byte()), "wrong must return images .* got torch.uint8"),
        (wrong(lambda x: x / 0), "wrong returned images with a NaN or an infinity"),
        (wrong(lambda x: x - 0.01), "wrong returned pixels outside .0, 1., by up to 0.01; clip"),
        (
            wrong(lambda x: (x + 0.15).clamp(0, 1)),
            "wrong went outside its ball: linf 0.15 from the image, 0.05 more than eps 0.1",
        ),
        (("sort of", 3), "sort of must be called as .model, x, y., got 3"),
        (3, "attacks must be names such as 'pgd20', attacks, or pairs"),
        (lambda model, x, y: x, "has no name; give a pair"),
        (("pgd20", half_way), "'pgd20' is the name of another attack"),
        (("a@b", half_way), "the name of an attack is 1 to 200 printable characters without @"),
        (("", half_way), "the name of an attack is 1 to 200 printable"),
        (PGD(eps=0.5, step_size=0.1, steps=2, norm="l2"), "is of norm 'l2', the evaluation of 'linf'; give norm='l2'"),
    ],
)
def test_what_an_attack_may_not_do(attack, says):
    with pytest.raises(InputError, match=says):
        evaluated(["clean", attack])


def test_an_attack_without_eps_belongs_to_one():
    with pytest.raises(InputError, match="half_way has no eps, so it does not say to which of 2 it belongs"):
        evaluated([half_way], [0.1, 0.2])
    with pytest.raises(InputError, match="must name each attack once"):
        evaluated([half_way, half_way])


def test_another_attack_under_the_name_of_one_that_was_judged_is_refused(tmp_path):
    evaluated([("mine", PGD(eps=0.1, step_size=0.05, steps=2))], out=tmp_path)
    other = [("mine", PGD(eps=0.1, step_size=0.05, steps=3))]
    with pytest.raises(InputError, match="mine was another attack when it was judged here"):
        evaluated(other, out=tmp_path)
    transfer = PGD(eps=0.1, step_size=0.05, steps=2, surrogate=taught_conv())
    evaluated([("transfer", transfer)], out=tmp_path)
    evaluated([("transfer", transfer)], out=tmp_path)
    with torch.no_grad():
        transfer.surrogate[0].weight[0] += 0.1
    with pytest.raises(InputError, match="transfer was another attack"):
        evaluated([("transfer", transfer)], out=tmp_path)


def test_a_random_attack_is_the_same_when_it_goes_on(tmp_path):
    def drawing(model, x, y):
        return (x + 0.1 * (2 * torch.rand(x.shape) - 1).sign()).clamp(0, 1)

    state = torch.get_rng_state()
    first = evaluated([drawing], model=Rough(taught_conv()), count=60, shard_size=20)
    torch.rand(3)
    assert torch.equal(
        first.verdicts["drawing"],
        evaluated(drawing, model=Rough(taught_conv()), count=60, shard_size=20).verdicts["drawing"],
    )
    torch.set_rng_state(state)


def test_registered_attacks_are_known_by_name(monkeypatch):
    monkeypatch.setitem(ATTACKS, "mine", half_way)
    assert torch.equal(evaluated(["clean", "mine"]).verdicts["mine"], evaluated([half_way]).verdicts["half_way"])
    with pytest.raises(
        InputError, match=r"one of your own goes into widemargin.attacks.ATTACKS, in a module for --import"
    ):
        attack_named("other", eps=0.1)
