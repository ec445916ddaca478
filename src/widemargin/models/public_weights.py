"""Weights from elsewhere: read without running anything, stripped of the field's habits, recognized, loaded strictly.

*Reading.* ``torch.load`` with ``weights_only`` refuses every pickle that would call something. Before it sees the file,
the sizes in the zip directory are compared with the file's own: torch stores without compression, so they must fit.

*Names.* Public checkpoints nest the weights (``state_dict``, ``model_state_dict``, ``net``, ``model``) beside others,
prefix them (``module.`` from DataParallel, ``_orig_mod.`` from torch.compile, ``1.`` from ``nn.Sequential(normalize,
net)``), carry unused copies (``sub_block1``, ``attacker``), or keep the normalization (``mu`` and ``sigma``, ``0.mean``
and ``0.std``). All but the last are undone in silence. The last is compared with the model's own normalization, because
dropping it would give a network that runs and is wrong.

*Architecture.* Each ``ModelConfig`` knows the names and shapes of its own weights (``from_shapes``).

*Size.* A file says how large its network is, and a small file may say that it is enormous. While such a network is
built, every new tensor is counted before it is allocated, and so is how many there are: one that the file's weights
could never fill ends in one line to the user.
"""

import math
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
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
from widemargin.models.classifier import ModelConfig, Normalization, Normalize, Shapes
from widemargin.models.cnn import CNNConfig
from widemargin.models.mlp import MLPConfig
from widemargin.models.resnet import PreActResNet18Config, ResNet18Config
from widemargin.models.swish_wide_resnet import SwishWideResNetConfig
from widemargin.models.wide_resnet import WideResNetConfig
from widemargin.types import MakeHead

Weights = dict[str, object]
"""Tensors by their keys, and what else a file has there."""
MeanAndStd = tuple[Tensor, Tensor]

ARCHITECTURES: tuple[type[ModelConfig], ...] = (
    WideResNetConfig,
    SwishWideResNetConfig,
    ResNet18Config,
    PreActResNet18Config,
    CNNConfig,
    MLPConfig,
)
"""Those whose weights are recognized, in the order in which they are asked."""
WRAPPERS = ("state_dict", "model_state_dict", "net", "model", "model_state", "network", "weights", "params", "ema")
PREFIXES = ("module.", "_orig_mod.")
UNUSED = ("sub_block1.", "attacker.")
NORMALIZATIONS = {"mu": "sigma", "mean": "std", "means": "sds", "new_mean": "new_std"}
"""Names that the field gives to what it subtracts, and to what it divides by."""
MAX_DEPTH = 10  # dicts within dicts, names within names
SHOWN_KEYS, SHOWN_CHARACTERS = 3, 120  # of each kind of failure; of somebody else's error


def read_tensors(path: Path) -> Mapping[str, Any]:
    """The tensors of a public file; anything that would run code is refused."""
    check_file(path)
    try:
        content = load_file(path) if path.suffix == ".safetensors" else _unpickled(path)
    except Exception as error:  # whatever a broken or hostile file makes the readers raise
        reason = "it holds other objects than tensors, or is no file that torch wrote"
        if isinstance(error, OSError | ValueError | SafetensorError) and str(error):  # torch's advice is to run them
            reason = str(error).splitlines()[0][:SHOWN_CHARACTERS]
        raise InputError(
            f"{path} cannot be read as tensors alone, and nothing else is ever run: {reason}; save model.state_dict()"
        ) from None
    if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
        raise InputError(f"{path} holds a {type(content).__name__}, not a state dict; save model.state_dict()")
    return content


def _unpickled(path: Path) -> object:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("it is a compressed archive, which torch.save does not write")
        claimed, size = sum(member.file_size for member in members), path.stat().st_size
        if claimed > size:
            raise ValueError(f"its members claim {claimed} bytes, more than the {size} it has")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about pickle protocols; what matters is said by the caller
        return torch.load(path, map_location="cpu", weights_only=True)


