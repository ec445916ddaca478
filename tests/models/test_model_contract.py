"""What every model promises, built small from its configuration; its first weights, and its first layer."""

import dataclasses
import math
import types
import typing

import pytest
import torch
from torch import nn

from oracles import images as random_images
from widemargin.config.toml import from_dict, to_dict, with_overrides
from widemargin.errors import InputError
from widemargin.heads import Hypersphere, LargeMargin, Linear, LinearHead
from widemargin.models import (
    CIFAR10_NORMALIZATION,
    MNIST_NORMALIZATION,
    MODELS,
    TEACHER_STRIDES,
    Classifier,
    CNNConfig,
    LargeSwishWideResNetConfig,
    LBGATTeacherConfig,
    MLPConfig,
    ModelConfig,
    Normalization,
    Normalize,
    PreActResNet18Config,
    ResNet18Config,
    SwishWideResNetConfig,
    WideResNetConfig,
    build_model,
)
from widemargin.recipes import find_recipe

SHAPE = (2, 20, 20)
TINY: dict[str, ModelConfig] = {
    "mlp": MLPConfig(hidden=(8, 6)),
    "cnn": CNNConfig(),
    "resnet18": ResNet18Config(width=2),
    "preact-resnet18": PreActResNet18Config(width=2),
    "lbgat-teacher": LBGATTeacherConfig(width=2),
    "wrn-34-10": WideResNetConfig(depth=10, widen=2, variant="madry"),
    "wrn-34-10 of TRADES": WideResNetConfig(depth=10, widen=2, variant="trades"),
    "wrn-28-10-swish": SwishWideResNetConfig(depth=10, widen=2),
    "wrn-70-16-swish": LargeSwishWideResNetConfig(depth=10, widen=1, activation="gelu"),
}


def build(config: ModelConfig, *, seed: int | None = 0, **options: typing.Any) -> Classifier:
    return build_model(config, **{"image_shape": SHAPE, "num_classes": 3, "seed": seed, **options})


@pytest.fixture(params=TINY)
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return TINY[request.param]


@pytest.fixture
def model(config: ModelConfig) -> Classifier:
    return build(config)


def images(count: int = 3) -> torch.Tensor:
    return random_images(count, *SHAPE, dtype=torch.float32)


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 28, 28)])
def test_images_of_other_data_sets(config: ModelConfig, shape: tuple[int, int, int]) -> None:
    """Tiny-ImageNet's and MNIST's: no layer waits for 32 x 32."""
    network = build(config, image_shape=shape, num_classes=200)
    x = torch.rand(2, *shape, requires_grad=True)
    logits = network(x)
    assert logits.shape == (2, 200)
    (gradient,) = torch.autograd.grad(logits[0, 0], x)
    assert (gradient[0] != 0).float().mean() > 0.9


def test_every_name_has_a_tiny_one_here() -> None:
    assert {name: type(config) for name, config in TINY.items() if " " not in name} == MODELS


def test_logits_are_the_head_of_the_features(model: Classifier) -> None:
    x = images()
    features = model.eval().features(x)
    assert features.shape == (3, model.feature_size)
    assert model(x).shape == (3, model.num_classes)
    assert torch.equal(model(x), model.head(features))
    assert isinstance(model.head, LinearHead)
    assert any(module is model.head for module in model.modules())


def test_one_sample_alone_gives_what_it_gives_in_a_batch(model: Classifier) -> None:
    model, x = model.eval().double(), images().double()
    torch.testing.assert_close(model(x[1:2]), model(x)[1:2])


def test_one_sample_trains(model: Classifier) -> None:
    logits = model.train()(images(1))
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_evaluation_leaves_the_state_alone_and_training_moves_batch_norm(model: Classifier) -> None:
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.eval()(images())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    model.train()(images())
    moved = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert moved == {key for key in before if "running_" in key or "num_batches" in key}


