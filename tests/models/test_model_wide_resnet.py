import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from widemargin.errors import InputError
from widemargin.models import WideResNet
from widemargin.models.wide_resnet import ChannelPadding, Variant

NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
WIDTHS = {1: (16, 160), 2: (160, 320), 3: (320, 640)}


def public_keys(variant: Variant, *, blocks: int = 5) -> list[str]:
    keys = ["conv1.weight"]
    for group in range(1, 4):
        for i in range(blocks):
            at = f"block{group}.layer.{i}"
            for j in (1, 2):
                keys += [*(f"{at}.bn{j}.{part}" for part in NORM), f"{at}.conv{j}.weight"]
            if variant == "madry":
                keys.append(f"{at}.poolpadShortcut.1.padding")
            elif i == 0:
                keys.append(f"{at}.convShortcut.weight")
    return [*keys, *(f"bn1.{part}" for part in NORM), "fc.weight", "fc.bias"]


@pytest.mark.parametrize(("variant", "count"), [("trades", 46_160_474), ("madry", 45_901_914)])
def test_the_public_size_and_keys(variant: Variant, count: int) -> None:
    with torch.device("meta"):
        model = WideResNet(variant=variant)
    assert sum(p.numel() for p in model.parameters()) == count
    assert list(model.state_dict()) == public_keys(variant)
    assert model.feature_size == 640


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


def norm(x: Tensor, w: dict[str, Tensor], at: str) -> Tensor:
    scale = w[f"{at}.weight"] / (w[f"{at}.running_var"] + 1e-5).sqrt()
    return (x - w[f"{at}.running_mean"].view(-1, 1, 1)) * scale.view(-1, 1, 1) + w[f"{at}.bias"].view(-1, 1, 1)


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


def block(x: Tensor, w: dict[str, Tensor], at: str, *, stride: int, variant: Variant) -> Tensor:
    start = activate(norm(x, w, f"{at}.bn1"), variant)
    if w[f"{at}.conv1.weight"].shape[0] != w[f"{at}.conv1.weight"].shape[1]:
        x = shortcut(start, w, at, stride=stride, variant=variant)
    out = F.conv2d(start, w[f"{at}.conv1.weight"], stride=stride, padding=1)
    return x + F.conv2d(activate(norm(out, w, f"{at}.bn2"), variant), w[f"{at}.conv2.weight"], padding=1)


def shake(model: nn.Module) -> nn.Module:
    """Batch norm as after training, in float64: fresh statistics would hide a swapped layer."""
    generator = torch.Generator().manual_seed(3)
    for key, value in model.double().eval().state_dict().items():
        if "bn" in key:
            value.copy_(torch.rand(value.shape, generator=generator, dtype=torch.float64) + 0.5)
    return model


@pytest.mark.parametrize("variant", ["trades", "madry"])
@pytest.mark.parametrize("widen", [1, 2])
def test_network_equals_its_formula(variant: Variant, widen: int) -> None:
    model = shake(WideResNet(depth=16, widen=widen, variant=variant, num_classes=3))
    x, w = torch.rand(2, 3, 32, 32, dtype=torch.float64) - 0.5, model.state_dict()
    out = F.conv2d(x, w["conv1.weight"], padding=1)
    for group, stride in ((1, 1), (2, 2), (3, 2)):
        out = block(out, w, f"block{group}.layer.0", stride=stride, variant=variant)
        out = block(out, w, f"block{group}.layer.1", stride=1, variant=variant)
    out = F.avg_pool2d(activate(norm(out, w, "bn1"), variant), 8).flatten(1)
    assert out.shape == (2, 64 * widen)
    torch.testing.assert_close(model(x), out @ w["fc.weight"].T + w["fc.bias"])


@pytest.mark.parametrize("variant", ["trades", "madry"])
def test_initialization(variant: Variant) -> None:
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


def test_odd_maps_fit_the_trades_variant_only() -> None:
    assert WideResNet(image_shape=(1, 9, 9), depth=10, widen=1, variant="trades")(torch.rand(1, 1, 9, 9)).shape == (
        1,
        10,
    )
    with pytest.raises(InputError, match=r"WideResNet.image_shape must have sides divisible by 4.*got \(1, 9, 9\)"):
        WideResNet(image_shape=(1, 9, 9), depth=10, widen=1, variant="madry")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 12}, r"WideResNet.depth must be 6n \+ 4.*got 12; try 10, 16"),
        ({"depth": 4}, r"WideResNet.depth"),
        ({"widen": 0}, r"WideResNet.widen must be an integer of at least 1, got 0"),
        ({"variant": "zagoruyko"}, r"WideResNet.variant must be 'trades' or 'madry', got 'zagoruyko'"),
    ],
)
def test_options_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        WideResNet(**options)  # type: ignore[arg-type]


def test_sides_that_can_be_halved_only_once_do_not_fit_the_madry_variant() -> None:
    for shape in ((3, 30, 30), (3, 32, 30), (3, 30, 32)):
        with pytest.raises(InputError, match="sides divisible by 4"):
            WideResNet(image_shape=shape, depth=10, widen=1, variant="madry")
    assert WideResNet(image_shape=(3, 28, 32), depth=10, widen=1, variant="madry")(torch.rand(1, 3, 28, 32)).shape == (
        1,
        10,
    )
