"""Whole models: the package's own with every head, shared and frozen weights, modes, layouts, precisions, sizes."""

import copy
import re
from typing import Any

import pytest
import torch
from sweep_checks import PENALTIES, Apply, check, gradients_of, is_recorded, net, penalties_slowly, penalty_of
from torch import nn

from oracles import assert_close_to_largest, images, relu_net, seeded, smooth_net, troublesome_net
from widemargin.gradients.sweeps.tape import record
from widemargin.heads import Hypersphere, LargeMargin, Linear
from widemargin.models import (
    CNNConfig,
    LBGATTeacherConfig,
    MLPConfig,
    Normalization,
    PreActResNet18Config,
    ResNet18Config,
    SwishWideResNetConfig,
    WideResNetConfig,
    build_model,
)

NORMALIZE = Normalization(mean=(0.4, 0.5), std=(0.2, 0.3))
MODELS: dict[str, tuple[Any, tuple[int, int, int]]] = {
    "mlp": (MLPConfig(hidden=(9, 7), normalize=NORMALIZE), (2, 3, 4)),
    "cnn": (CNNConfig(normalize=NORMALIZE), (2, 18, 19)),
    "resnet18": (ResNet18Config(width=2, normalize=NORMALIZE), (2, 8, 9)),
    "preact-resnet18": (PreActResNet18Config(width=2, normalize=NORMALIZE), (2, 8, 9)),
    "preact-resnet18 of old": (PreActResNet18Config(width=2, last_norm=False), (2, 8, 8)),
    "lbgat-teacher": (LBGATTeacherConfig(width=2), (2, 8, 8)),
    "wrn madry": (WideResNetConfig(depth=10, widen=1, variant="madry", normalize=NORMALIZE), (2, 8, 8)),
    "wrn trades": (WideResNetConfig(depth=10, widen=1, variant="trades"), (2, 8, 8)),
    "wrn swish": (SwishWideResNetConfig(depth=10, widen=1, normalize=NORMALIZE), (2, 8, 8)),
    "wrn of TensorFlow with relu": (SwishWideResNetConfig(depth=10, widen=1, activation="relu"), (2, 8, 8)),
    "mlp, gelu": (MLPConfig(hidden=(9, 7), activation="gelu"), (2, 3, 4)),
    "resnet18, silu": (ResNet18Config(width=2, activation="silu"), (2, 8, 9)),
}
HEADS: dict[str, Any] = {
    "linear": Linear(),
    "hypersphere": Hypersphere(),
    "hypersphere, differentiable": Hypersphere(rows="differentiable"),
    "large margin": LargeMargin(),
}


def uncommon_statistics(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(0, 0.1)
    return model


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", MODELS)
def test_our_models(name: str, head: str) -> None:
    config, shape = MODELS[name]

    def make() -> nn.Module:
        model = build_model(config, image_shape=shape, num_classes=3, seed=0, make_head=HEADS[head])
        return uncommon_statistics(model)

    check(seeded(0, make), images(2, *shape))


def test_shared_weights() -> None:
    """One layer used twice, and one weight under two names."""

    def make() -> nn.Module:
        inner, one, two = (nn.Linear(5, 5) for _ in range(3))
        two.weight = one.weight
        return nn.Sequential(inner, nn.Tanh(), inner, one, nn.ReLU(), two, nn.Linear(5, 3))

    check(seeded(0, make), images(3, 5))


@pytest.mark.parametrize(
    ("make", "trains"),
    [
        *((make, f"(?!{frozen})") for make in (relu_net, smooth_net) for frozen in ("1.w", "1.b", "3.w", "5.w")),
        (relu_net, "3.weight"),
        (smooth_net, "1.bias"),
    ],
)
def test_some_parameters_frozen(make: Any, trains: str) -> None:
    model = make(num_classes=3)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(bool(re.match(trains, name)))
    check(model, images(3, 1, 3, 5))


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_batch_sizes(batch: int) -> None:
    check(troublesome_net(num_classes=3), images(batch, 2, 4, 5))


@pytest.mark.parametrize("num_classes", [2, 5, 100])
@pytest.mark.parametrize("make", [relu_net, smooth_net])
def test_numbers_of_classes(make: Any, num_classes: int) -> None:
    check(make(num_classes=num_classes), images(2, 1, 3, 5))


@pytest.mark.parametrize("activation", [nn.ReLU, nn.SiLU])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_memory_layouts(layout: torch.memory_format, activation: type[nn.Module]) -> None:
    def make() -> nn.Module:
        layers = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), activation(), nn.Conv2d(4, 6, 3, stride=2)]
        return net(*layers, nn.MaxPool2d(2), shape=(3, 6, 9))

    model = seeded(0, make).to(memory_format=torch.channels_last)
    check(model, images(3, 3, 6, 9).to(memory_format=layout))


def test_images_that_are_views() -> None:
    model = troublesome_net(num_classes=3)
    check(model, images(6, 2, 5, 4).transpose(2, 3)[::2])


def bfloat16_net(activation: type[nn.Module]) -> nn.Module:
    def make() -> nn.Module:
        first = [nn.Conv2d(2, 8, 3, padding=1), nn.BatchNorm2d(8), activation(), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8)]
        gate = Apply(lambda h, s: torch.cat([h * s, h.float()], dim=1).bfloat16(), (1,))
        return net(*first, gate, nn.AvgPool2d(2), shape=(2, 6, 8))

    return seeded(0, make).float()


@pytest.mark.parametrize("name", [name for name in PENALTIES if name != "stochastic"])  # draws by type
@pytest.mark.parametrize("activation", [nn.ReLU, nn.SiLU, nn.Softplus])
def test_autocast(name: str, activation: type[nn.Module]) -> None:
    model, x = bfloat16_net(activation), images(4, 2, 6, 8, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert is_recorded(model, x)
        penalty = penalty_of(name, model, x)
    gradients = gradients_of(model, penalty)
    wide = copy.deepcopy(model).double()
    wide[0][5].function = lambda h, s: torch.cat([h * s, h], dim=1)
    slow = penalties_slowly(wide, x.double())[name]
    assert penalty.dtype == torch.float32
    assert_close_to_largest(penalty.detach(), slow.detach(), 0.05)
    tolerance = 0.2 if "linf" in name else 0.1  # rounding turns the sign of small slopes
    for key, right in gradients_of(wide, slow).items():
        assert gradients[key].dtype == torch.float32
        assert_close_to_largest(gradients[key], right, tolerance)


def test_operators_are_differentiated_under_the_autocast_they_ran_in() -> None:
    model = nn.Sequential(nn.Conv3d(1, 2, 1), nn.AvgPool3d(2), nn.Flatten(), nn.Linear(2, 3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, tape = record(model, torch.rand(2, 1, 2, 2, 2), frozenset(["0.weight"]))
    narrow = torch.zeros(1, 2, 2, 2, 2, 2, dtype=torch.bfloat16)
    assert tape.entries[1].layer.tangent([narrow]).dtype == torch.float32  # autocast pools 3d in float32


def test_autocast_loses_no_gradient_of_the_pass_after_it() -> None:
    """Weights cast without a graph must not stay in the cache of autocast."""
    model, x = relu_net().float(), images(3, 1, 3, 5, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        alone = gradients_of(model, model(x).float().sum(1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        penalty_of("exact", model, x, num_classes=4)
        after = gradients_of(model, model(x).float().sum(1))
    assert all(torch.equal(after[key], alone[key]) for key in alone)
    assert float(after["1.weight"].norm()) > 0
