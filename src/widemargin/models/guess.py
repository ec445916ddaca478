"""From weights of unknown origin to the model they belong to, by the names and shapes the field uses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from widemargin.errors import InputError
from widemargin.heads import Hypersphere, Linear, MakeHead
from widemargin.models.catalog import (
    CNNConfig,
    MLPConfig,
    ModelFactory,
    PreActResNet18Config,
    ResNet18Config,
    WideResNetConfig,
)
from widemargin.models.normalize import Normalization
from widemargin.models.public_weights import plain_weights, require_values
from widemargin.models.recognize import recognize


@dataclass(frozen=True)
class Guess:
    """What weights say of their network."""

    config: ModelFactory
    head: MakeHead
    num_classes: int
    normalize: Normalization | None
    """What the file holds beside the weights."""


def guess_model(
    state_dict: Mapping[str, object], *, head_scale: float | None = None, normalize: Normalization | None = None
) -> Guess:
    """The network of these weights; ``normalize`` is given where they do not carry their own."""
    weights, stored = plain_weights(state_dict, lambda names: any(fits(names) for fits, _ in _ARCHITECTURES))
    require_values(weights)
    shapes = {key: tuple(value.shape) for key, value in weights.items() if isinstance(value, Tensor)}
    own = None if stored is None else Normalization(mean=_numbers(stored[0]), std=_numbers(stored[1]))
    for fits, make in _ARCHITECTURES:
        if fits(shapes):
            try:
                config, last = make(shapes, own or normalize)
                return Guess(config, _head(shapes, last, head_scale), shapes[f"{last}.weight"][0], own)
            except (KeyError, IndexError):  # the names of an architecture without its layers or dimensions
                break
    name = recognize(shapes)
    raise InputError(
        f"these weights are {'of ' + name if name else 'of no architecture known here'}; give your own model as "
        "package.module:factory"
    )


def _numbers(values: Tensor) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _head(shapes: Mapping[str, tuple[int, ...]], last: str, scale: float | None) -> MakeHead:
    if f"{last}.bias" in shapes:
        if scale is not None:
            raise InputError(
                "--head-scale has no effect: these weights have a last layer with a bias, so their head is linear; "
                "leave it out"
            )
        return Linear()
    if scale is None:
        raise InputError(
            "these weights have a last layer without a bias, as hypersphere embedding (HE) has; give its scale with "
            "--head-scale (HE's own: 10 with AT, 15 with TRADES)"
        )
    return Hypersphere(scale=scale, margin=0.0)


_Shapes = Mapping[str, tuple[int, ...]]
_Make = Callable[[_Shapes, Normalization | None], tuple[ModelFactory, str]]


def _make_wide_resnet(shapes: _Shapes, normalize: Normalization | None) -> tuple[ModelFactory, str]:
    blocks = sum(key.startswith("block1.layer.") and key.endswith(".conv1.weight") for key in shapes)
    pooled = any("poolpadShortcut" in key for key in shapes)
    config = WideResNetConfig(
        depth=6 * blocks + 4,
        widen=shapes["fc.weight"][1] // 64,
        variant="madry" if pooled else "trades",
        normalize=normalize,
    )
    return config, "fc"


def _make_resnet(shapes: _Shapes, normalize: Normalization | None) -> tuple[ModelFactory, str]:
    return ResNet18Config(width=shapes["linear.weight"][1] // 8, normalize=normalize), "linear"


def _make_preact(shapes: _Shapes, normalize: Normalization | None) -> tuple[ModelFactory, str]:
    width, last_norm = shapes["linear.weight"][1] // 8, "bn.weight" in shapes
    return PreActResNet18Config(width=width, last_norm=last_norm, normalize=normalize), "linear"


def _make_cnn(shapes: _Shapes, normalize: Normalization | None) -> tuple[ModelFactory, str]:
    del shapes
    return CNNConfig(normalize=normalize), "fc"


def _make_mlp(shapes: _Shapes, normalize: Normalization | None) -> tuple[ModelFactory, str]:
    count = sum(key.startswith("fcs.") and key.endswith(".weight") for key in shapes)
    hidden = tuple(shapes[f"fcs.{number}.weight"][0] for number in range(count - 1))
    return MLPConfig(hidden=hidden, normalize=normalize), f"fcs.{count - 1}"


_ARCHITECTURES: tuple[tuple[Callable[[Mapping[str, Any]], bool], _Make], ...] = (
    (lambda shapes: "block1.layer.0.conv1.weight" in shapes and "fc.weight" in shapes, _make_wide_resnet),
    (lambda shapes: {"layer4.0.conv1.weight", "bn1.weight", "linear.weight"} <= shapes.keys(), _make_resnet),
    (lambda shapes: {"layer4.0.conv1.weight", "layer1.0.bn1.weight", "linear.weight"} <= shapes.keys(), _make_preact),
    (lambda shapes: {"conv4.weight", "conv4.bias", "fc.weight"} <= shapes.keys(), _make_cnn),
    (lambda shapes: "fcs.0.weight" in shapes, _make_mlp),
)
"""Which names belong to which."""
