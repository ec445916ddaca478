"""Tensors from a file somebody else wrote (``.pt``, ``.pth``, ``.ckpt``, ``.safetensors``): read, never run.

``torch.load`` with ``weights_only`` refuses every pickle that would call something. Before it sees the file, the sizes
in the zip directory are compared with the file's own: torch stores without compression, so they must fit.

Which architecture weights look like, from keys and shapes alone: a guess for error messages, or None.

Weights from elsewhere: the field's habits of wrapping and naming are undone, then loading is strict.

Public checkpoints nest the weights (``state_dict``, ``model_state_dict``, ``net``, ``model``) beside others, prefix
them (``module.`` from DataParallel, ``_orig_mod.`` from torch.compile, ``1.`` from ``nn.Sequential(normalize, net)``),
carry unused copies (``sub_block1``, ``attacker``), or keep the normalization (``mu`` and ``sigma``, ``0.mean`` and
``0.std``). All but the last are undone in silence. The last is compared with the model's own normalization, because
dropping it would give a network that runs and is wrong.

From weights of unknown origin to the model they belong to, by the names and shapes the field uses.

No network larger than the weights that are to fill it.

A file says how large its network is, and a small file may say that it is enormous. While such a network is built, every
new tensor is counted before it is allocated, and so is how many there are: one that the file's weights could never fill
ends in one line to the user.
"""

import math
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from widemargin.core.files import check_file
from widemargin.errors import InputError
from widemargin.heads.hypersphere import Hypersphere
from widemargin.heads.linear import Linear
from widemargin.models.catalog import (
    CNNConfig,
    MLPConfig,
    ModelFactory,
    PreActResNet18Config,
    ResNet18Config,
    WideResNetConfig,
)
from widemargin.models.classifier import Normalization, Normalize
from widemargin.types import MakeHead

_PUBLIC_FILE_SHOWN = 120  # characters of somebody else's error


def read_tensors(path: Path) -> Mapping[str, Any]:
    """The tensors of a public file; anything that would run code is refused."""
    check_file(path)
    try:
        content = load_file(path) if path.suffix == ".safetensors" else _unpickled(path)
    except Exception as error:  # whatever a broken or hostile file makes the readers raise
        raise InputError(
            f"{path} cannot be read as tensors alone, and nothing else is ever run: {_reason(error)}; "
            "save model.state_dict()"
        ) from None
    if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
        raise InputError(f"{path} holds a {type(content).__name__}, not a state dict; save model.state_dict()")
    return content


def _reason(error: Exception) -> str:
    """In a line; torch's own advice about pickles would run them, and its readers fail in words of their own."""
    if isinstance(error, OSError | ValueError | SafetensorError) and str(error):
        return str(error).splitlines()[0][:_PUBLIC_FILE_SHOWN]
    return "it holds other objects than tensors, or is no file that torch wrote"