def test_double_backward_matches_a_finite_difference(model: Classifier) -> None:
    model, x = model.eval().double(), images(2).double().requires_grad_()

    def penalty() -> torch.Tensor:
        (gradient,) = torch.autograd.grad(model(x)[:, 0].sum(), x, create_graph=True)
        return gradient.square().sum()

    weight = next(p for p in model.parameters() if p.dim() == 4 or p.dim() == 2)
    (second,) = torch.autograd.grad(penalty(), weight)
    direction = torch.randn(weight.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    step = 1e-7 * direction  # small, so that no unit changes sign
    with torch.no_grad():
        weight.add_(step)
    up = penalty().item()
    with torch.no_grad():
        weight.sub_(2 * step)
    down = penalty().item()
    assert second.abs().max() > 0
    assert (up - down) / 2e-7 == pytest.approx((second * direction).sum().item(), rel=1e-4)


@pytest.mark.parametrize("shape", [(3, 1, 20, 20), (3, 2, 20, 24), (2, 20, 20), (3, 800)])
def test_wrong_images_are_refused_by_name(model: Classifier, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as caught:
        model(torch.rand(shape))
    assert f"{type(model).__name__} expects images of shape (B, 2, 20, 20), got {shape}" in str(caught.value)


def test_bytes_are_refused(model: Classifier) -> None:
    with pytest.raises(InputError, match=r"got torch.uint8; divide by 255"):
        model(torch.zeros(1, *SHAPE, dtype=torch.uint8))


def test_a_head_can_be_chosen_and_must_keep_the_contract(config: ModelConfig) -> None:
    model = build(config, make_head=lambda features, classes: LinearHead(features, classes, bias=False))
    assert isinstance(model.head, LinearHead)
    assert model.head.bias is None
    assert model(images()).shape == (3, 3)
    with pytest.raises(InputError, match=r"make_head must make a module with training_logits.*got Linear;"):
        build(config, make_head=nn.Linear)


@pytest.mark.parametrize("name", ["mlp", "wrn-34-10"])
def test_compiles_in_one_graph(name: str) -> None:
    config = dataclasses.replace(TINY[name], normalize=Normalization(mean=(0.4, 0.5), std=(0.2, 0.3)))
    model, x = build(config).eval(), images()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))


# From a configuration


def test_a_seed_decides_the_weights_and_the_global_state_stays(config: ModelConfig) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again, other = (build(config, seed=seed) for seed in (7, 7, 8))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert same(first, again)
    assert not same(first, other)
    torch.rand(3)  # whatever the global state is
    with torch.device("meta"):  # and the default device
        assert same(first, build(config, seed=7))


def test_without_a_seed_no_two_are_alike_whatever_the_global_state() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, other = (build(TINY["mlp"], seed=None) for _ in range(2))
    assert not same(one, other)
    with pytest.raises(InputError):
        build(CNNConfig(), image_shape=(3, 8, 8))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, True])
def test_the_seed_is_checked(seed: object) -> None:
    with pytest.raises(InputError, match=r"build_model.seed must be an integer in \[0, 2\^63\) or None"):
        build(TINY["mlp"], seed=seed)  # type: ignore[arg-type]


def test_the_defaults_are_the_papers() -> None:
    assert MLPConfig().hidden == (1024,) * 4
    assert WideResNetConfig() == WideResNetConfig(depth=34, widen=10, variant="madry", normalize=None)
    assert ResNet18Config().width == LBGATTeacherConfig().width == 64
    assert TEACHER_STRIDES == (1, 1, 2, 2)


def test_the_fields_reach_the_network() -> None:
    mlp = build(MLPConfig(hidden=(5, 4)))
    assert [tuple(layer.weight.shape) for layer in mlp.fcs] == [(5, 800), (4, 5), (3, 4)]
    wide = build(WideResNetConfig(depth=16, widen=2, variant="trades"))
    assert (len(wide.block1.layer), wide.feature_size) == (2, 128)
    assert wide.block1.layer[0].convShortcut is not None
    teacher, usual = build(LBGATTeacherConfig(width=2)), build(ResNet18Config(width=2))
    strides = [layer[0].conv1.stride[0] for layer in (teacher.layer1, teacher.layer2, teacher.layer3, teacher.layer4)]
    assert tuple(strides) == TEACHER_STRIDES
    assert usual.layer2[0].conv1.stride == (2, 2)
    bare = build(PreActResNet18Config(width=2, last_norm=False))
    assert (bare.bn, bare.feature_size) == (None, 16)


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


def layers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]