def load_public_state_dict(model: nn.Module, state_dict: Mapping[str, object], *, new_head: bool = False) -> str | None:
    """Load weights under any of the field's conventions; where they do not fit, the model stays unchanged.

    With ``new_head`` a last layer that does not fit stays the model's own, and how it differs is returned.
    """
    own = model.state_dict()
    weights, stored = _normal_weights(state_dict, lambda names: not own.keys().isdisjoint(names), own=own)
    _check_normalization(model, stored)
    given = _shapes(weights)
    replaced = _with_own_head(model, own, weights) if new_head else None
    for key in own.keys() - weights.keys():
        if key.endswith(".num_batches_tracked"):  # checkpoints older than the counter; it does not change the output
            weights[key] = own[key]
    _check_keys(model, own, weights, given)
    _check_values(weights)
    model.load_state_dict(weights, strict=True)
    return replaced


def _with_own_head(model: nn.Module, own: Mapping[str, Tensor], weights: Weights) -> str | None:
    """Put the model's own head into the weights: all of it where theirs is another, and how; else what it counts."""
    head = getattr(model, "head", None)
    name = next((name for name, module in model.named_modules() if module is head and name), None)
    if name is None or not isinstance(head, nn.Module):
        return None
    trained = {f"{name}.{key}": tuple(value.shape) for key, value in head.named_parameters()}
    shapes = _shapes({key: value for key, value in weights.items() if key.startswith(f"{name}.")})
    theirs = {key: shape for key, shape in shapes.items() if key in trained or (key not in own and shape)}
    for key in shapes:
        if theirs != trained or key not in trained:
            del weights[key]
    weights |= {key: value for key, value in own.items() if key.startswith(f"{name}.") and key not in weights}
    if theirs == trained:
        return None
    there, here = (", ".join(f"{key} {shape}" for key, shape in sorted(found.items())) for found in (theirs, trained))
    return f"{there or 'none'} there, {here} here"


@dataclass(frozen=True)
class InferredModel:
    """What weights say of their network."""

    config: ModelConfig
    head: MakeHead
    num_classes: int
    normalize: Normalization | None
    """What the file holds beside the weights."""


def infer_architecture(
    state_dict: Mapping[str, object], *, head_scale: float | None = None, normalize: Normalization | None = None
) -> InferredModel:
    """The network of these weights; ``normalize`` is given where they do not carry their own."""
    weights, stored = _normal_weights(state_dict, lambda names: recognize(_shapes(names)) is not None)
    _check_values(weights)
    shapes = _shapes(weights)
    config = recognize(shapes)
    if config is None:
        stranger = _name_of_stranger(shapes)
        raise InputError(
            f"these weights are {'of ' + stranger if stranger else 'of no architecture known here'}; give your own "
            "model as package.module:factory"
        )
    own = None
    if stored is not None:
        mean, std = (tuple(float(value) for value in part) for part in stored)
        own = Normalization(mean=mean, std=std)
    config = replace(config, normalize=own or normalize)
    head = _make_head(has_bias=f"{config.head_key}.bias" in shapes, scale=head_scale)
    return InferredModel(config, head, shapes[f"{config.head_key}.weight"][0], own)


def recognize(shapes: Shapes) -> ModelConfig | None:
    """The configuration of the network that has weights of these names and shapes, or None."""
    if _name_of_stranger(shapes):
        return None
    for kind in ARCHITECTURES:
        try:
            config = kind.from_shapes(shapes)
            if config is not None and len(shapes[f"{config.head_key}.weight"]) == 2:
                return config
        except (KeyError, IndexError, InputError):  # the names of an architecture without its layers or dimensions
            continue
    return None


def _name_of_stranger(shapes: Shapes) -> str | None:
    """Of common networks that are easily taken for one of those here."""
    if "layer4.0.conv1.weight" not in shapes:
        return None
    if "layer1.0.conv3.weight" in shapes or "layer1.2.conv1.weight" in shapes:
        return "a deeper ResNet than 18"
    return "torchvision's ResNet-18, which widemargin does not have" if "fc.weight" in shapes else None


def describe(shapes: Shapes) -> str | None:
    """In words, such as "WideResNet(depth=34, widen=10, variant='trades', num_classes=10)"; None where nothing fits."""
    config = recognize(shapes)
    if config is None:
        return _name_of_stranger(shapes)
    names = [field.name for field in fields(config) if field.name not in ("normalize", "init", "activation")]
    settings = [f"{name}={getattr(config, name)!r}" for name in names]
    settings.append(f"num_classes={shapes[f'{config.head_key}.weight'][0]}")
    without = "" if f"{config.head_key}.bias" in shapes else " with a head without bias"
    return f"{type(config).__name__.removesuffix('Config')}({', '.join(settings)}){without}"


