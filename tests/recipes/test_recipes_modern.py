"""The modern recipes: their constants, written down a second time from the notes on the public code."""

from dataclasses import fields, replace

import pytest

from widemargin import FGSM, PGD
from widemargin.config import AveragingConfig
from widemargin.config.run import AWPConfig, unreached
from widemargin.models import (
    CIFAR10_NORMALIZATION,
    PreActResNet18Config,
    ResNet18Config,
    SwishWideResNetConfig,
    WideResNetConfig,
)
from widemargin.objectives import Adversarial, Ikl, Score, Standard, Trades
from widemargin.optimizers import SGD, AdamW
from widemargin.recipes import all_recipes
from widemargin.recipes.tables import find_table
from widemargin.schedules import Cosine, OneCycleMomentum, Steps, Triangular, WarmUp

RECIPES = {name: recipe for name, recipe in all_recipes().items() if name.startswith("modern/")}
EPS = 8 / 255
PGD10 = PGD(eps=EPS, step_size=2 / 255, steps=10, random_start="uniform")
GAUSSIAN = replace(PGD10, random_start="gaussian")
WRN = WideResNetConfig(depth=34, widen=10, variant="trades")
PUBLISHED = {
    "at-awp": {"clean": 85.36, "autoattack": 53.97},
    "trades-awp": {"clean": 85.36, "autoattack": 56.17},
    "wang2023-wrn28-10": {"clean": 91.12, "autoattack": 63.35},
    "score": {"clean": 88.61, "autoattack": 61.04},
    "ikl": {"clean": 85.31, "autoattack": 57.13},
    "fgsm-rs": {"clean": 77.7, "pgd": 48.3, "autoattack": [43.09, 5.33]},
    "n-fgsm": {"clean": 78.6, "pgd": 53.1, "autoattack": [47.77, 0.41]},
    "fgsm-rs-short": {"clean": 86.06, "pgd": 46.06},
}
LAST_EPOCH = ("at-awp", "at-awp-emr", "trades-awp", "trades-awp-emr", "ikl", "rodriguez-munoz-clean", "rodriguez-munoz")


def config_of(name):
    return RECIPES[f"modern/{name}"].config


def optimizer(lr, schedule, **settings):
    return SGD(lr=lr, momentum=0.9, weight_decay=5e-4, schedule=schedule, **settings)


def test_published_numbers():
    found = {name.split("/")[1]: recipe.published.results for name, recipe in RECIPES.items() if recipe.published}
    assert found == PUBLISHED
    assert all(recipe.published.source for recipe in RECIPES.values() if recipe.published)


@pytest.mark.parametrize("name", RECIPES)
def test_what_all_share(name):
    config = RECIPES[name].config
    assert (config.data.name, config.evaluation.eps, config.evaluation.step_size) == ("cifar10", EPS, 2 / 255)
    assert config.evaluation.attacks[::2] == ("clean", "autoattack")
    assert str(config.evaluation.eps) == "8/255"
    assert unreached(config) == []
    last_epoch = name.split("/")[1] in LAST_EPOCH
    assert (config.data.held_out == 0, config.watch.test) == (last_epoch, last_epoch)
    assert RECIPES[name].note


@pytest.mark.parametrize("name", ["at-awp", "trades-awp", "wang2023-wrn28-10"])
def test_the_arm_with_emr_differs_in_emr_alone(name):
    config, arm = config_of(name), config_of(f"{name}-emr")
    assert arm.emr is not None
    assert replace(arm, name=config.name, emr=None) == config
    assert (arm.emr.kind, arm.emr.at) == ("approximate", "adversarial")
    per_sample = arm.emr.weight if arm.emr.scaling == "mean" else arm.emr.weight / arm.batch_size
    published = {"at-awp": (1.0, 40.0), "trades-awp": (0.3, 1.0), "wang2023-wrn28-10": (0.3, 1.0)}[name]
    assert per_sample == pytest.approx(published[0] / 128, rel=0.02)
    assert arm.emr.temperature == published[1]
    assert arm.emr.schedule(arm.epochs - 1e-6) == pytest.approx(0.01)


def test_awp():
    at, trades = config_of("at-awp"), config_of("trades-awp")
    assert (at.epochs, at.batch_size, at.data.augmentation) == (200, 128, "crop-flip")
    assert at.objective == Adversarial(attack=replace(PGD10, mode="train"))
    assert (at.model, at.awp) == (replace(WRN, normalize=CIFAR10_NORMALIZATION), AWPConfig(gamma=0.01, start=0))
    assert at.optimizer == optimizer(0.1, Steps(milestones=(100, 150), factor=0.1))
    assert (trades.epochs, trades.batch_size, trades.data.augmentation) == (200, 128, "crop-flip")
    assert trades.objective == Trades(attack=GAUSSIAN, beta=6.0, inner="kl")
    assert (trades.model, trades.awp) == (WRN, AWPConfig(gamma=0.005, start=9))
    assert trades.optimizer == optimizer(0.1, Steps(milestones=(99, 149), factor=0.1))


