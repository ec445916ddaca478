"""Weights from elsewhere: the field's habits of wrapping and naming are undone, then loading is strict.

Public checkpoints nest the weights (``state_dict``, ``model_state_dict``, ``net``, ``model``) beside others, prefix
them (``module.`` from DataParallel, ``_orig_mod.`` from torch.compile, ``1.`` from ``nn.Sequential(normalize, net)``),
carry unused copies (``sub_block1``, ``attacker``), or keep the normalization (``mu`` and ``sigma``, ``0.mean`` and
``0.std``). All but the last are undone in silence. The last is compared with the model's own normalization, because
dropping it would give a network that runs and is wrong.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from widemargin.errors import InputError
from widemargin.models.normalize import Normalize
from widemargin.models.recognize import recognize

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
    weights, stored = plain_weights(state_dict, lambda names: not own.keys().isdisjoint(names), kept=own)
    _check_normalization(model, stored)
    for key in own.keys() - weights.keys():
        if key.endswith(".num_batches_tracked"):  # checkpoints older than the counter; it does not change the output
            weights[key] = own[key]
    _require_same_keys(model, own, weights)
    require_values(weights)
    model.load_state_dict(weights, strict=True)


def plain_weights(
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
