import pytest
import torch
import torch.nn.functional as F

from widemargin.errors import InputError
from widemargin.models import CNN


def test_the_papers_size_and_keys() -> None:
    with torch.device("meta"):
        model = CNN()
    assert sum(p.numel() for p in model.parameters()) == 276_426
    layers = ["conv1", "conv2", "conv3", "conv4", "fc"]
    assert list(model.state_dict()) == [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]


def test_map_sizes() -> None:
    model, seen = CNN(), {}
    for name in ("conv1", "conv2", "pool", "conv3", "conv4"):
        layer = model.get_submodule(name)
        layer.register_forward_hook(lambda _m, _i, out, name=name: seen.update({name: tuple(out.shape[1:])}))
    assert model.features(torch.rand(1, 3, 32, 32)).shape == (1, 128)
    assert seen == {
        "conv1": (32, 28, 28),
        "conv2": (64, 24, 24),
        "pool": (64, 12, 12),
        "conv3": (128, 10, 10),
        "conv4": (128, 8, 8),
    }


def test_equals_the_layers_by_hand() -> None:
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


def test_small_images_are_refused() -> None:
    CNN(image_shape=(1, 18, 18))(torch.rand(1, 1, 18, 18))
    with pytest.raises(InputError, match=r"CNN.image_shape must be at least 18 high and wide, got \(3, 17, 32\)"):
        CNN(image_shape=(3, 17, 32))
