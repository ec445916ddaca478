"""What every model promises, run over each of them at a small size; and its first layer, the normalization."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from widemargin.errors import InputError
from widemargin.heads import LinearHead
from widemargin.models import (
    CIFAR10_NORMALIZATION,
    CNN,
    MLP,
    MNIST_NORMALIZATION,
    TEACHER_STRIDES,
    Classifier,
    Normalization,
    Normalize,
    ResNet18,
    WideResNet,
)

SHAPE = (2, 20, 20)
TINY: dict[str, Callable[..., Classifier]] = {
    "mlp": lambda **options: MLP(image_shape=SHAPE, num_classes=3, hidden=(8, 6), **options),
    "cnn": lambda **options: CNN(image_shape=SHAPE, num_classes=3, **options),
    "resnet18": lambda **options: ResNet18(image_shape=SHAPE, num_classes=3, width=2, **options),
    "lbgat-teacher": lambda **options: ResNet18(
        image_shape=SHAPE, num_classes=3, width=2, strides=TEACHER_STRIDES, **options
    ),
    "wrn-trades": lambda **options: WideResNet(
        image_shape=SHAPE, num_classes=3, depth=10, widen=2, variant="trades", **options
    ),
    "wrn-madry": lambda **options: WideResNet(
        image_shape=SHAPE, num_classes=3, depth=10, widen=2, variant="madry", **options
    ),
}


@pytest.fixture(params=TINY)
def make(request: pytest.FixtureRequest) -> Callable[..., Classifier]:
    torch.manual_seed(0)
    return TINY[request.param]


def images(count: int = 3) -> torch.Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(1))


def test_logits_are_the_head_of_the_features(make: Callable[..., Classifier]) -> None:
    model, x = make().eval(), images()
    features = model.features(x)
    assert features.shape == (3, model.feature_size)
    assert model(x).shape == (3, model.num_classes)
    assert torch.equal(model(x), model.head(features))
    assert isinstance(model.head, LinearHead)
    assert any(module is model.head for module in model.modules())


def test_one_sample_alone_gives_what_it_gives_in_a_batch(make: Callable[..., Classifier]) -> None:
    model, x = make().eval().double(), images().double()
    torch.testing.assert_close(model(x[1:2]), model(x)[1:2])


def test_one_sample_trains(make: Callable[..., Classifier]) -> None:
    model = make().train()
    logits = model(images(1))
    logits.sum().backward()
    assert torch.isfinite(logits).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert all(p.grad is not None for p in model.parameters())


def test_evaluation_leaves_the_state_alone_and_training_moves_batch_norm(
    make: Callable[..., Classifier],
) -> None:
    model = make()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.eval()(images())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    model.train()(images())
    moved = {key for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert moved == {key for key in before if "running_" in key or "num_batches" in key}


def test_double_backward_matches_a_finite_difference(make: Callable[..., Classifier]) -> None:
    model, x = make().eval().double(), images(2).double().requires_grad_()

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


def test_no_normalization_adds_no_keys_and_neither_does_one(make: Callable[..., Classifier]) -> None:
    values = Normalization(mean=(0.4, 0.5), std=(0.2, 0.3))
    plain, normalized = make().eval(), make(normalize=values).eval()
    assert isinstance(plain.normalize, nn.Identity)
    assert isinstance(normalized.normalize, Normalize)
    normalized.load_state_dict(plain.state_dict(), strict=True)
    x = images()
    by_hand = (x - torch.tensor([0.4, 0.5]).view(2, 1, 1)) / torch.tensor([0.2, 0.3]).view(2, 1, 1)
    torch.testing.assert_close(normalized(x), plain(by_hand))


def test_normalization_must_fit_the_channels(make: Callable[..., Classifier]) -> None:
    with pytest.raises(InputError, match=r"normalize must have 2 channel\(s\).*got 3"):
        make(normalize=Normalization(mean=(0.0,) * 3, std=(1.0,) * 3))


@pytest.mark.parametrize("shape", [(3, 1, 20, 20), (3, 2, 20, 24), (2, 20, 20), (3, 800)])
def test_wrong_images_are_refused_by_name(make: Callable[..., Classifier], shape: tuple[int, ...]) -> None:
    model = make()
    with pytest.raises(InputError) as caught:
        model(torch.rand(shape))
    assert f"{type(model).__name__} expects images of shape (B, 2, 20, 20), got {shape}" in str(caught.value)


def test_bytes_are_refused(make: Callable[..., Classifier]) -> None:
    with pytest.raises(InputError, match=r"got torch.uint8; divide by 255"):
        make()(torch.zeros(1, *SHAPE, dtype=torch.uint8))


def test_a_head_can_be_chosen_and_must_keep_the_contract(make: Callable[..., Classifier]) -> None:
    model = make(make_head=lambda features, classes: LinearHead(features, classes, bias=False))
    assert isinstance(model.head, LinearHead)
    assert model.head.bias is None
    assert model(images()).shape == (3, 3)
    with pytest.raises(InputError, match=r"make_head must make a module with training_logits.*got Linear;"):
        make(make_head=nn.Linear)


@pytest.mark.parametrize("classes", [1, 0, 2.0, True])
def test_the_number_of_classes_is_checked(classes: object) -> None:
    with pytest.raises(InputError, match=r"CNN.num_classes must be an integer of at least 2"):
        CNN(num_classes=classes)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(3, 32), (3, 32, 0), [3, 32, 32], 32])
def test_the_image_shape_is_checked(shape: object) -> None:
    for kind in (MLP, CNN, ResNet18, WideResNet):
        with pytest.raises(InputError, match=rf"{kind.__name__}.image_shape must"):
            kind(image_shape=shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["mlp", "wrn-madry"])
def test_compiles_in_one_graph(name: str) -> None:
    model, x = TINY[name](normalize=Normalization(mean=(0.4, 0.5), std=(0.2, 0.3))).eval(), images()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))


# Normalization


def test_normalization_is_the_formula_per_channel() -> None:
    layer = Normalize([0.5, 0.1], [0.5, 2.0])
    x = torch.rand(3, 2, 4, 4)
    torch.testing.assert_close(layer(x)[:, 0], (x[:, 0] - 0.5) / 0.5)
    torch.testing.assert_close(layer(x)[:, 1], (x[:, 1] - 0.1) / 2.0)


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
