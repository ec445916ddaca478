"""The settings of the paper's rows, written down here a second time, from the paper and not from the code."""

from dataclasses import replace

import pytest

from widemargin import FGSM, PGD
from widemargin.config import AveragingConfig, WatchConfig
from widemargin.config.run import unreached
from widemargin.config.toml import with_overrides
from widemargin.models import CNNConfig, MLPConfig, ResNet18Config, WideResNetConfig
from widemargin.recipes import all_recipes
from widemargin.recipes.tables import find_table
from widemargin.schedules import Constant, OneCycle, Steps

RECIPES = all_recipes()


def of(prefix):
    return {name: recipe.config for name, recipe in RECIPES.items() if name.startswith(f"{prefix}/")}


PROTOCOLS = {
    # epochs, model, data and augmentation, when the rate falls, steps and sizes of every attack, images with a margin
    "mnist-mlp": (50, MLPConfig(hidden=(1024,) * 4, init="he"), ("mnist", "none"), (30,), 20, (0.1, 0.01), 10_000),
    "cifar-cnn": (100, CNNConfig(init="he"), ("cifar10", "crop-flip"), (75, 90), 10, (0.031, 0.0078), 2000),
}


@pytest.mark.parametrize(("family", "name"), [(family, name) for family in PROTOCOLS for name in of(family)])
def test_small_networks_protocol(family, name):
    epochs, model, data, milestones, steps, (eps, step_size), samples = PROTOCOLS[family]
    config = RECIPES[name].config
    assert (config.epochs, config.batch_size, config.model) == (epochs, 100, model)
    assert (config.data.name, config.data.augmentation, config.data.held_out) == (*data, 0)
    assert (config.optimizer.lr, config.optimizer.momentum) == (0.01, 0.9)
    assert config.optimizer.schedule == Steps(milestones=milestones, factor=0.1)
    assert config.evaluation.attacks == ("clean", f"pgd{steps}")
    assert (config.evaluation.eps, config.evaluation.step_size) == (eps, step_size)
    attack = PGD(eps=eps, step_size=step_size, steps=steps)
    assert config.watch == WatchConfig(every=5, attack=attack, margin_samples=samples)
    assert (set(config.watch.margins), config.watch.test) == ({"train", "test"}, True)
    if "/at-" in name:
        assert config.objective.attack == replace(attack, random_start="uniform")


LARGE = [f"{net}/{row}" for net in ("cifar-resnet18", "cifar-wrn") for row in ("at", "at-wd0.0005", "at-emr")]


@pytest.mark.parametrize("name", LARGE)
def test_large_networks_protocol(name):
    config = RECIPES[name].config
    assert (config.epochs, config.batch_size) == (100, 128)
    assert (config.data.name, config.data.augmentation, config.data.held_out) == ("cifar10", "crop-flip", 2000)
    assert (config.optimizer.lr, config.optimizer.momentum) == (0.1, 0.9)
    assert config.optimizer.schedule == Steps(milestones=(60, 90), factor=0.1)
    assert config.objective.attack == PGD(eps=0.031, step_size=0.00784, steps=10, random_start="uniform")
    assert config.objective.attack.mode == "eval"
    assert config.watch.attack == PGD(eps=0.031, step_size=0.00784, steps=10)  # selection: no random start
    assert not config.watch.test
    model = WideResNetConfig(depth=34, widen=10, variant="madry") if "wrn" in name else ResNet18Config(width=64)
    assert config.model == model


@pytest.mark.parametrize("name", ["cifar-resnet18/at-wd0.0005", "cifar-resnet18/at-emr"])
def test_averaged_rows_differ_in_the_averaging_alone(name):
    plain, averaged = RECIPES[name].config, RECIPES[f"{name}-averaged"].config
    assert plain.averaging == AveragingConfig(decay=0.999, beside=True)
    assert averaged.averaging == AveragingConfig(decay=0.999)
    assert replace(averaged, name=plain.name, averaging=plain.averaging) == plain
    assert RECIPES[f"{name}-averaged"].averages_of == name


def test_whose_weights_another_run_keeps_has_one_that_keeps_them():
    kept = [recipe for recipe in RECIPES.values() if recipe.averages_of]
    assert kept
    for recipe in kept:
        config = RECIPES[recipe.averages_of].config
        assert recipe.config.averaging is not None
        assert config.averaging == replace(recipe.config.averaging, beside=True)
        assert not RECIPES[recipe.averages_of].averages_of


def test_the_table_at_the_same_weight_decay():
    rows = find_table("resnet18-emr").rows
    assert [row.recipe.name.partition("/")[2] for row in rows] == [
        *("at", "at-wd0.0005", "at-emr", "at-wd0.0005-averaged", "at-emr-averaged")
    ]
    assert [bool(row.published.results) for row in rows] == [True, False, True, False, False]


STAYS, FALLS = Constant(), Steps(milestones=(59, 89), factor=0.1)  # one epoch before the rate


