from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from widemargin.errors import InputError
from widemargin.heads import LinearHead
from widemargin.models import (
    CIFAR10_NORMALIZATION,
    CNN,
    MLP,
    Normalization,
    PreActResNet18,
    ResNet18,
    WideResNet,
    load_public_state_dict,
)
from widemargin.models.public_weights import describe

Weights = dict[str, Tensor]
SHAPE = (3, 8, 8)


def small(seed: int, **options: object) -> WideResNet:
    torch.manual_seed(seed)
    return WideResNet(image_shape=SHAPE, depth=10, widen=1, variant="trades", **options)  # type: ignore[arg-type]


def prefixed(weights: Weights, prefix: str) -> Weights:
    return {prefix + key: value for key, value in weights.items()}


def with_copy_of_block1(weights: Weights) -> Weights:
    return weights | {f"sub_{key}": value for key, value in weights.items() if key.startswith("block1.")}


HABITS: dict[str, Callable[[Weights], dict[str, object]]] = {
    "plain": lambda w: w,
    "module": lambda w: prefixed(w, "module."),
    "compiled": lambda w: prefixed(w, "module._orig_mod."),
    "state_dict": lambda w: {"epoch": 3, "state_dict": w},
    "model_state_dict": lambda w: {"model_state_dict": w, "optimizer": {}},
    "net": lambda w: {"net": prefixed(w, "module."), "acc": 91.2},
    "nested twice": lambda w: {"state_dict": {"net": w}},
    "sub_block1": with_copy_of_block1,
    "module and sub_block1": lambda w: prefixed(with_copy_of_block1(w), "module."),
    "neutral mu": lambda w: w | {"mu": torch.zeros(1, 3, 1, 1), "sigma": torch.ones(1, 3, 1, 1)},
    "old batch norm": lambda w: {key: value for key, value in w.items() if "num_batches" not in key},
}


@pytest.mark.parametrize("habit", HABITS)
def test_every_convention_loads(habit: str) -> None:
    source, target = small(0), small(1)
    given = HABITS[habit]({key: value.clone() for key, value in source.state_dict().items()})
    names = list(given)
    load_public_state_dict(target, given)
    for key, value in target.state_dict().items():
        assert torch.equal(value, source.state_dict()[key]), key
    assert list(given) == names  # the caller's dict is not touched


def test_the_madry_padding_loads() -> None:
    options = {"image_shape": SHAPE, "depth": 10, "widen": 2, "variant": "madry"}
    load_public_state_dict(WideResNet(**options), prefixed(WideResNet(**options).state_dict(), "module."))


def robustbench(weights: Weights) -> Weights:
    mu, sigma = (torch.tensor(v).view(1, 3, 1, 1) for v in (CIFAR10_NORMALIZATION.mean, CIFAR10_NORMALIZATION.std))
    return weights | {"mu": mu, "sigma": sigma}


def test_stored_normalization_must_be_the_models() -> None:
    weights = robustbench(small(0).state_dict())
    load_public_state_dict(small(1, normalize=CIFAR10_NORMALIZATION), weights)
    for other in (None, Normalization(mean=(0.5,) * 3, std=(0.25,) * 3)):
        with pytest.raises(InputError, match=r"normalize must be that of the weights, mean=\(0.4914, 0.4822, 0.4465\)"):
            load_public_state_dict(small(1, normalize=other), weights)


def test_any_module_may_be_loaded() -> None:
    target = nn.Linear(2, 3)
    load_public_state_dict(target, robustbench({"weight": torch.ones(3, 2), "bias": torch.zeros(3)}))
    assert (target.weight == 1).all()


def failure(model: nn.Module, weights: dict[str, object]) -> str:
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(InputError) as caught:
        load_public_state_dict(model, weights)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    return str(caught.value)


def test_missing_unexpected_and_reshaped_keys_are_told_at_once() -> None:
    weights: dict[str, object] = dict(small(0).state_dict())
    del weights["bn1.weight"], weights["fc.bias"]
    weights |= {"extra": torch.zeros(1), "conv1.weight": torch.zeros(16, 1, 3, 3)}
    told = failure(small(1), weights)
    assert "do not fit this WideResNet" in told
    assert "missing: bn1.weight, fc.bias;" in told
    assert "unexpected: extra;" in told
    assert "wrong shape: conv1.weight (expected (16, 3, 3, 3), got (16, 1, 3, 3))" in told
    assert "with a head without bias" in told


def test_three_keys_are_named_and_the_rest_counted() -> None:
    told = failure(MLP(image_shape=(1, 2, 2), hidden=(3, 3)), {})
    assert "missing: fcs.0.weight, fcs.0.bias, fcs.1.weight and 3 more" in told
    assert "check which model the weights are for" in told


def test_what_is_not_a_tensor_is_missing() -> None:
    told = failure(nn.Linear(2, 3), {"weight": [[1.0]], "bias": torch.zeros(3), "epoch": 4})
    assert "missing: weight; unexpected: epoch" in told


def test_the_other_variant_is_recognized() -> None:
    with torch.device("meta"):
        weights = WideResNet(variant="madry", num_classes=100).state_dict()
    told = failure(small(1), weights)
    assert "the weights look like WideResNet(depth=34, widen=10, variant='madry', num_classes=100)" in told


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in model.state_dict().items()}


def test_recognizes_the_own_models() -> None:
    with torch.device("meta"):
        assert describe(shapes(ResNet18())) == "ResNet18(width=64, num_classes=10)"
        assert describe(shapes(CNN(num_classes=5))) == "CNN(num_classes=5)"
        assert describe(shapes(MLP(hidden=(8, 4)))) == "MLP(hidden=(8, 4), num_classes=10)"
        wide = WideResNet(variant="trades", make_head=lambda d, k: LinearHead(d, k, bias=False))
    expected = "WideResNet(depth=34, widen=10, variant='trades', num_classes=10) with a head without bias"
    assert describe(shapes(wide)) == expected


def test_recognizes_common_strangers_and_nothing_else() -> None:
    with torch.device("meta"):
        resnet = shapes(ResNet18())
        preact, bare = (shapes(PreActResNet18(width=w, last_norm=last)) for w, last in ((64, True), (8, False)))
    vision = {key.replace("linear.", "fc."): shape for key, shape in resnet.items()}
    assert describe(preact) == "PreActResNet18(width=64, last_norm=True, num_classes=10)"
    assert describe(bare) == "PreActResNet18(width=8, last_norm=False, num_classes=10)"
    assert "torchvision" in str(describe(vision))
    assert "deeper" in str(describe(resnet | {"layer1.0.conv3.weight": (256, 64, 1, 1)}))
    assert describe({"vit.weight": (3, 3)}) is None
    assert describe({}) is None


@pytest.mark.parametrize("part", ["weight", "bias", "running_mean", "running_var"])
def test_of_a_batch_norm_the_counter_alone_may_be_missing(part: str) -> None:
    weights: dict[str, object] = dict(small(0).state_dict())
    del weights[f"bn1.{part}"]
    assert f"missing: bn1.{part};" in failure(small(1), weights)


@pytest.mark.parametrize("names", [("mu",), ("sigma",), ("mu", "sigma")])
def test_a_model_with_such_parameters_of_its_own_gets_them(names: tuple[str, ...]) -> None:
    target = nn.Linear(2, 3)
    for name in names:
        target.register_parameter(name, nn.Parameter(torch.zeros(2)))
    weights = {key: torch.full_like(value, 3.0) for key, value in target.state_dict().items()}
    load_public_state_dict(target, weights)
    assert all((value == 3.0).all() for value in target.state_dict().values())
