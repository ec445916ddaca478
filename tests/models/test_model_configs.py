"""Configurations of models: what they build from a seed, and the first weights: torch's, or He's."""

import dataclasses
import math
import types
import typing

import pytest
import torch
from torch import nn

from widemargin.config.toml import from_dict, to_dict, with_overrides
from widemargin.errors import InputError
from widemargin.heads import Hypersphere, LargeMargin, Linear, LinearHead
from widemargin.models import (
    CIFAR10_NORMALIZATION,
    CNN,
    MLP,
    MODELS,
    TEACHER_STRIDES,
    CNNConfig,
    LBGATTeacherConfig,
    MLPConfig,
    ModelConfig,
    Normalization,
    PreActResNet18Config,
    ResNet18,
    ResNet18Config,
    WideResNet,
    WideResNetConfig,
    build_model,
)
from widemargin.recipes import find_recipe

TINY: dict[str, ModelConfig] = {
    "mlp": MLPConfig(hidden=(6,)),
    "cnn": CNNConfig(),
    "resnet18": ResNet18Config(width=2),
    "preact-resnet18": PreActResNet18Config(width=2),
    "lbgat-teacher": LBGATTeacherConfig(width=2),
    "wrn-34-10": WideResNetConfig(depth=10, widen=1),
}


def build(config: ModelConfig, *, seed: int | None) -> torch.nn.Module:
    return build_model(config, image_shape=(3, 20, 20), num_classes=4, seed=seed)


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_every_name_has_a_tiny_one_here() -> None:
    assert {name: type(config) for name, config in TINY.items()} == MODELS


def test_the_defaults_are_the_papers() -> None:
    assert MLPConfig().hidden == (1024,) * 4
    assert WideResNetConfig() == WideResNetConfig(depth=34, widen=10, variant="madry", normalize=None)
    assert ResNet18Config().width == LBGATTeacherConfig().width == 64


@pytest.mark.parametrize("name", TINY)
def test_a_seed_decides_the_weights_and_the_global_state_stays(name: str) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again, other = (build(TINY[name], seed=seed) for seed in (7, 7, 8))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert same(first, again)
    assert not same(first, other)
    torch.rand(3)  # whatever the global state is
    assert same(first, build(TINY[name], seed=7))


def test_without_a_seed_no_two_are_alike_whatever_the_global_state() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, other = (build(TINY["mlp"], seed=None) for _ in range(2))
    assert not same(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_global_state_is_restored_after_a_failure() -> None:
    before = torch.random.get_rng_state()
    with pytest.raises(InputError):
        build_model(CNNConfig(), image_shape=(3, 8, 8), num_classes=4, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_default_device_does_not_matter() -> None:
    with torch.device("meta"):
        model = build(TINY["mlp"], seed=7)
    assert next(model.parameters()).device.type == "cpu"
    assert same(model, build(TINY["mlp"], seed=7))


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, True])
def test_the_seed_is_checked(seed: object) -> None:
    with pytest.raises(InputError, match=r"build_model.seed must be an integer in \[0, 2\^63\) or None"):
        build(TINY["mlp"], seed=seed)  # type: ignore[arg-type]


def test_the_fields_reach_the_network() -> None:
    shape = {"image_shape": (3, 32, 32), "num_classes": 7, "seed": 0}
    mlp = MLPConfig(hidden=(5, 4), normalize=CIFAR10_NORMALIZATION).build(**shape)
    assert isinstance(mlp, MLP)
    assert [tuple(layer.weight.shape) for layer in mlp.fcs] == [(5, 3072), (4, 5), (7, 4)]
    assert mlp.normalize.values == CIFAR10_NORMALIZATION
    assert isinstance(CNNConfig(normalize=CIFAR10_NORMALIZATION).build(**shape), CNN)
    wide = WideResNetConfig(depth=16, widen=2, variant="trades", normalize=CIFAR10_NORMALIZATION).build(**shape)
    assert isinstance(wide, WideResNet)
    assert len(wide.block1.layer) == 2
    assert wide.feature_size == 128
    assert wide.block1.layer[0].convShortcut is not None
    teacher = LBGATTeacherConfig(width=2, normalize=CIFAR10_NORMALIZATION).build(**shape)
    usual = ResNet18Config(width=2, normalize=CIFAR10_NORMALIZATION).build(**shape)
    assert isinstance(teacher, ResNet18)
    strides = [layer[0].conv1.stride[0] for layer in (teacher.layer1, teacher.layer2, teacher.layer3, teacher.layer4)]
    assert tuple(strides) == TEACHER_STRIDES
    assert usual.layer2[0].conv1.stride == (2, 2)
    bare = PreActResNet18Config(width=2, last_norm=False, normalize=CIFAR10_NORMALIZATION).build(**shape)
    assert (bare.bn, bare.feature_size, bare.normalize.values) == (None, 16, CIFAR10_NORMALIZATION)
    assert {m.num_classes for m in (mlp, wide, teacher, usual, bare)} == {7}


