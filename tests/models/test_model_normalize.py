import pytest
import torch

from widemargin.errors import InputError
from widemargin.models import CIFAR10_NORMALIZATION, MNIST_NORMALIZATION, Normalization, Normalize


def test_is_the_formula_per_channel() -> None:
    layer = Normalize([0.5, 0.1], [0.5, 2.0])
    x = torch.rand(3, 2, 4, 4)
    torch.testing.assert_close(layer(x)[:, 0], (x[:, 0] - 0.5) / 0.5)
    torch.testing.assert_close(layer(x)[:, 1], (x[:, 1] - 0.1) / 2.0)


def test_saves_nothing_and_follows_the_dtype() -> None:
    layer = Normalize(CIFAR10_NORMALIZATION.mean, CIFAR10_NORMALIZATION.std)
    assert layer.state_dict() == {}
    assert layer.double()(torch.rand(1, 3, 2, 2, dtype=torch.float64)).dtype == torch.float64
    assert "0.4914" in repr(layer)


def test_channels_do_not_broadcast() -> None:
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
def test_values_are_checked(mean: tuple[float, ...], std: tuple[float, ...], message: str) -> None:
    with pytest.raises(InputError, match=f"Normalization.{message}"):
        Normalization(mean=mean, std=std)
