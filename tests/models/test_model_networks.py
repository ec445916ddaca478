"""The networks: their published sizes and keys, and each against its formula, layer by layer."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from widemargin.errors import InputError
from widemargin.models import (
    CNN,
    MLP,
    MODELS,
    TEACHER_STRIDES,
    USUAL_STRIDES,
    Classifier,
    CNNConfig,
    LBGATTeacherConfig,
    MLPConfig,
    PreActResNet18,
    PreActResNet18Config,
    ResNet18,
    ResNet18Config,
    SwishWideResNet,
    SwishWideResNetConfig,
    WideResNet,
    WideResNetConfig,
)
from widemargin.models.resnet import BasicBlock
from widemargin.models.wide_resnet import ChannelPadding, Variant

NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
WIDTHS = {1: (16, 160), 2: (160, 320), 3: (320, 640)}


def resnet_keys() -> list[str]:
    keys = ["conv1.weight", *(f"bn1.{part}" for part in NORM)]
    for stage in range(1, 5):
        for block in range(2):
            at = f"layer{stage}.{block}"
            for i in (1, 2):
                keys += [f"{at}.conv{i}.weight", *(f"{at}.bn{i}.{part}" for part in NORM)]
            if stage > 1 and block == 0:
                keys += [f"{at}.shortcut.0.weight", *(f"{at}.shortcut.1.{part}" for part in NORM)]
    return [*keys, "linear.weight", "linear.bias"]


def preact_keys(*, last_norm: bool) -> list[str]:
    keys = ["conv1.weight"]
    for stage in range(1, 5):
        for at in (f"layer{stage}.0", f"layer{stage}.1"):
            for i in (1, 2):
                keys += [*(f"{at}.bn{i}.{part}" for part in NORM), f"{at}.conv{i}.weight"]
            keys += [f"{at}.shortcut.0.weight"] if stage > 1 and at.endswith("0") else []
    keys += [f"bn.{part}" for part in NORM] if last_norm else []
    return [*keys, "linear.weight", "linear.bias"]


def wide_keys(variant: Variant) -> list[str]:
    keys = ["conv1.weight"]
    for group in range(1, 4):
        for i in range(5):
            at = f"block{group}.layer.{i}"
            for j in (1, 2):
                keys += [*(f"{at}.bn{j}.{part}" for part in NORM), f"{at}.conv{j}.weight"]
            if variant == "madry":
                keys.append(f"{at}.poolpadShortcut.1.padding")
            elif i == 0:
                keys.append(f"{at}.convShortcut.weight")
    return [*keys, *(f"bn1.{part}" for part in NORM), "fc.weight", "fc.bias"]


def layer_keys(*layers: str) -> list[str]:
    return [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]


SIZES: dict[str, tuple[Callable[[], Classifier], int, int, list[str]]] = {
    "mlp": (MLP, 3_962_890, 1024, layer_keys(*(f"fcs.{i}" for i in range(5)))),
    "cnn": (CNN, 276_426, 128, layer_keys("conv1", "conv2", "conv3", "conv4", "fc")),
    "resnet": (ResNet18, 11_173_962, 512, resnet_keys()),
    "teacher": (lambda: ResNet18(strides=TEACHER_STRIDES), 11_173_962, 512, resnet_keys()),
    "preact": (PreActResNet18, 11_172_170, 512, preact_keys(last_norm=True)),
    "bare": (lambda: PreActResNet18(last_norm=False), 11_172_170 - 1024, 512, preact_keys(last_norm=False)),
    "trades": (lambda: WideResNet(variant="trades"), 46_160_474, 640, wide_keys("trades")),
    "madry": (lambda: WideResNet(variant="madry"), 45_901_914, 640, wide_keys("madry")),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_published_size_and_keys(name: str) -> None:
    make, count, features, keys = SIZES[name]
    with torch.device("meta"):
        model = make()
    assert sum(p.numel() for p in model.parameters()) == count
    assert list(model.state_dict()) == keys
    assert model.feature_size == features


def test_the_mlp_equals_its_matrix_products() -> None:
    torch.manual_seed(0)
    model = MLP(image_shape=(1, 3, 2), num_classes=4, hidden=(5, 7)).double()
    x = torch.rand(3, 1, 3, 2, dtype=torch.float64)
    w = model.state_dict()
    hidden = x.reshape(3, 6)
    for i in range(2):
        hidden = (hidden @ w[f"fcs.{i}.weight"].T + w[f"fcs.{i}.bias"]).clamp_min(0)
    torch.testing.assert_close(model.features(x), hidden)
    torch.testing.assert_close(model(x), hidden @ w["fcs.2.weight"].T + w["fcs.2.bias"])


def test_no_hidden_layer_is_a_linear_classifier() -> None:
    model = MLP(image_shape=(1, 2, 2), num_classes=3, hidden=())
    x = torch.rand(5, 1, 2, 2)
    assert list(model.state_dict()) == ["fcs.0.weight", "fcs.0.bias"]
    torch.testing.assert_close(model(x), x.flatten(1) @ model.fcs[0].weight.T + model.fcs[0].bias)


def test_the_cnn_equals_its_layers() -> None:
    model = CNN(image_shape=(1, 18, 20), num_classes=3).double()
    x = torch.rand(2, 1, 18, 20, dtype=torch.float64)
    w = model.state_dict()
    out = x
    for i in range(1, 5):
        out = F.conv2d(out, w[f"conv{i}.weight"], w[f"conv{i}.bias"]).clamp_min(0)
        if i == 2:
            out = (out[..., ::2, ::2] + out[..., 1::2, ::2] + out[..., ::2, 1::2] + out[..., 1::2, 1::2]) / 4
    out = out.sum(dim=(2, 3)) / (out.shape[2] * out.shape[3])
    torch.testing.assert_close(model(x), out @ w["fc.weight"].T + w["fc.bias"])


def norm(x: Tensor, w: dict[str, Tensor], at: str) -> Tensor:
    scale = w[f"{at}.weight"] / (w[f"{at}.running_var"] + 1e-5).sqrt()
    return (x - w[f"{at}.running_mean"].view(-1, 1, 1)) * scale.view(-1, 1, 1) + w[f"{at}.bias"].view(-1, 1, 1)


def block(x: Tensor, w: dict[str, Tensor], at: str, *, stride: int) -> Tensor:
    out = norm(F.conv2d(x, w[f"{at}conv1.weight"], stride=stride, padding=1), w, f"{at}bn1").clamp_min(0)
    out = norm(F.conv2d(out, w[f"{at}conv2.weight"], padding=1), w, f"{at}bn2")
    if f"{at}shortcut.0.weight" in w:
        x = norm(F.conv2d(x, w[f"{at}shortcut.0.weight"], stride=stride), w, f"{at}shortcut.1")
    return (out + x).clamp_min(0)


def shake(model: nn.Module) -> nn.Module:
    """Batch norm as after training, in float64: fresh statistics would hide a swapped layer."""
    generator = torch.Generator().manual_seed(3)
    for key, value in model.double().eval().state_dict().items():
        if "bn" in key or "shortcut.1" in key:
            value.copy_(torch.rand(value.shape, generator=generator, dtype=torch.float64) + 0.5)
    return model


@pytest.mark.parametrize(("channels", "stride"), [((3, 3), 1), ((3, 4), 1), ((3, 3), 2), ((3, 6), 2)])
def test_a_residual_block_equals_its_formula(channels: tuple[int, int], stride: int) -> None:
    module = shake(BasicBlock(*channels, stride=stride))
    x = torch.randn(2, 3, 7, 7, dtype=torch.float64)
    torch.testing.assert_close(module(x), block(x, module.state_dict(), "", stride=stride))


@pytest.mark.parametrize(("strides", "pool"), [(USUAL_STRIDES, 4), (TEACHER_STRIDES, 8)])
def test_the_residual_network_equals_its_formula(strides: tuple[int, int, int, int], pool: int) -> None:
    model = shake(ResNet18(width=2, num_classes=3, strides=strides))
    x, w = torch.rand(2, 3, 32, 32, dtype=torch.float64), model.state_dict()
    out = norm(F.conv2d(x, w["conv1.weight"], padding=1), w, "bn1").clamp_min(0)
    for stage, stride in enumerate(strides, start=1):
        out = block(out, w, f"layer{stage}.0.", stride=stride)
        out = block(out, w, f"layer{stage}.1.", stride=1)
    out = F.avg_pool2d(out, pool).flatten(1)
    assert out.shape == (2, 16)
    torch.testing.assert_close(model(x), out @ w["linear.weight"].T + w["linear.bias"])


def test_the_residual_network_is_initialized_as_torch_does() -> None:
    torch.manual_seed(0)
    weight = ResNet18(width=16).layer3[1].conv1.weight  # uniform on +-1 / sqrt(fan in)
    bound = (weight.shape[1] * 9) ** -0.5
    assert weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)


@pytest.mark.parametrize("last_norm", [True, False])
def test_the_pre_activation_network_equals_its_formula(last_norm: bool) -> None:
    model = shake(PreActResNet18(width=2, num_classes=3, last_norm=last_norm))
    x, w = torch.rand(2, 3, 32, 32, dtype=torch.float64), model.state_dict()
    out = F.conv2d(x, w["conv1.weight"], padding=1)
    for stage, stride in enumerate(USUAL_STRIDES, start=1):
        for at, step in ((f"layer{stage}.0.", stride), (f"layer{stage}.1.", 1)):
            active = norm(out, w, f"{at}bn1").clamp_min(0)
            if f"{at}shortcut.0.weight" in w:
                out = F.conv2d(active, w[f"{at}shortcut.0.weight"], stride=step)
            inner = norm(F.conv2d(active, w[f"{at}conv1.weight"], stride=step, padding=1), w, f"{at}bn2").clamp_min(0)
            out = out + F.conv2d(inner, w[f"{at}conv2.weight"], padding=1)
    out = norm(out, w, "bn").clamp_min(0) if last_norm else out
    expected = F.linear(F.avg_pool2d(out, 4).flatten(1), w["linear.weight"], w["linear.bias"])
    torch.testing.assert_close(model(x), expected)


HIDDEN = {"relu": F.relu, "silu": F.silu, "gelu": F.gelu, "leaky_relu": lambda x: F.leaky_relu(x, 0.1)}


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("make", [MLP, CNN, ResNet18, PreActResNet18, partial(WideResNet, depth=10, widen=1)])
def test_the_activation_is_that_of_every_layer(make: Callable[..., Classifier], name: str) -> None:
    """Against the network of the other activations with each of them put in its place."""
    sizes = {"image_shape": (3, 20, 20), "num_classes": 3}
    model, other = make(activation=name, **sizes).eval(), make(activation="relu", **sizes).eval()
    other.load_state_dict(model.state_dict())
    put = [at for at, module in other.named_modules() if isinstance(module, nn.ReLU)]
    for at in put:
        parent, _, last = at.rpartition(".")
        setattr(other.get_submodule(parent), last, Apply(HIDDEN[name]))
    x = torch.rand(2, 3, 20, 20)
    torch.testing.assert_close(model(x), other(x))
    assert len(put) >= 4


class Apply(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def test_padding_buffers_have_the_public_shapes() -> None:
    with torch.device("meta"):
        weights = WideResNet(variant="madry").state_dict()
    for group, (narrow, wide) in WIDTHS.items():
        for i in range(5):
            extra = (wide - narrow) // 2 if i == 0 else 0
            assert weights[f"block{group}.layer.{i}.poolpadShortcut.1.padding"].shape == (1, extra, 1, 1)


def test_channels_are_padded_on_both_sides() -> None:
    padded = ChannelPadding(2, 6)(torch.ones(1, 2, 3, 3, dtype=torch.bfloat16))
    assert padded.dtype == torch.bfloat16
    assert padded[0, :, 0, 0].tolist() == [0, 0, 1, 1, 0, 0]


def activate(x: Tensor, variant: Variant) -> Tensor:
    return torch.where(x > 0, x, 0.1 * x if variant == "madry" else torch.zeros_like(x))


def shortcut(x: Tensor, w: dict[str, Tensor], at: str, *, stride: int, variant: Variant) -> Tensor:
    if variant == "trades":
        return F.conv2d(x, w[f"{at}.convShortcut.weight"], stride=stride)
    if stride == 2:
        x = (x[..., ::2, ::2] + x[..., 1::2, ::2] + x[..., ::2, 1::2] + x[..., 1::2, 1::2]) / 4
    zeros = torch.zeros(x.shape[0], w[f"{at}.conv2.weight"].shape[0] - x.shape[1], *x.shape[2:], dtype=x.dtype)
    half = zeros.shape[1] // 2
    return torch.cat([zeros[:, :half], x, zeros[:, half:]], dim=1)


def wide_block(x: Tensor, w: dict[str, Tensor], at: str, *, stride: int, variant: Variant) -> Tensor:
    start = activate(norm(x, w, f"{at}.bn1"), variant)
    if w[f"{at}.conv1.weight"].shape[0] != w[f"{at}.conv1.weight"].shape[1]:
        x = shortcut(start, w, at, stride=stride, variant=variant)
    out = F.conv2d(start, w[f"{at}.conv1.weight"], stride=stride, padding=1)
    return x + F.conv2d(activate(norm(out, w, f"{at}.bn2"), variant), w[f"{at}.conv2.weight"], padding=1)


@pytest.mark.parametrize("variant", ["trades", "madry"])
@pytest.mark.parametrize("widen", [1, 2])
def test_the_wide_network_equals_its_formula(variant: Variant, widen: int) -> None:
    model = shake(WideResNet(depth=16, widen=widen, variant=variant, num_classes=3))
    x, w = torch.rand(2, 3, 32, 32, dtype=torch.float64) - 0.5, model.state_dict()
    out = F.conv2d(x, w["conv1.weight"], padding=1)
    for group, stride in ((1, 1), (2, 2), (3, 2)):
        out = wide_block(out, w, f"block{group}.layer.0", stride=stride, variant=variant)
        out = wide_block(out, w, f"block{group}.layer.1", stride=1, variant=variant)
    out = F.avg_pool2d(activate(norm(out, w, "bn1"), variant), 8).flatten(1)
    assert out.shape == (2, 64 * widen)
    torch.testing.assert_close(model(x), out @ w["fc.weight"].T + w["fc.bias"])


@pytest.mark.parametrize("variant", ["trades", "madry"])
def test_the_wide_network_is_initialized_by_fan_out(variant: Variant) -> None:
    torch.manual_seed(0)
    model = WideResNet(depth=10, widen=4, variant=variant)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            expected = math.sqrt(2 / (module.kernel_size[0] ** 2 * module.out_channels))
            spread = 5 / math.sqrt(2 * module.weight.numel())  # five standard errors of a standard deviation
            assert module.weight.std().item() == pytest.approx(expected, rel=spread)
            assert abs(module.weight.mean().item()) < 5 * expected / math.sqrt(module.weight.numel())
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
    assert (model.fc.bias == 0).all()
    assert 0 < model.fc.weight.abs().max() <= 256**-0.5
    if variant == "madry":
        assert all((value == 0).all() for key, value in model.state_dict().items() if "padding" in key)


WIDE = WideResNet, WideResNetConfig
SWISH = SwishWideResNet, SwishWideResNetConfig
ACTIVE = MLP, MLPConfig, CNN, CNNConfig, *WIDE, *SWISH
RESNETS = ResNet18, ResNet18Config, PreActResNet18, PreActResNet18Config, LBGATTeacherConfig
BAD: list[tuple[tuple[type, ...], str, tuple[object, ...], str]] = [
    # the classes, their field, values, and what the message says after the field
    ((MLP, MLPConfig), "hidden", ((0,), (8, -1), [8], (8.0,)), r"must be a tuple of integers.*; give one width"),
    (RESNETS, "width", (0, -1, 1.5, True), r"must be an integer of at least 1, got"),
    (
        (*ACTIVE, *RESNETS),
        "activation",
        ("swish", 1, True),
        r"must be one of 'relu', 'silu', 'gelu', 'leaky_relu', got",
    ),
    ((*WIDE, *SWISH), "depth", (12,), r"must be 6n \+ 4.*got 12; try 10, 16"),
    ((*WIDE, *SWISH), "depth", (4, 33), r"must be 6n \+ 4"),
    ((*WIDE, *SWISH), "widen", (0, True), r"must be an integer of at least 1, got"),
    (WIDE, "variant", ("x",), r"must be 'trades' or 'madry', got 'x'"),
    ((MLPConfig, CNNConfig), "init", ("xavier",), r"must be 'he', or None for torch's own, got 'xavier'"),
    (tuple(MODELS.values()), "normalize", ("cifar10",), r"must be a Normalization or None"),
    ((CNN, MLP, ResNet18, WideResNet), "image_shape", ((3, 32), (3, 32, 0), [3, 32, 32], 32), r"must"),
    ((CNN,), "image_shape", ((3, 17, 32),), r"must be at least 18 high and wide, got \(3, 17, 32\)"),
    (
        (WideResNet, SwishWideResNet),
        "image_shape",
        ((1, 9, 9), (3, 30, 30), (3, 32, 30), (3, 30, 32)),
        r"must have sides divisible",
    ),
    ((CNN,), "num_classes", (1, 0, 2.0, True), r"must be an integer of at least 2"),
]


@pytest.mark.parametrize(
    ("kind", "field", "value", "message"),
    [(kind, field, value, message) for kinds, field, values, message in BAD for kind in kinds for value in values],
)
def test_settings_are_checked(kind: type, field: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=rf"{kind.__name__}\.{field} {message}"):
        kind(**{field: value})


@pytest.mark.parametrize(
    "model",
    [
        CNN(image_shape=(1, 18, 18)),
        WideResNet(image_shape=(1, 9, 9), depth=10, widen=1, variant="trades"),
        WideResNet(image_shape=(3, 28, 32), depth=10, widen=1, variant="madry"),
    ],
)
def test_unusual_images_that_fit(model: Classifier) -> None:
    assert model(torch.rand(1, *model.image_shape)).shape == (1, 10)
