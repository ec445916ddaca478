"""Each alarm rings for a model that deserves it, alone where possible, and none for an honest one."""

import pytest
import torch
from small_networks import Around, Counted, pictures, taught_conv
from torch import nn

import widemargin
from widemargin.evaluation.alarms import _survives_huge_eps, alarms_of_model, alarms_of_numbers
from widemargin.evaluation.settings import EvaluationSettings
from widemargin.types import Alarm


def names(report_or_alarms):
    alarms = getattr(report_or_alarms, "alarms", report_or_alarms)
    assert all(isinstance(alarm, Alarm) and alarm.message and alarm.suggestion for alarm in alarms)
    return [alarm.name for alarm in alarms]


class Staircase(torch.autograd.Function):
    """Rounds to eight levels and passes no gradient."""

    @staticmethod
    def forward(ctx, x):
        return (7 * x).round() / 7

    @staticmethod
    def backward(ctx, gradient):
        return torch.zeros_like(gradient)


def looked_at(model, norm="linf", count=20):
    settings = EvaluationSettings(attacks=("clean",), eps=(0.1,), norm=norm)
    x, y = pictures(5, count)
    return names(alarms_of_model(model, x, y, settings))


# The model itself


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("count", [1, 20])
def test_an_honest_model_rings_nothing(norm, count):
    assert looked_at(taught_conv(5), norm, count) == []


PARITY, SLOPES = (torch.arange(64).view(1, 1, 8, 8) % 2) * 2.0 - 1, torch.tensor([1.0, 0.5, 0.0, -0.5, -1.0])


def shattered(net, x):
    """Gradients that are there and lead nowhere: their sign is that of the pixel's parity."""
    return net(x.detach()) + 0.01 * (x * PARITY).flatten(1).sum(1, keepdim=True) * SLOPES


STAIRCASE = Around(taught_conv(5), lambda net, x: net(Staircase.apply(x)))
PROBABILITIES = Around(taught_conv(5), lambda net, x: net(x).softmax(1))
MASKED = ["vanishing-gradients", "survives-huge-eps"]


@pytest.mark.parametrize(
    ("model", "norm", "rings"),
    [
        (Around(taught_conv(5), lambda net, x: net(x) + 0.1 * torch.randn(len(x), 5)), "linf", ["randomized-outputs"]),
        (PROBABILITIES, "linf", ["probability-outputs"]),
        (Around(taught_conv(5), lambda net, x: 1e4 * net(x)), "linf", MASKED),
        (STAIRCASE, "linf", MASKED),
        (STAIRCASE, "l2", MASKED),
        (Around(taught_conv(5), lambda net, x: net((x - 0.5).sign() / 2 + 0.5)), "linf", MASKED),
        (Around(taught_conv(5), shattered), "linf", ["survives-huge-eps"]),
    ],
    ids=["random", "probabilities", "large logits", "staircase", "staircase in L2", "sign", "shattered"],
)
def test_a_dishonest_model_rings(model, norm, rings):
    assert looked_at(model, norm) == rings


def test_the_alarms_are_in_the_report(tmp_path, very_short):
    model = PROBABILITIES
    for _ in range(2):  # the second time they are read from the folder
        report = widemargin.evaluate(model, pictures(5, 6), ["clean"], out=tmp_path)
        assert names(report) == ["probability-outputs"]
        assert [alarm["name"] for alarm in report.to_json()["alarms"]] == ["probability-outputs"]
    assert widemargin.evaluate(model, pictures(5, 6), ["clean"], sanity=False).alarms == []


@pytest.mark.parametrize(("batch_size", "sizes"), [(8, {1, 4, 8}), (250, {1, 8, 100, 120})])
def test_no_more_images_are_looked_at_at_a_time_than_a_batch_holds(batch_size, sizes):
    model = Counted(taught_conv(5))
    widemargin.evaluate(model, pictures(5, 120), ["clean"], margins=False, batch_size=batch_size)
    assert {len(images) for images in model.seen} == sizes