def _make_head(*, has_bias: bool, scale: float | None) -> MakeHead:
    if has_bias:
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


def _shapes(weights: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in weights.items() if isinstance(value, Tensor)}


def _normal_weights(
    state_dict: Mapping[str, object],
    is_known: Callable[[Mapping[str, object]], bool],
    *,
    own: Mapping[str, object] | None = None,
) -> tuple[Weights, MeanAndStd | None]:
    """The weights under the public names, and the normalization beside them, if any.

    A first part of the name that all share goes until the names are known. What has a name of the model's ``own`` is
    no normalization.
    """
    weights = _without_prefixes(_unwrapped(state_dict))
    for key, value in weights.items():
        if isinstance(value, Tensor):
            _check_dense(key, value)
    weights, stored = _without_normalization(weights, own or {})
    shorter = weights
    for _ in range(MAX_DEPTH):
        if is_known(shorter):
            break
        firsts = {key.partition(".")[0] if "." in key else None for key in shorter}
        if len(firsts) != 1 or None in firsts:
            break
        shorter = _without_prefixes({key.partition(".")[2]: value for key, value in shorter.items()})
    return (shorter if is_known(shorter) else weights), stored


def _unwrapped(state_dict: Mapping[str, object]) -> Mapping[str, object]:
    """The innermost dict of weights; a file may nest a dict in itself, so not for ever."""
    for _ in range(MAX_DEPTH):
        inner = next((state_dict[name] for name in WRAPPERS if isinstance(state_dict.get(name), Mapping)), None)
        if inner is None and not any(isinstance(value, Tensor) for value in state_dict.values()):
            inner = _only_weights(state_dict)
        if not isinstance(inner, Mapping):
            return state_dict
        state_dict = inner
    raise InputError(f"the weights are nested more than {MAX_DEPTH} deep; save model.state_dict() itself")


def _only_weights(content: Mapping[str, object]) -> object:
    """What holds tensors under names, where one thing does: not an optimizer, whose state has numbers."""
    found = {
        name: part
        for name, part in content.items()
        if isinstance(part, Mapping)
        and any(isinstance(key, str) and isinstance(value, Tensor) for key, value in part.items())
    }
    if len(found) > 1:
        raise InputError(
            f"the file holds several sets of weights ({', '.join(map(str, list(found)[:SHOWN_KEYS]))}); save the one "
            "to be used by itself"
        )
    return next(iter(found.values()), None)


def _without_prefixes(state_dict: Mapping[str, object]) -> Weights:
    """The same weights without what wrappers put before every name, and without unused copies."""
    weights: Weights = {}
    for key, value in state_dict.items():
        name = str(key)
        while name.startswith(PREFIXES):
            name = name.split(".", 1)[1]
        if not name.startswith(UNUSED):
            weights[name] = value
    return weights


def _without_normalization(weights: Weights, own: Mapping[str, object]) -> tuple[Weights, MeanAndStd | None]:
    """The weights without the mean and the standard deviation of the images, and these; the model's own stay."""
    for key, mean in weights.items():
        place, dot, name = key.rpartition(".")
        other = f"{place}{dot}{NORMALIZATIONS.get(name)}"
        std = weights.get(other)
        if key in own or other in own or not (isinstance(mean, Tensor) and isinstance(std, Tensor)):
            continue
        if mean.numel() == std.numel() == max((1, *mean.shape)):  # one number per channel, whatever ones are around
            rest = {name: value for name, value in weights.items() if name not in (key, other)}
            return rest, (mean.flatten().cpu().float(), std.flatten().cpu().float())
    return weights, None


def _check_dense(key: str, value: Tensor) -> None:
    """Refuse what is no array of real numbers, and a view that claims more values than are stored."""
    if value.layout != torch.strided or value.is_quantized or value.is_complex():
        raise InputError(f"the weights hold {key}, which is no dense tensor of real numbers; save model.state_dict()")
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise InputError(f"the weights claim {tuple(value.shape)} for {key} and store less; save model.state_dict()")