@pytest.mark.parametrize(
    ("name", "decay", "expected"),
    [
        # exact EMR's published weights multiply the batch mean, the approximation's the released 1/B^2
        ("mnist-mlp/st-emr", 1e-3, ("exact", 0.1, None, "clean", "mean", STAYS)),
        ("mnist-mlp/at-emr", 1e-3, ("exact", 3e-4, None, "adversarial", "mean", STAYS)),
        ("mnist-mlp/st-approximate-emr", 1e-3, ("approximate", 1.0, 1.0, "clean", "released", STAYS)),
        ("mnist-mlp/at-approximate-emr", 1e-3, ("approximate", 3e-4, 1.0, "adversarial", "released", STAYS)),
        ("cifar-cnn/st-emr", 5e-4, ("exact", 0.01, None, "clean", "mean", STAYS)),
        ("cifar-cnn/at-emr", 5e-4, ("exact", 1e-3, None, "adversarial", "mean", STAYS)),
        ("cifar-cnn/st-approximate-emr", 5e-4, ("approximate", 30.0, 1.0, "clean", "released", STAYS)),
        ("cifar-cnn/at-approximate-emr", 5e-4, ("approximate", 3e-4, 1.0, "adversarial", "released", STAYS)),
        ("cifar-resnet18/at-emr", 5e-4, ("approximate", 0.1, 40.0, "adversarial", "released", FALLS)),
        ("cifar-wrn/at-emr", 5e-4, ("approximate", 1.0, 40.0, "adversarial", "released", FALLS)),
    ],
)
def test_emr_rows(name, decay, expected):
    emr = RECIPES[name].config.emr
    assert (emr.kind, emr.weight, emr.temperature, emr.at, emr.scaling, emr.schedule) == expected
    assert RECIPES[name].config.optimizer.weight_decay == decay


@pytest.mark.parametrize(
    ("prefix", "decays"),
    [
        ("mnist-mlp/st-wd", (0.1, 0.01, 0.001, 0.0001)),
        ("mnist-mlp/at-wd", (0.01, 0.001, 0.0001)),
        ("cifar-cnn/st-wd", (0.01, 0.001, 0.0005, 0.0001)),
        ("cifar-cnn/at-wd", (0.01, 0.001, 0.0005, 0.0001)),
        ("cifar-resnet18/at-wd", (0.0005,)),
        ("cifar-wrn/at-wd", (0.0005,)),
        ("cifar-resnet18/at", (0.001,)),  # twice that of the EMR rows
        ("cifar-wrn/at", (0.001,)),
    ],
)
def test_weight_decays_of_the_baselines(prefix, decays):
    for decay in decays:
        config = RECIPES[prefix if prefix.endswith("/at") else f"{prefix}{decay:g}"].config
        assert config.optimizer.weight_decay == decay
        assert config.emr is None


def test_the_demo_trains_the_papers_network_on_the_embedded_digits():
    plain, emr = RECIPES["demo/plain"].config, RECIPES["demo/emr"].config
    for config in (plain, emr):
        assert config.model == MLPConfig(hidden=(1024, 1024, 1024, 1024))
        assert config.data.name == "mnist-embedded"
        assert (config.evaluation.eps, config.evaluation.step_size) == (0.1, 0.01)
        assert {"clean", "pgd20"} <= set(config.evaluation.attacks)
        assert not isinstance(config.watch.attack, FGSM)
    assert plain.emr is None
    assert emr.emr is not None


def test_every_recipe_gets_to_the_end_of_its_schedules():
    assert {name: told for name, recipe in all_recipes().items() if (told := unreached(recipe.config))} == {}


@pytest.mark.parametrize(
    ("recipe", "changes", "told"),
    [
        ("demo/emr", ["epochs=4"], ["optimizer.schedule comes down at 8 epochs, the run ends at 4: --set optimizer."]),
        ("demo/emr", ["epochs=9"], []),
        ("mnist-mlp/st-emr", ["epochs=31"], []),
        ("mnist-mlp/st-emr", ["epochs=30"], ["optimizer.schedule.milestones has 30, the run ends at 30 epochs"]),
        (
            "cifar-resnet18/at-emr",
            ["epochs=60"],
            ["optimizer.schedule.milestones has 60, 90, the run", "emr.schedule.milestones has 89, the run"],
        ),
        (
            "demo/emr",
            ["epochs=2", "optimizer.schedule={kind='piecewise', points=[[1, 0.1], [5, 0.0]]}"],
            ["optimizer.schedule.points has 5"],
        ),
        ("demo/emr", ["epochs=2", "optimizer.schedule={kind='constant'}"], []),
    ],
)
def test_what_a_run_never_gets_to_is_told(recipe, changes, told):
    found = unreached(with_overrides(all_recipes()[recipe].config, changes))
    assert len(found) == len(told)
    assert all(text.startswith(start) for text, start in zip(found, told, strict=True))


@pytest.mark.parametrize("name", [*of("cifar-resnet18"), *of("cifar-wrn")])
def test_every_large_network_is_judged_alike(name):
    plan = RECIPES[name].config.evaluation
    assert plan.attacks == ("clean", "fgsm", "pgd10", "pgd100", "autoattack")
    assert (plan.eps, plan.step_size) == (0.031, 0.00784)


@pytest.mark.parametrize("name", ["demo/plain", "demo/emr"])
def test_how_the_demo_learns(name):
    config = RECIPES[name].config
    assert (config.epochs, config.batch_size) == (8, 100)
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (0.07, 1e-4)
    assert config.optimizer.schedule == OneCycle(epochs=8, peak=2)