@pytest.mark.parametrize(
    ("name", "objective", "extra"),
    [
        (
            "wang2023-wrn28-10",
            Trades(attack=replace(PGD10, mode="batch"), beta=5.0, label_smoothing=0.1),
            "edm_data/cifar10/1m.npz",
        ),
        ("score", Score(attack=replace(PGD10, mode="batch"), beta=3.0), "cifar10_ddpm.npz"),
    ],
)
def test_generated_data(name, objective, extra):
    config = config_of(name)
    assert (config.epochs, config.batch_size, config.data.augmentation) == (400, 512, "crop-flip")
    assert (config.data.extra, config.data.extra_share, config.data.held_out) == (extra, 0.7, 1024)
    assert config.objective == objective
    assert config.model == SwishWideResNetConfig(depth=28, widen=10, normalize=CIFAR10_NORMALIZATION)
    schedule = OneCycleMomentum(epochs=400, rise=0.025)
    assert config.optimizer == optimizer(0.2, schedule, nesterov=True, decay_norms=False)
    measured = {0: (0.008, 0.95), 9: (0.2, 0.85), 100: (0.1743, 0.8628), 200: (0.1032, 0.8984), 300: (0.0302, 0.9349)}
    for epoch, (lr, momentum) in measured.items():
        assert 0.2 * schedule(epoch) == pytest.approx(lr, abs=1e-4)
        assert schedule.momentum(epoch) == pytest.approx(momentum, abs=1e-4)
    assert config.averaging == AveragingConfig(decay=0.995, warmup=10, batch_norm="copy")
    assert config.watch.attack == replace(PGD10, steps=40, loss="margin")
    assert config.watch.every == 1


def test_ikl():
    config = config_of("ikl")
    attack = replace(GAUSSIAN, steps=5, step_size=EPS / 2)
    assert config.objective == Ikl(attack=attack, alpha=4.0, beta=20.0, gamma=1.0, temperature=4.0, ramp=200)
    assert (config.epochs, config.batch_size, config.model) == (200, 128, WRN)
    assert config.awp == AWPConfig(gamma=0.005, start=9)
    assert config.optimizer == optimizer(0.2, Cosine(epochs=200))


@pytest.mark.parametrize(
    ("name", "attack", "epochs"),
    [
        ("fgsm-rs", FGSM(eps=EPS, noise=EPS, step_size=1.25 * EPS, mode="train"), 15),
        ("n-fgsm", FGSM(eps=EPS, noise=2 * EPS, clip=False, mode="train"), 30),
    ],
)
def test_one_step_attacks(name, attack, epochs):
    def lengths(made):
        return [pytest.approx(value) if isinstance(value, float) else value for value in values(made)]

    def values(made):
        return [getattr(made, field.name) for field in fields(made)]

    long, short = config_of(name), config_of(f"{name}-short")
    for config in (long, short):
        assert values(config.objective.attack) == lengths(attack)
        assert (config.batch_size, config.data.held_out, config.watch.attack) == (128, 1000, PGD10)
    assert (long.epochs, long.model, long.objective.label_smoothing) == (100, ResNet18Config(), 0.4)
    assert long.optimizer == optimizer(0.1, OneCycleMomentum(epochs=100, rise=0.3))
    assert long.averaging == AveragingConfig(decay=0.9995)
    assert (short.epochs, short.model) == (epochs, PreActResNet18Config(normalize=CIFAR10_NORMALIZATION))
    assert short.optimizer == optimizer(0.2, Triangular(epochs=epochs, peak=epochs / 2))
    assert (long.evaluation.attacks[1], short.evaluation.attacks[1]) == ("pgd50", "pgd50x10")


def test_the_input_gradient_norm():
    clean, config = config_of("rodriguez-munoz-clean"), config_of("rodriguez-munoz")
    assert RECIPES["modern/rodriguez-munoz"].starts_from == clean.name
    assert (clean.epochs, config.epochs, config.freeze_batch_norm, clean.freeze_batch_norm) == (50, 300, True, False)
    assert config.objective == clean.objective == Standard(label_smoothing=0.1)
    assert (config.model.activation, config.model) == ("gelu", clean.model)
    assert (config.igr.norm, config.igr.squared) == ("linf", False)
    assert (config.igr.label_smoothing, config.igr.at) == (0.1, "clean")
    assert config.igr.weight == pytest.approx(1.2 / 0.8 * 4 / 255)
    assert config.igr.schedule == WarmUp(epochs=5)
    assert type(config.optimizer) is AdamW
    assert (config.optimizer.weight_decay, config.optimizer.clip) == (0.05, 1.0)
    rates = [config.optimizer.lr * config.optimizer.schedule(epoch) for epoch in (0, 300)]
    assert config.optimizer.lr == 1.25e-3 * 128 / 512
    assert rates == pytest.approx([1e-6, 1e-5])
    assert config.averaging == AveragingConfig(decay=0.9998)


def test_the_table_has_every_one_and_each_is_its_own_method():
    rows = find_table("modern").rows
    assert [row.recipe.name for row in rows] == list(RECIPES)
    assert len({row.published.row for row in rows}) == len(rows)
