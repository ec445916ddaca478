"""The settings of the large networks' rows: those of published.json, and what it lacks written down a second time."""

import json
from importlib.resources import files

import pytest

from widemargin import PGD
from widemargin.heads import Hypersphere, LargeMargin
from widemargin.heads.large_margin import GeometricAnnealing, PowerAnnealing
from widemargin.models import CIFAR10_NORMALIZATION, LBGATTeacherConfig
from widemargin.objectives import Adversarial, Lbgat, Mail, Mart, Trades
from widemargin.recipes import all_recipes
from widemargin.schedules import Piecewise, Steps

RECIPES = all_recipes()
PUBLISHED = json.loads(files("widemargin.recipes").joinpath("published.json").read_text("utf-8"))["hyperparameters"]
EPS = 0.031
UNIFORM = PGD(eps=EPS, step_size=0.00784, steps=10, random_start="uniform")
GAUSSIAN = PGD(eps=EPS, step_size=0.007, steps=10, random_start="gaussian")


def config_of(name):
    return RECIPES[f"cifar-{name}"].config


def drops(*milestones):
    return Steps(milestones=milestones, factor=0.1)


LISTED = [(net, key, row) for net, key in (("resnet18", "resnet18"), ("wrn", "wide_resnet")) for row in PUBLISHED[key]]


@pytest.mark.parametrize(("net", "key", "row"), LISTED)
def test_what_the_paper_lists(net, key, row):
    config, listed = config_of(f"{net}/{row.lower().replace('+', '-')}"), PUBLISHED[key][row]
    ours = {
        "weight_decay": config.optimizer.weight_decay,
        "beta": getattr(config.objective, "beta", None),
        "emr_weight": config.emr and config.emr.weight,
        "temperature": config.emr and config.emr.temperature,
        "igr_weight": config.igr and config.igr.weight,
    }
    assert {name: value for name, value in ours.items() if value is not None} == listed


TRADES = [f"{net}/trades{more}" for net in ("resnet18", "wrn") for more in ("", "-igr", "-emr", "-emr-clean")]


@pytest.mark.parametrize("name", TRADES)
def test_trades(name):
    config = config_of(name)
    assert (config.epochs, config.optimizer.schedule) == (130, drops(60, 120))
    assert config.objective == Trades(attack=UNIFORM, beta=12.0, inner="ce")
    if config.emr is not None:
        assert (config.emr.kind, config.emr.scaling, config.emr.schedule) == ("approximate", "released", drops(59, 119))
        assert config.emr.at == ("clean" if name.endswith("clean") else "adversarial")


@pytest.mark.parametrize("name", ["resnet18/at-igr", "resnet18/trades-igr", "wrn/at-igr", "wrn/trades-igr"])
def test_igr(name):
    igr = config_of(name).igr
    assert (igr.weight, igr.at, igr.scaling) == (1.0, "adversarial", "released")


@pytest.mark.parametrize(
    ("name", "objective", "scale", "decay"),
    [
        ("wrn/at-he", Adversarial(attack=GAUSSIAN), 10.0, 5e-4),
        ("wrn/trades-he", Trades(attack=GAUSSIAN, beta=6.0, inner="kl"), 15.0, 2e-4),
    ],
)
def test_hypersphere_embedding(name, objective, scale, decay):
    config = config_of(name)
    assert config.head == Hypersphere(scale=scale, margin=0.2)
    assert config.objective == objective
    assert (config.epochs, config.optimizer.schedule, config.optimizer.weight_decay) == (77, drops(74), decay)
    assert (config.model.variant, config.model.normalize) == ("trades", CIFAR10_NORMALIZATION)


def test_the_normalization_of_hypersphere_embedding():
    assert CIFAR10_NORMALIZATION.mean == pytest.approx((0.4914, 0.4822, 0.4465))
    assert CIFAR10_NORMALIZATION.std == pytest.approx((0.2471, 0.2435, 0.2616))


