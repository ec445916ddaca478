"""The WideResNet of Gowal et al. 2020: its formula with TensorFlow's own rule of padding, and weights as published."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from widemargin.evaluation.target import load_model
from widemargin.models import CIFAR10_NORMALIZATION, SwishWideResNet, WideResNet
from widemargin.models.public_weights import describe

DEPTH, WIDEN, CLASSES = 16, 2, 7
COLOR = (3, 32, 32)
BLOCKS = (DEPTH - 4) // 6
Weights = dict[str, Tensor]


def public_weights(seed: int = 0) -> Weights:
    """Random ones under the published names, written down from these and not from the network."""
    generator = torch.Generator().manual_seed(seed)

    def some(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*shape, generator=generator)

    def convolution(out: int, into: int, side: int) -> Tensor:
        return some(out, into, side, side, scale=math.sqrt(2 / (side * side * into)))

    def norm(at: str, channels: int) -> Weights:
        spread = torch.rand(2, channels, generator=generator) + 0.5
        return {
            f"{at}.weight": spread[0],
            f"{at}.bias": some(channels, scale=0.1),
            f"{at}.running_mean": some(channels, scale=0.1),
            f"{at}.running_var": spread[1],
            f"{at}.num_batches_tracked": torch.tensor(100),
        }

    weights = {"init_conv.weight": convolution(16, 3, 3)}
    before = 16
    for group, wide in enumerate((16 * WIDEN, 32 * WIDEN, 64 * WIDEN)):
        for i in range(BLOCKS):
            at = f"layer.{group}.block.{i}"
            weights |= norm(f"{at}.batchnorm_0", before)
            weights[f"{at}.conv_0.weight"] = convolution(wide, before, 3)
            weights |= norm(f"{at}.batchnorm_1", wide)
            weights[f"{at}.conv_1.weight"] = convolution(wide, wide, 3)
            if before != wide:
                weights[f"{at}.shortcut.weight"] = convolution(wide, before, 1)
            before = wide
    weights |= norm("batchnorm", before)
    return weights | {"logits.weight": some(CLASSES, before, scale=0.3), "logits.bias": some(CLASSES)}


def same_convolution(x: Tensor, weight: Tensor, *, stride: int = 1) -> Tensor:
    """TensorFlow's SAME: ceil(n / stride) outputs, the smaller half of the padding first."""
    sides = []
    for n, k in zip(x.shape[:1:-1], weight.shape[:1:-1], strict=True):
        total = max((math.ceil(n / stride) - 1) * stride + k - n, 0)
        sides += [total // 2, total - total // 2]
    return F.conv2d(F.pad(x, sides), weight, stride=stride)


def logits_of(w: Weights, x: Tensor, activate=F.silu) -> Tensor:
    def norm(h: Tensor, at: str) -> Tensor:
        mean, var, scale, shift = (
            w[f"{at}.{part}"].view(-1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (h - mean) / (var + 1e-5).sqrt() * scale + shift

    h = same_convolution(x, w["init_conv.weight"])
    for group, stride in enumerate((1, 2, 2)):
        for i in range(BLOCKS):
            at, step = f"layer.{group}.block.{i}", stride if i == 0 else 1
            active = activate(norm(h, f"{at}.batchnorm_0"))
            key = f"{at}.shortcut.weight"
            shortcut = same_convolution(active, w[key], stride=step) if key in w else h
            out = same_convolution(active, w[f"{at}.conv_0.weight"], stride=step)
            out = same_convolution(activate(norm(out, f"{at}.batchnorm_1")), w[f"{at}.conv_1.weight"])
            h = shortcut + out
    h = F.avg_pool2d(activate(norm(h, "batchnorm")), x.shape[-1] // 4).flatten(1)
    return h @ w["logits.weight"].T + w["logits.bias"]


def doubled(weights: Weights) -> Weights:
    return {key: value.double() if value.is_floating_point() else value for key, value in weights.items()}


@pytest.mark.parametrize(("name", "activate"), [("silu", F.silu), ("relu", F.relu)])
@pytest.mark.parametrize("side", [32, 64])
def test_the_network_equals_its_formula(name, activate, side):
    weights = doubled(public_weights())
    model = SwishWideResNet(
        image_shape=(3, side, side), num_classes=CLASSES, depth=DEPTH, widen=WIDEN, activation=name
    ).double()
    model.load_state_dict(weights)
    x = torch.rand(2, 3, side, side, dtype=torch.float64)
    torch.testing.assert_close(model.eval()(x), logits_of(weights, x, activate))


def test_the_keys_are_the_published_ones_in_their_order():
    with torch.device("meta"):
        model = SwishWideResNet(num_classes=CLASSES, depth=DEPTH, widen=WIDEN)
    assert list(model.state_dict()) == list(public_weights())


@pytest.mark.parametrize(
    ("depth", "widen", "parameters"), [(28, 10, 36_479_194), (34, 10, 46_160_474), (70, 16, 266_796_506)]
)
def test_the_published_sizes(depth, widen, parameters):
    """Those of the network without TensorFlow's padding, which has no parameters."""
    with torch.device("meta"):
        ours, other = (
            make(depth=depth, widen=widen)
            for make in (SwishWideResNet, lambda **size: WideResNet(variant="trades", **size))
        )
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in other.parameters()) == parameters


def mean_and_std() -> Weights:
    return {name: torch.tensor(getattr(CIFAR10_NORMALIZATION, name)).view(3, 1, 1) for name in ("mean", "std")}


def prefixed(weights: Weights, prefix: str) -> Weights:
    return {prefix + key: value for key, value in weights.items()}


PUBLISHED = {
    "with buffers": (lambda w: w | mean_and_std(), None),
    "without": (lambda w: w, "cifar10"),
    "under several GPUs, in a Sequential, beside others": (
        lambda w: {
            "model_state_dict": prefixed(w, "module.0."),
            "unaveraged_model_state_dict": prefixed(w, "module.0."),
        },
        "cifar10",
    ),
    "in a model dict, with buffers": (lambda w: {"model": prefixed(w | mean_and_std(), "module.")}, None),
}


@pytest.mark.parametrize("form", PUBLISHED)
def test_published_weights_load(tmp_path, form):
    wrapped, normalize = PUBLISHED[form]
    weights, path = public_weights(), tmp_path / "weights.pt"
    torch.save(wrapped(weights), path)
    model = load_model(str(path), image_shape=COLOR, normalize=normalize).model.double()
    x = torch.rand(2, *COLOR, dtype=torch.float64)
    mean, std = mean_and_std().values()
    expected = logits_of(doubled(weights), (x - mean.double()) / std.double())
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)


def test_the_weights_are_named_by_their_network():
    shapes = {key: tuple(value.shape) for key, value in public_weights().items()}
    assert describe(shapes) == f"SwishWideResNet(depth={DEPTH}, widen={WIDEN}, num_classes={CLASSES})"


def test_the_statistics_move_by_a_hundredth_a_step():
    model = SwishWideResNet(depth=10, widen=1).train()
    model(torch.rand(4, *COLOR))
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 7
    for norm in norms:
        assert 0.985 < float(norm.running_var.mean()) < 1.02
        assert not torch.equal(norm.running_mean, torch.zeros_like(norm.running_mean))


def test_first_weights_are_drawn_by_fan_out():
    torch.manual_seed(0)
    model = SwishWideResNet(depth=10, widen=4)
    weight = model.layer[1].block[0].conv_1.weight
    assert float(weight.detach().std()) == pytest.approx(math.sqrt(2 / (9 * weight.shape[0])), rel=0.02)
    assert not model.logits.bias.any()