@pytest.mark.parametrize("batch_size", [4, 32, 250])
def test_what_is_seen_does_not_depend_on_the_size_of_batches(batch_size):
    x, y = pictures(5, 120)
    x[:, 0, 0, 0] = 0
    x[40:45, 0, 0, 0] = 1
    root = Around(taught_conv(5), lambda net, x: net(x) + (1 - x[:, 0, 0, :1]).sqrt())  # whose slope at 1 is infinite
    report = widemargin.evaluate(root, (x, y), ["clean"], margins=False, batch_size=batch_size)
    assert {alarm.name: alarm.message[:2] for alarm in report.alarms} == {"not-finite": "5%"}


# The numbers


def of_numbers(accuracy, eps=(0.1,), count=10_000):
    attacks = tuple(dict.fromkeys(name.partition("@")[0].partition("/")[0] for name in accuracy))
    return alarms_of_numbers(accuracy, EvaluationSettings(attacks=attacks, eps=eps), count)


HONEST = {"clean": 90.0, "fgsm": 60.0, "pgd20": 55.0, "pgd100": 54.9, "autoattack": 52.0}


def test_honest_numbers_ring_nothing():
    assert of_numbers(HONEST) == []
    assert of_numbers({"clean": 90.0}) == []


@pytest.mark.parametrize(
    ("numbers", "rings"),
    [
        ({"autoattack": 40.0}, ["pgd-far-above-autoattack"]),
        ({"autoattack": 49.8}, ["pgd-far-above-autoattack"]),
        ({"autoattack": 50.0}, []),
        ({"fgsm": 20.0}, ["fgsm-below-pgd"]),
        ({"fgsm": 50.5}, []),
        ({"autoattack/fab-t": 54.0, "autoattack/square": 52.0}, ["black-box-wins"]),
        ({"autoattack/fab-t": 52.1, "autoattack/square": 52.0}, []),
        ({"fgsm": 20.0, "autoattack": 10.0}, ["pgd-far-above-autoattack", "fgsm-below-pgd"]),
    ],
)
def test_dishonest_numbers_ring(numbers, rings):
    assert names(of_numbers(HONEST | numbers)) == rings


def test_the_strongest_pgd_is_compared():
    assert of_numbers({"clean": 90.0, "pgd10": 70.0, "pgd100": 41.0, "autoattack": 40.0}) == []
    assert of_numbers({"clean": 90.0, "fgsm": 45.0, "pgd10": 70.0, "pgd100": 41.0}) == []


def test_each_radius_is_looked_at_alone():
    numbers = {
        "clean": 90.0,
        "pgd20@0.05": 70.0,
        "autoattack@0.05": 69.0,
        "pgd20@0.2": 50.0,
        "autoattack/fab-t@0.2": 45.0,
        "autoattack/square@0.2": 20.0,
        "autoattack@0.2": 20.0,
    }
    alarms = of_numbers(numbers, eps=(0.05, 0.2))
    assert names(alarms) == ["pgd-far-above-autoattack", "black-box-wins"]
    assert all("at eps 0.2" in alarm.message for alarm in alarms)
    assert "50.0%" in alarms[0].message
    assert "20.0%" in alarms[0].message


# Whole evaluations


def test_an_honest_evaluation_rings_nothing(short):
    report = widemargin.evaluate(taught_conv(5), pictures(5, 20), ["clean", "fgsm", "pgd20", "autoattack"], 0.08)
    assert names(report) == []
    assert 0 < report.accuracy["autoattack"] < 100


def test_the_black_box_wins_where_gradients_are_masked(short):
    report = widemargin.evaluate(STAIRCASE, pictures(5, 20), ["clean", "pgd20", "autoattack"], 0.3, max_steps=60)
    assert set(names(report)) == {
        "vanishing-gradients",
        "survives-huge-eps",
        "pgd-far-above-autoattack",
        "black-box-wins",
    }