@pytest.mark.parametrize("over", ["at", "trades"])
@pytest.mark.parametrize("more", ["", "-emr"])
def test_mail(over, more):
    config, listed = config_of(f"wrn/{over}-mail{more}"), PUBLISHED["mail"][over]
    assert config.objective == Mail(
        over=over,
        attack=GAUSSIAN,
        slope=listed["slope"],
        bias=listed["bias"],
        weight=listed.get("beta"),
        burn_in=74,
        burn_in_with="at",
        burn_in_attack=UNIFORM,
    )
    assert (config.epochs, config.optimizer.schedule) == (100, drops(75, 90))
    assert (config.optimizer.weight_decay, config.data.held_out) == (PUBLISHED["mail"]["weight_decay"], 0)
    assert (config.watch.attack, config.watch.test) == (None, False)  # the last epoch counts: nothing to choose by
    assert config.model.variant == "madry"
    if more:
        assert (config.emr.weight, config.emr.temperature) == (listed["emr_weight"], listed["temperature"])
        assert (config.emr.at, config.emr.scaling, config.emr.schedule) == ("adversarial", "released", drops(74, 89))


@pytest.mark.parametrize("more", ["", "-emr"])
def test_mart(more):
    config, listed = config_of(f"wrn/mart{more}"), PUBLISHED["mart"]
    assert config.objective == Mart(attack=GAUSSIAN, weight=listed["beta"])
    assert (GAUSSIAN.step_size, GAUSSIAN.steps) == (listed["step_size"], listed["steps"])
    assert config.epochs == listed["epochs"]
    assert config.optimizer.schedule == drops(*(epoch - 1 for epoch in listed["milestones"]))  # begun, not finished
    assert (config.optimizer.weight_decay, config.model.variant) == (7e-4, "trades")
    if more:
        assert (config.emr.weight, config.emr.temperature) == (listed["emr_weight"], listed["temperature"])
        assert config.emr.schedule == config.optimizer.schedule


@pytest.mark.parametrize("more", ["", "-emr"])
def test_lbgat(more):
    config, listed = config_of(f"wrn/lbgat{more}"), PUBLISHED["lbgat"]
    attack = PGD(eps=EPS, step_size=listed["step_size"], steps=listed["steps"], random_start="gaussian")
    assert config.objective == Lbgat(attack=attack, beta=listed["beta"])
    assert config.teacher == LBGATTeacherConfig()
    first, second = (epoch - 1 for epoch in listed["milestones"])
    assert config.optimizer.schedule == Piecewise(points=((0, 0.2), (1, 1.0), (first, 0.1), (second, 0.01)))
    assert (config.epochs, config.optimizer.weight_decay) == (listed["epochs"], 2e-4)
    assert config.model.variant == "trades"
    if more:
        assert (config.emr.weight, config.emr.temperature) == (listed["emr_weight"], listed["temperature"])
        assert config.emr.schedule == drops(first, second)


PORT, ORIGINAL = GeometricAnnealing(start=100.0, factor=0.99, minimum=0.0), PowerAnnealing(base=1000.0, minimum=0.0)


@pytest.mark.parametrize(
    ("rows", "count", "published", "margin", "annealing"),
    [
        ("mnist-mlp/st-lsoftmax-wd", 4, True, 4, PORT),
        ("mnist-mlp/at-lsoftmax-wd", 3, True, 1, None),
        ("mnist-mlp/at-lsoftmax-m4-wd", 3, False, 4, ORIGINAL),
        ("cifar-cnn/st-lsoftmax-wd", 3, True, 1, None),
        ("cifar-cnn/at-lsoftmax-wd", 3, True, 1, None),
    ],
)
def test_large_margin_softmax(rows, count, published, margin, annealing):
    """With m = 1 there is nothing to anneal."""
    found = [recipe for name, recipe in RECIPES.items() if name.startswith(rows)]
    assert len(found) == count
    for recipe in found:
        head = recipe.config.head
        assert (head.margin, recipe.published is not None) == (margin, published)
        assert annealing in (None, head.annealing)


def test_defaults_are_the_published_ones():
    assert Trades(attack=UNIFORM).beta == 6.0
    assert Mart(attack=GAUSSIAN).weight == 6.0
    assert Lbgat(attack=GAUSSIAN).beta == 0.0
    assert (Hypersphere().scale, Hypersphere().margin) == (10.0, 0.2)
    assert LargeMargin().margin == 4
