"""From weights of unknown origin to the model they belong to, by the names and shapes the field uses."""

from collections.abc import Mapping

from torch import Tensor

from widemargin.errors import InputError
from widemargin.heads import Hypersphere, Linear, MakeHead
from widemargin.models.catalog import CNNConfig, MLPConfig, ModelFactory, ResNet18Config, WideResNetConfig
from widemargin.models.normalize import Normalization
from widemargin.models.public_weights import plain_weights, require_values
from widemargin.models.recognize import recognize


def guess_model(
    state_dict: Mapping[str, object], *, head_scale: float | None = None
) -> tuple[ModelFactory, MakeHead, int]:
    """(model, head, number of classes) for these weights, normalization included where they carry it."""
    weights = plain_weights(state_dict)
    require_values(weights)
    shapes = {key: tuple(value.shape) for key, value in weights.items() if isinstance(value, Tensor)}
    normalize = _normalization(weights)
    for fits, make in (_wide_resnet, _resnet, _cnn, _mlp):
        if fits(shapes):
            try:
                config, last = make(shapes, normalize)
                return config, _head(shapes, last, head_scale), shapes[f"{last}.weight"][0]
            except (KeyError, IndexError):  # the names of an architecture without its layers or dimensions
                break
    name = recognize(shapes)
    raise InputError(
        f"these weights are {'of ' + name if name else 'of no architecture known here'}; give your own model as "
        "package.module:factory"
    )


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


def _normalization(weights: Mapping[str, object]) -> Normalization | None:
    mean, std = weights.get("mu"), weights.get("sigma")
    if not (isinstance(mean, Tensor) and isinstance(std, Tensor)):
        return None
    return Normalization(mean=tuple(mean.flatten().tolist()), std=tuple(std.flatten().tolist()))


_Shapes = Mapping[str, tuple[int, ...]]


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


def _make_cnn(shapes: _Shapes, normalize: Normalization | None) -> tuple[ModelFactory, str]:
    del shapes
    return CNNConfig(normalize=normalize), "fc"


def _make_mlp(shapes: _Shapes, normalize: Normalization | None) -> tuple[ModelFactory, str]:
    count = sum(key.startswith("fcs.") and key.endswith(".weight") for key in shapes)
    hidden = tuple(shapes[f"fcs.{number}.weight"][0] for number in range(count - 1))
    return MLPConfig(hidden=hidden, normalize=normalize), f"fcs.{count - 1}"


_wide_resnet = (lambda shapes: "block1.layer.0.conv1.weight" in shapes and "fc.weight" in shapes, _make_wide_resnet)
_resnet = (lambda shapes: {"layer4.0.conv1.weight", "bn1.weight", "linear.weight"} <= shapes.keys(), _make_resnet)
_cnn = (lambda shapes: {"conv4.weight", "conv4.bias", "fc.weight"} <= shapes.keys(), _make_cnn)
_mlp = (lambda shapes: "fcs.0.weight" in shapes, _make_mlp)