@pytest.mark.parametrize("config", [MLPConfig(init="he"), CNNConfig(init="he")])
@pytest.mark.parametrize("head", [Linear(), LargeMargin(margin=4)])
def test_he_keeps_the_size_of_activations(config, head):
    model = build(config, make_head=head)
    for layer in layers(model):
        fan_in = layer.weight[0].numel()
        spread = math.sqrt(2 / fan_in)
        assert float(layer.weight.detach().std()) == pytest.approx(spread, rel=4 / math.sqrt(layer.weight.numel()))
        assert layer.bias is None or not layer.bias.any()
    assert not hasattr(model.head, "steps") or model.head.steps == 0  # an annealed head begins at its beginning


def test_the_default_is_torchs_own():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        expected = nn.Linear(800, 1024)
    assert torch.equal(layers(build(MLPConfig(), seed=3))[0].weight, expected.weight)


def test_a_seed_says_all_and_rows_of_unit_length_stay_so():
    first, second = (build(MLPConfig(init="he"), make_head=Hypersphere()) for _ in range(2))
    assert same(first, second)
    torch.testing.assert_close(first.head.weight.norm(dim=1), torch.ones(3))


def test_a_configuration_without_the_choice_does_not_mention_it():
    recipe = find_recipe("cifar-cnn/st-wd0.001").config
    plain = with_overrides(recipe, ["model.init=none"])
    assert "init" not in to_dict(plain)["model"]
    assert with_overrides(plain, ["model.kind=resnet18"]).model == ResNet18Config()
    assert with_overrides(recipe, ["model.kind=resnet18"]).model == ResNet18Config()
    chosen = with_overrides(plain, ["model.init=he"])
    assert from_dict(to_dict(chosen)) == chosen
    assert chosen.model == CNNConfig(init="he")


# Normalization


def test_normalization_is_the_formula_per_channel_and_adds_no_keys(config: ModelConfig) -> None:
    values = Normalization(mean=(0.4, 0.5), std=(0.2, 0.3))
    plain, normalized = build(config).eval(), build(dataclasses.replace(config, normalize=values)).eval()
    assert isinstance(plain.normalize, nn.Identity)
    assert normalized.normalize.values == values
    normalized.load_state_dict(plain.state_dict(), strict=True)
    x = images()
    by_hand = (x - torch.tensor([0.4, 0.5]).view(2, 1, 1)) / torch.tensor([0.2, 0.3]).view(2, 1, 1)
    torch.testing.assert_close(normalized(x), plain(by_hand))


def test_normalization_must_fit_the_channels(config: ModelConfig) -> None:
    with pytest.raises(InputError, match=r"normalize must have 2 channel\(s\).*got 3"):
        build(dataclasses.replace(config, normalize=CIFAR10_NORMALIZATION))


def test_normalization_saves_nothing_and_follows_the_dtype() -> None:
    layer = Normalize(CIFAR10_NORMALIZATION.mean, CIFAR10_NORMALIZATION.std)
    assert layer.state_dict() == {}
    assert layer.double()(torch.rand(1, 3, 2, 2, dtype=torch.float64)).dtype == torch.float64
    assert "0.4914" in repr(layer)


def test_the_channels_of_a_normalization_do_not_broadcast() -> None:
    layer = Normalize(MNIST_NORMALIZATION.mean, MNIST_NORMALIZATION.std)
    with pytest.raises(InputError, match=r"Normalize expects images of 1 channel\(s\), got shape \(2, 3, 4, 4\)"):
        layer(torch.rand(2, 3, 4, 4))


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((0.5,), (0.0,), "std must be positive"),
        ((0.5,), (-1.0,), "std must be positive"),
        ((0.5,), (1.0, 1.0), r"std must be as long as mean \(1\), got 2"),
        ((), (), "mean must be a tuple of finite numbers"),
        ((float("nan"),), (1.0,), "mean must be a tuple of finite numbers"),
        ((0.5,), (float("inf"),), "std must be a tuple of finite numbers"),
        (("a",), (1.0,), "mean must be a tuple of finite numbers"),
        ([0.5], (1.0,), "mean must be a tuple of finite numbers"),
        ((True,), (1.0,), "mean must be a tuple of finite numbers"),
    ],
)
def test_the_values_of_a_normalization_are_checked(
    mean: tuple[float, ...], std: tuple[float, ...], message: str
) -> None:
    with pytest.raises(InputError, match=f"Normalization.{message}"):
        Normalization(mean=mean, std=std)