@pytest.mark.parametrize(("step", "rings"), [(1e-6, True), (0.0049, True), (0.005, False), (None, False)])
def test_steps_that_cannot_reach_eps_ring(step, rings):
    settings = EvaluationSettings(attacks=("clean", "fgsm", "pgd20", "autoattack"), eps=(0.1,), step_size=step)
    assert names(alarms_of_numbers({"clean": 90.0, "pgd20": 80.0}, settings, 1000)) == ["steps-too-short"] * rings
    cut = EvaluationSettings(attacks=("pgd20",), eps=(0.1,), step_size=0.01, max_steps=2)
    assert alarms_of_numbers({"pgd20": 80.0}, cut, 1000) == []


@pytest.mark.parametrize(("count", "rings"), [(100, True), (50, False), (12, False)])
def test_a_few_images_are_no_sign(count, rings):
    """Six points are six images of a hundred and three of fifty; two points for the black box two of a hundred."""
    far = {"clean": 90.0, "fgsm": 60.0, "pgd20": 66.0, "autoattack": 60.0}
    assert names(of_numbers(far, count=count)) == ["pgd-far-above-autoattack", "fgsm-below-pgd"] * rings
    black = {"autoattack/fab-t": 52.0, "autoattack/square": 50.0, "autoattack": 50.0}
    assert names(of_numbers(black, count=150)) == ["black-box-wins"]
    assert names(of_numbers(black, count=100)) == []


@pytest.mark.parametrize(("right", "rings"), [(30, False), (50, False), (58, False), (62, True), (90, True)])
def test_who_only_guesses_has_nothing_to_survive(right, rings):
    """Half of a hundred images in two classes are right by chance, and up to ten more easily are."""
    x, y = torch.rand(100, 1, 2, 2), torch.tensor([0] * right + [1] * (100 - right))
    flat = Around(nn.Flatten(), lambda net, x: torch.tensor([[1.0, 0.0]]).repeat(len(x), 1) + 0 * net(x)[:, :2])
    alarm = _survives_huge_eps(flat, x, y, EvaluationSettings(attacks=("clean",), eps=(0.1,)))
    assert names([alarm] if alarm else []) == ["survives-huge-eps"] * rings


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("seed", range(5))
def test_an_untrained_network_masks_nothing(norm, seed):
    x, y = pictures(10, 100)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        deep = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU())]
        model = nn.Sequential(nn.Flatten(), *deep, nn.Linear(64, 10))
    settings = EvaluationSettings(attacks=("clean",), eps=(0.1,), norm=norm)
    assert names(alarms_of_model(model, x, y, settings)) == []


@pytest.mark.parametrize(("share", "told"), [(0.0, None), (0.25, "25%"), (0.75, "75%"), (2.0, "100%")])
def test_the_share_of_images_without_a_gradient(share, told):
    x = torch.rand(400, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    x[:, 0, 0, 0] = (torch.arange(400) + 0.5) / 400
    weight = torch.linspace(-1, 1, 3 * 16).sin().view(3, 16)
    weight[:, 0] = 0

    def partly_deaf(flatten, x):  # linear; images whose first pixel, which never counts, is dark have no gradient
        return flatten(torch.where(x[:, :1, :1, :1] < share, x.detach(), x)) @ weight.T

    settings = EvaluationSettings(attacks=("clean",), eps=(0.1,))
    alarms = alarms_of_model(Around(nn.Flatten(), partly_deaf), x, torch.arange(400) % 3, settings)
    found = [alarm.message for alarm in alarms if alarm.name == "vanishing-gradients"]
    assert len(found) == (told is not None)
    assert all(f"{told} of the images" in message for message in found)


@pytest.mark.parametrize(("attack", "step", "eps"), [("pgd10", 0.0034, 0.034), ("pgd20", 0.0081, 0.162)])
def test_steps_that_just_reach_eps_ring_nothing_whatever_the_rounding(attack, step, eps):
    assert int(attack.removeprefix("pgd")) * step < eps, "the rounding this test is about"
    for size, rings in ((step, []), (0.999 * step, ["steps-too-short"])):
        settings = EvaluationSettings(attacks=(attack,), eps=(eps,), step_size=size)
        assert names(alarms_of_numbers({attack: 80.0}, settings, 1000)) == rings
