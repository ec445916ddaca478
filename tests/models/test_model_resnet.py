import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from widemargin.errors import InputError
from widemargin.models import TEACHER_STRIDES, USUAL_STRIDES, PreActResNet18, ResNet18
from widemargin.models.resnet import BasicBlock

NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def public_keys() -> list[str]:
    keys = ["conv1.weight", *(f"bn1.{part}" for part in NORM)]
    for stage in range(1, 5):
        for block in range(2):
            at = f"layer{stage}.{block}"
            for i in (1, 2):
                keys += [f"{at}.conv{i}.weight", *(f"{at}.bn{i}.{part}" for part in NORM)]
            if stage > 1 and block == 0:
                keys += [f"{at}.shortcut.0.weight", *(f"{at}.shortcut.1.{part}" for part in NORM)]
    return [*keys, "linear.weight", "linear.bias"]


@pytest.mark.parametrize("strides", [USUAL_STRIDES, TEACHER_STRIDES])
def test_the_public_size_and_keys(strides: tuple[int, int, int, int]) -> None:
    with torch.device("meta"):
        model = ResNet18(strides=strides)
    assert sum(p.numel() for p in model.parameters()) == 11_173_962
    assert list(model.state_dict()) == public_keys()
    assert model.feature_size == 512


@pytest.mark.parametrize(("strides", "sides"), [(USUAL_STRIDES, [32, 16, 8, 4]), (TEACHER_STRIDES, [32, 32, 16, 8])])
def test_map_sizes(strides: tuple[int, int, int, int], sides: list[int]) -> None:
    model, seen = ResNet18(width=2, strides=strides), []
    for i in range(1, 5):
        layer = model.get_submodule(f"layer{i}")
        layer.register_forward_hook(lambda _m, _i, out: seen.append(out.shape[-1]))
    model(torch.rand(1, 3, 32, 32))
    assert seen == sides


@pytest.mark.parametrize("last_norm", [True, False])
def test_the_public_size_and_keys_of_the_pre_activation_one(last_norm: bool) -> None:
    with torch.device("meta"):
        model = PreActResNet18(last_norm=last_norm)
    keys = ["conv1.weight"]
    for stage in range(1, 5):
        for at in (f"layer{stage}.0", f"layer{stage}.1"):
            for i in (1, 2):
                keys += [*(f"{at}.bn{i}.{part}" for part in NORM), f"{at}.conv{i}.weight"]
            keys += [f"{at}.shortcut.0.weight"] if stage > 1 and at.endswith("0") else []
    keys += [f"bn.{part}" for part in NORM] if last_norm else []
    assert list(model.state_dict()) == [*keys, "linear.weight", "linear.bias"]
    assert sum(p.numel() for p in model.parameters()) == 11_172_170 - 1024 * (not last_norm)


def norm(x: Tensor, w: dict[str, Tensor], at: str) -> Tensor:
    scale = w[f"{at}.weight"] / (w[f"{at}.running_var"] + 1e-5).sqrt()
    return (x - w[f"{at}.running_mean"].view(-1, 1, 1)) * scale.view(-1, 1, 1) + w[f"{at}.bias"].view(-1, 1, 1)


def block(x: Tensor, w: dict[str, Tensor], at: str, *, stride: int) -> Tensor:
    out = norm(F.conv2d(x, w[f"{at}conv1.weight"], stride=stride, padding=1), w, f"{at}bn1").clamp_min(0)
    out = norm(F.conv2d(out, w[f"{at}conv2.weight"], padding=1), w, f"{at}bn2")
    if f"{at}shortcut.0.weight" in w:
        x = norm(F.conv2d(x, w[f"{at}shortcut.0.weight"], stride=stride), w, f"{at}shortcut.1")
    return (out + x).clamp_min(0)


def shake(model: torch.nn.Module) -> torch.nn.Module:
    """Batch norm as after training, in float64: fresh statistics would hide a swapped layer."""
    generator = torch.Generator().manual_seed(3)
    for key, value in model.double().eval().state_dict().items():
        if ".bn" in key or key.startswith("bn") or "shortcut.1" in key:
            value.copy_(torch.rand(value.shape, generator=generator, dtype=torch.float64) + 0.5)
    return model


@pytest.mark.parametrize(("channels", "stride"), [((3, 3), 1), ((3, 4), 1), ((3, 3), 2), ((3, 6), 2)])
def test_block_equals_its_formula(channels: tuple[int, int], stride: int) -> None:
    module = shake(BasicBlock(*channels, stride=stride))
    x = torch.randn(2, 3, 7, 7, dtype=torch.float64)
    torch.testing.assert_close(module(x), block(x, module.state_dict(), "", stride=stride))


@pytest.mark.parametrize(("strides", "pool"), [(USUAL_STRIDES, 4), (TEACHER_STRIDES, 8)])
def test_network_equals_its_formula(strides: tuple[int, int, int, int], pool: int) -> None:
    model = shake(ResNet18(width=2, num_classes=3, strides=strides))
    x, w = torch.rand(2, 3, 32, 32, dtype=torch.float64), model.state_dict()
    out = norm(F.conv2d(x, w["conv1.weight"], padding=1), w, "bn1").clamp_min(0)
    for stage, stride in enumerate(strides, start=1):
        out = block(out, w, f"layer{stage}.0.", stride=stride)
        out = block(out, w, f"layer{stage}.1.", stride=1)
    out = F.avg_pool2d(out, pool).flatten(1)
    assert out.shape == (2, 16)
    torch.testing.assert_close(model(x), out @ w["linear.weight"].T + w["linear.bias"])


def test_default_initialization() -> None:
    torch.manual_seed(0)
    weight = ResNet18(width=16).layer3[1].conv1.weight  # uniform on +-1 / sqrt(fan in)
    bound = (weight.shape[1] * 9) ** -0.5
    assert weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)


@pytest.mark.parametrize("width", [0, 1.5, True])
def test_width_is_checked(width: object) -> None:
    with pytest.raises(InputError, match=r"ResNet18.width must be an integer of at least 1"):
        ResNet18(width=width)  # type: ignore[arg-type]


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