@pytest.mark.parametrize("name", TINY)
def test_the_head_reaches_the_network(name: str) -> None:
    class Other(LinearHead):
        pass

    model = build_model(TINY[name], image_shape=(3, 20, 20), num_classes=4, seed=0, make_head=Other)
    assert isinstance(model.head, Other)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: MLPConfig(hidden=(0,)),
            r"MLPConfig.hidden must be a tuple of integers.*got \(0,\); give one width",
        ),
        (lambda: ResNet18Config(width=0), r"ResNet18Config.width must be an integer of at least 1, got 0"),
        (lambda: PreActResNet18Config(width=0), r"PreActResNet18Config.width must be an integer of at least 1, got 0"),
        (lambda: LBGATTeacherConfig(width=-1), r"LBGATTeacherConfig.width must"),
        (lambda: WideResNetConfig(depth=33), r"WideResNetConfig.depth must be 6n \+ 4"),
        (lambda: WideResNetConfig(widen=True), r"WideResNetConfig.widen must"),
        (
            lambda: WideResNetConfig(variant="x"),
            r"WideResNetConfig.variant must be 'trades' or 'madry', got 'x'",
        ),
        *(
            (
                lambda kind=kind: kind(init="xavier"),
                rf"{kind.__name__}.init must be 'he', or None for torch's own, got 'xavier'",
            )
            for kind in (MLPConfig, CNNConfig)
        ),
        *(
            (
                lambda kind=kind: kind(normalize="cifar10"),
                rf"{kind.__name__}.normalize must be a Normalization or None",
            )
            for kind in MODELS.values()
        ),
    ],
)
def test_every_field_is_checked(make: typing.Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("kind", [*MODELS.values(), Normalization])
def test_only_field_types_that_a_config_file_can_hold(kind: type) -> None:
    plain = {int, float, bool, str, Normalization, type(None), tuple[int, ...], tuple[float, ...]}
    hints = typing.get_type_hints(kind)
    for hint in (hints[field.name] for field in dataclasses.fields(kind)):
        joined = typing.get_origin(hint) in (types.UnionType, typing.Union)
        options = typing.get_args(hint) if joined else (hint,)
        assert all(option in plain or typing.get_origin(option) is typing.Literal for option in options)
    assert dataclasses.fields(kind)
    assert kind.__dataclass_params__.frozen


# First weights

SIZES = {"num_classes": 10, "seed": 3}
SHAPES = {MLPConfig: (1, 28, 28), CNNConfig: (3, 32, 32)}


def built(config, **others):
    return config.build(image_shape=SHAPES[type(config)], **SIZES, **others)


def layers(model):
    return [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]


@pytest.mark.parametrize("config", [MLPConfig(init="he"), CNNConfig(init="he")])
@pytest.mark.parametrize("head", [Linear(), LargeMargin(margin=4)])
def test_he_keeps_the_size_of_activations(config, head):
    for layer in layers(built(config, make_head=head)):
        fan_in = layer.weight[0].numel()
        spread = math.sqrt(2 / fan_in)
        assert float(layer.weight.detach().std()) == pytest.approx(spread, rel=4 / math.sqrt(layer.weight.numel()))
        assert layer.bias is None or not layer.bias.any()


def test_the_default_is_torchs_own():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        expected = nn.Linear(784, 1024)
    assert torch.equal(layers(built(MLPConfig()))[0].weight, expected.weight)


def test_a_seed_says_all_and_rows_of_unit_length_stay_so():
    first, second = (built(MLPConfig(init="he"), make_head=Hypersphere()) for _ in range(2))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    torch.testing.assert_close(first.head.weight.norm(dim=1), torch.ones(10))


def test_an_annealed_head_begins_at_its_beginning():
    assert built(MLPConfig(init="he"), make_head=LargeMargin(margin=4)).head.steps == 0


def test_a_configuration_without_the_choice_does_not_mention_it():
    recipe = find_recipe("cifar-cnn/st-wd0.001").config
    plain = with_overrides(recipe, ["model.init=none"])
    assert "init" not in to_dict(plain)["model"]
    assert with_overrides(plain, ["model.kind=resnet18"]).model == ResNet18Config()
    assert with_overrides(recipe, ["model.kind=resnet18"]).model == ResNet18Config()
    chosen = with_overrides(plain, ["model.init=he"])
    assert from_dict(to_dict(chosen)) == chosen
    assert chosen.model == CNNConfig(init="he")