def _check_values(weights: Mapping[str, object]) -> None:
    """Refuse tensors of the device meta, which have a shape and no values."""
    empty = [key for key, value in weights.items() if isinstance(value, Tensor) and value.is_meta]
    if empty:
        raise InputError(f"the weights hold no values for {empty[0]} (device meta); save those of a real model")


def _check_normalization(model: nn.Module, stored: MeanAndStd | None) -> None:
    """Refuse weights that were trained behind another normalization than the model's."""
    if stored is None or not hasattr(model, "normalize"):
        return
    layer = model.normalize
    mean, std = (layer.values.mean, layer.values.std) if isinstance(layer, Normalize) else ((0.0,), (1.0,))
    if not (_close(stored[0], torch.tensor(mean)) and _close(stored[1], torch.tensor(std))):
        mu, sigma = (tuple(round(value, 6) for value in part.tolist()) for part in stored)
        raise InputError(
            f"{type(model).__name__}.normalize must be that of the weights, mean={mu} and std={sigma}, "
            f"got {layer}; build the model with normalize=Normalization(mean={mu}, std={sigma})"
        )


def _close(stored: Tensor, wanted: Tensor) -> bool:
    same_size = len(wanted) in (1, len(stored))
    return same_size and torch.allclose(stored, wanted.expand_as(stored), rtol=0.0, atol=1e-4)


def _check_keys(model: nn.Module, own: Mapping[str, Tensor], weights: Mapping[str, object], given: Shapes) -> None:
    """Refuse anything but exactly the model's keys and shapes, with one message that says all of it.

    ``given`` are the shapes as the file has them.
    """
    shapes = _shapes(weights)
    failures = {
        "missing": [key for key in own if key not in shapes],
        "unexpected": [key for key in weights if key not in own],
        "wrong shape": [
            f"{key} (expected {tuple(own[key].shape)}, got {shapes[key]})"
            for key in own
            if key in shapes and shapes[key] != tuple(own[key].shape)
        ],
    }
    told = []
    for kind, keys in failures.items():
        rest = len(keys) - SHOWN_KEYS
        if keys:
            told.append(f"{kind}: {', '.join(keys[:SHOWN_KEYS])}" + (f" and {rest} more" if rest > 0 else ""))
    if told:
        name = describe(given)
        remedy = f"the weights look like {name}" if name else "check which model the weights are for"
        raise InputError(f"the weights do not fit this {type(model).__name__}; {'; '.join(told)}; {remedy}")


_FACTORIES = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye})
_EXTRA_VALUES = 2**20  # beyond the weights themselves: buffers that are not stored, scratch space of initializations
_EXTRA_TENSORS = 1000
MAX_TENSORS = 20_000  # a thousand layers have fewer than 10,000


def no_larger_than(weights: Mapping[str, object], *, source: str) -> "_TensorBudget":
    """Modules made inside may hold about as many values as ``weights``, and not many times more."""
    sizes = [value.numel() for value in weights.values() if isinstance(value, Tensor) and not value.is_meta]
    return _TensorBudget(4 * sum(sizes) + _EXTRA_VALUES, 4 * len(sizes) + _EXTRA_TENSORS, source)


class _TensorBudget(TorchFunctionMode):
    """Counts what the factories of torch are asked for."""

    def __init__(self, values: int, tensors: int, source: str) -> None:
        super().__init__()
        self._values, self._tensors, self._source = values, min(tensors, MAX_TENSORS), source
        self._too_many = tensors > MAX_TENSORS

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run it, if it does not ask for too much."""
        del types
        if func in _FACTORIES:
            sizes = args[0] if args and isinstance(args[0], tuple | list) else args
            self._values -= math.prod(size for size in sizes if isinstance(size, int))
            self._tensors -= 1
        if self._values < 0 or self._tensors < 0:
            too = (
                f"has more than {MAX_TENSORS} tensors" if self._too_many else "is far larger than the weights it holds"
            )
            raise InputError(
                f"{self._source}: the network it describes {too}; the description is damaged or of another file"
            )
        return func(*args, **(kwargs or {}))