def _unpickled(path: Path) -> object:
    if zipfile.is_zipfile(path):
        _check_directory(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pickle protocols; what matters is said by the caller
        return torch.load(path, map_location="cpu", weights_only=True)


def _check_directory(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("it is a compressed archive, which torch.save does not write")
    claimed, size = sum(member.file_size for member in members), path.stat().st_size
    if claimed > size:
        raise ValueError(f"its members claim {claimed} bytes, more than the {size} it has")


Shapes = Mapping[str, tuple[int, ...]]


def recognize(shapes: Shapes) -> str | None:
    """A short name such as "WideResNet(depth=34, widen=10, ...)", or None where nothing fits."""
    guesses: tuple[Callable[[Shapes], str | None], ...] = (_wide_resnet, _resnet, _cnn, _mlp)
    return next((name for name in (guess(shapes) for guess in guesses) if name is not None), None)


def _wide_resnet(shapes: Shapes) -> str | None:
    blocks = sum(key.startswith("block1.layer.") and key.endswith(".conv1.weight") for key in shapes)
    classes, features = _matrix(shapes, "fc.weight")
    if blocks == 0 or features == 0:
        return None
    variant = "madry" if any("poolpadShortcut" in key for key in shapes) else "trades"
    head = "" if "fc.bias" in shapes else " with a head without bias"
    size = f"depth={6 * blocks + 4}, widen={features // 64}"
    return f"WideResNet({size}, variant='{variant}', num_classes={classes}){head}"


def _resnet(shapes: Shapes) -> str | None:
    if "layer4.0.conv1.weight" not in shapes:
        return None
    if "layer1.0.conv3.weight" in shapes or "layer1.2.conv1.weight" in shapes:
        return "a deeper ResNet than 18"
    if "fc.weight" in shapes:
        return "torchvision's ResNet-18, which widemargin does not have"
    classes, features = _matrix(shapes, "linear.weight")
    name = "ResNet18" if "bn1.weight" in shapes else "PreActResNet18"
    return f"{name}(width={features // 8}, num_classes={classes})"


def _cnn(shapes: Shapes) -> str | None:
    convolutions = {f"conv{i}.{part}" for i in range(1, 5) for part in ("weight", "bias")}
    if not convolutions <= shapes.keys():
        return None
    return f"CNN(num_classes={_matrix(shapes, 'fc.weight')[0]})"


def _mlp(shapes: Shapes) -> str | None:
    count = sum(key.startswith("fcs.") and key.endswith(".weight") for key in shapes)
    if count == 0:
        return None
    layers = [_matrix(shapes, f"fcs.{i}.weight") for i in range(count)]  # (out, in) each
    hidden = tuple(out for out, _ in layers[:-1])
    return f"MLP(hidden={hidden}, num_classes={layers[-1][0]}) for images of {layers[0][1]} pixels"


def _matrix(shapes: Shapes, key: str) -> tuple[int, int]:
    """The two sides of a weight matrix, zeros where there is none."""
    shape = shapes.get(key, ())
    return (shape[0], shape[1]) if len(shape) == 2 else (0, 0)


_NESTS = ("state_dict", "model_state_dict", "net", "model", "model_state", "network", "weights", "params", "ema")
_PREFIXES = ("module.", "_orig_mod.")
_UNUSED = ("sub_block1.", "attacker.")
_NORMALIZATIONS = {"mu": "sigma", "mean": "std", "means": "sds", "new_mean": "new_std"}
"""Names that the field gives to what it subtracts, and to what it divides by."""
_DEEPEST = 10  # nests within nests, names within names
_SHOWN = 3  # keys named per kind of failure


def load_public_state_dict(model: nn.Module, state_dict: Mapping[str, object]) -> None:
    """Load weights under any of the field's conventions; where they do not fit, the model stays unchanged."""
    own = model.state_dict()
    weights, stored = unwrapped_weights(state_dict, lambda names: not own.keys().isdisjoint(names), kept=own)
    _check_normalization(model, stored)
    for key in own.keys() - weights.keys():
        if key.endswith(".num_batches_tracked"):  # checkpoints older than the counter; it does not change the output
            weights[key] = own[key]
    _require_same_keys(model, own, weights)
    require_values(weights)
    model.load_state_dict(weights, strict=True)


def unwrapped_weights(
    state_dict: Mapping[str, object],
    fits: Callable[[Mapping[str, object]], bool],
    *,
    kept: Mapping[str, object] | None = None,
) -> tuple[dict[str, object], tuple[Tensor, Tensor] | None]:
    """(weights under plain keys, the normalization beside them): unwrapped, without prefixes and unused copies.

    A prefix that all share goes until the names ``fits``. What is called as one of ``kept`` is no normalization.
    """
    weights = _without_habits(_unwrapped(state_dict))
    for key, value in weights.items():
        if isinstance(value, Tensor):
            _require_plain(key, value)
    weights, stored = _without_normalization(weights, kept or {})
    return _without_common_prefix(weights, fits), stored


def require_values(weights: Mapping[str, object]) -> None:
    """Refuse tensors of the device meta, which have a shape and no values."""
    empty = [key for key, value in weights.items() if isinstance(value, Tensor) and value.is_meta]
    if empty:
        raise InputError(f"the weights hold no values for {empty[0]} (device meta); save those of a real model")


def _unwrapped(state_dict: Mapping[str, object]) -> Mapping[str, object]:
    """The innermost dict of weights; a file may nest a dict in itself, so not for ever."""
    for _ in range(_DEEPEST):
        inner = next((state_dict[nest] for nest in _NESTS if isinstance(state_dict.get(nest), Mapping)), None)
        if inner is None and not any(isinstance(value, Tensor) for value in state_dict.values()):
            inner = _only_weights(state_dict)
        if not isinstance(inner, Mapping):
            return state_dict
        state_dict = inner
    raise InputError(f"the weights are nested more than {_DEEPEST} deep; save model.state_dict() itself")


def _only_weights(content: Mapping[str, object]) -> object:
    """What holds tensors under names, where that is one thing alone: not an optimizer, whose state has numbers."""
    found = {
        name: part
        for name, part in content.items()
        if isinstance(part, Mapping)
        and any(isinstance(key, str) and isinstance(value, Tensor) for key, value in part.items())
    }
    if len(found) > 1:
        raise InputError(
            f"the file holds several sets of weights ({', '.join(map(str, list(found)[:_SHOWN]))}); save the one to be "
            "used by itself"
        )
    return next(iter(found.values()), None)


def _require_plain(key: str, value: Tensor) -> None:
    """Refuse what is no array of real numbers, and a view that claims more values than are stored."""
    if value.layout != torch.strided or value.is_quantized or value.is_complex():
        raise InputError(f"the weights hold {key}, which is no dense tensor of real numbers; save model.state_dict()")
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise InputError(f"the weights claim {tuple(value.shape)} for {key} and store less; save model.state_dict()")


def _without_habits(state_dict: Mapping[str, object]) -> dict[str, object]:
    """The same weights under plain keys, without unused copies."""
    plain = {_plain_key(str(key)): value for key, value in state_dict.items()}
    return {key: value for key, value in plain.items() if not key.startswith(_UNUSED)}


def _plain_key(key: str) -> str:
    while key.startswith(_PREFIXES):
        key = key.split(".", 1)[1]
    return key


def _without_common_prefix(
    weights: dict[str, object], fits: Callable[[Mapping[str, object]], bool]
) -> dict[str, object]:
    """Without the first part of every name, again and again, while that is the same and the names fit nothing."""
    bare = weights
    for _ in range(_DEEPEST):
        if fits(bare):
            return bare
        firsts = {key.partition(".")[0] if "." in key else None for key in bare}
        if len(firsts) != 1 or None in firsts:
            break
        bare = _without_habits({key.partition(".")[2]: value for key, value in bare.items()})
    return bare if fits(bare) else weights


def _without_normalization(
    weights: dict[str, object], kept: Mapping[str, object]
) -> tuple[dict[str, object], tuple[Tensor, Tensor] | None]:
    """The weights without the mean and the standard deviation of the images, and these; what is in ``kept`` stays."""
    for key, mean in weights.items():
        place, dot, name = key.rpartition(".")
        other = f"{place}{dot}{_NORMALIZATIONS.get(name)}"
        std = weights.get(other)
        if key in kept or other in kept or not (isinstance(mean, Tensor) and isinstance(std, Tensor)):
            continue
        if mean.numel() == std.numel() == max((1, *mean.shape)):  # one number per channel, whatever ones are around
            rest = {name: value for name, value in weights.items() if name not in (key, other)}
            return rest, (mean.flatten().cpu().float(), std.flatten().cpu().float())
    return weights, None


def _check_normalization(model: nn.Module, stored: tuple[Tensor, Tensor] | None) -> None:
    """Refuse weights that were trained behind another normalization than the model's."""
    if stored is None or not hasattr(model, "normalize"):
        return
    layer = model.normalize
    mean, std = (layer.values.mean, layer.values.std) if isinstance(layer, Normalize) else ((0.0,), (1.0,))
    wanted = torch.tensor(mean), torch.tensor(std)
    if not all(_agree(kept, want) for kept, want in zip(stored, wanted, strict=True)):
        mu, sigma = (tuple(round(value, 6) for value in part.tolist()) for part in stored)
        raise InputError(
            f"{type(model).__name__}.normalize must be that of the weights, mean={mu} and std={sigma}, "
            f"got {layer}; build the model with normalize=Normalization(mean={mu}, std={sigma})"
        )


def _agree(kept: Tensor, want: Tensor) -> bool:
    fits = len(want) in (1, len(kept))
    return fits and torch.allclose(kept, want.expand_as(kept), rtol=0.0, atol=1e-4)


def _require_same_keys(model: nn.Module, own: Mapping[str, Tensor], weights: Mapping[str, object]) -> None:
    """Refuse anything but exactly the model's keys and shapes, with one message that says all of it."""
    shapes = {key: tuple(value.shape) for key, value in weights.items() if isinstance(value, Tensor)}
    missing = [key for key in own if key not in shapes]
    unexpected = [key for key in weights if key not in own]
    reshaped = [
        f"{key} (expected {tuple(own[key].shape)}, got {shapes[key]})"
        for key in own
        if key in shapes and shapes[key] != tuple(own[key].shape)
    ]
    failures = {"missing": missing, "unexpected": unexpected, "wrong shape": reshaped}
    told = [f"{kind}: {_first_few(keys)}" for kind, keys in failures.items() if keys]
    if told:
        looks = recognize(shapes)
        remedy = f"the weights look like {looks}" if looks else "check which model the weights are for"
        raise InputError(f"the weights do not fit this {type(model).__name__}; {'; '.join(told)}; {remedy}")


def _first_few(keys: list[str]) -> str:
    rest = len(keys) - _SHOWN
    return ", ".join(keys[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


@dataclass(frozen=True)
class Guess:
    """What weights say of their network."""

    config: ModelFactory
    head: MakeHead
    num_classes: int
    normalize: Normalization | None
    """What the file holds beside the weights."""


def infer_architecture(
    state_dict: Mapping[str, object], *, head_scale: float | None = None, normalize: Normalization | None = None
) -> Guess:
    """The network of these weights; ``normalize`` is given where they do not carry their own."""
    weights, stored = unwrapped_weights(state_dict, lambda names: any(fits(names) for fits, _ in _ARCHITECTURES))
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


_ROOM = 2**20  # values beyond the weights themselves: buffers that are not stored, scratch space of initializations
_FEW, _MANY = 1000, 20_000  # tensors beyond those of the file, and in all: a thousand layers have fewer than 10,000
_FACTORIES = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye})


@contextmanager
def no_larger_than(weights: Mapping[str, object], *, source: str) -> Iterator[None]:
    """Modules made inside may hold about as many values as ``weights``, and not many times more."""
    sizes = [value.numel() for value in weights.values() if isinstance(value, Tensor) and not value.is_meta]
    with _Budget(4 * sum(sizes) + _ROOM, 4 * len(sizes) + _FEW, source):
        yield


class _Budget(TorchFunctionMode):
    """Counts what the factories of torch are asked for."""

    def __init__(self, values: int, tensors: int, source: str) -> None:
        super().__init__()
        self._values, self._tensors, self._source = values, min(tensors, _MANY), source
        self._too_many = tensors > _MANY

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run it, if it does not ask for too much."""
        del types
        if func in _FACTORIES:
            self._spend(args)
        return func(*args, **(kwargs or {}))

    def _spend(self, args: tuple[Any, ...]) -> None:
        sizes = args[0] if args and isinstance(args[0], tuple | list) else args
        self._values -= math.prod(size for size in sizes if isinstance(size, int))
        self._tensors -= 1
        if self._values < 0 or self._tensors < 0:
            found = f"has more than {_MANY} tensors" if self._too_many else "is far larger than the weights it holds"
            raise InputError(
                f"{self._source}: the network it describes {found}; the description is damaged or of another file"
            )
