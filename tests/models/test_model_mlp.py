import pytest
import torch

from widemargin.errors import InputError
from widemargin.models import MLP


def test_the_papers_size() -> None:
    with torch.device("meta"):
        model = MLP()
    assert sum(p.numel() for p in model.parameters()) == 3_962_890
    assert model.feature_size == 1024
    keys = [f"fcs.{i}.{part}" for i in range(5) for part in ("weight", "bias")]
    assert list(model.state_dict()) == keys


def test_equals_the_matrix_products_by_hand() -> None:
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


@pytest.mark.parametrize("hidden", [(0,), (8, -1), [8], (8.0,)])
def test_widths_are_checked(hidden: object) -> None:
    with pytest.raises(InputError, match=r"MLP.hidden must be a tuple of integers"):
        MLP(hidden=hidden)  # type: ignore[arg-type]
