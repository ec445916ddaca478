"""Checks at the doors of the package, so that nothing inside has to check again.

Range checks read values, which on a GPU would wait for the device; in the calls of a training loop they run only where
they are free (on the CPU). Data sets and evaluations are always checked, once, where they enter.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from widemargin.errors import InputError, WidemarginWarning

T = TypeVar("T")


def check_images(owner: str, x: Tensor) -> None:
    """Images must be a floating-point batch; on the CPU their range is checked too."""
    check_batch(owner, x)
    if x.device.type == "cpu":
        check_range(owner, x)


def check_batch(owner: str, x: Tensor) -> None:
    """A batch of images is floating point, has a batch axis and at least one sample."""
    check_tensor(owner, "images", x)
    if not x.is_floating_point():
        raise InputError(f"{owner}: images must be floating point in [0, 1], got {x.dtype}; divide by 255 first")
    if x.itemsize < 2:
        raise InputError(f"{owner}: images must be float32 or of 16 or 64 bits, got {x.dtype}; use x.float()")
    if x.dim() < 2 or x.shape[0] == 0:
        raise InputError(f"{owner}: images must be a batch (B, ...) of at least one sample, got shape {tuple(x.shape)}")


def check_range(owner: str, x: Tensor) -> None:
    """Images must lie in [0, 1] (NaN does not)."""
    low, high = (float(v) for v in x.detach().aminmax())
    if not (low >= 0.0 and high <= 1.0):
        raise InputError(
            f"{owner}: images must be in [0, 1], got values from {low:.4g} to {high:.4g}; "
            "keep pixels in [0, 1] and normalize inside the model, with widemargin.pixels(model, mean=..., std=...)"
        )


_SEEN_ON_GPU: set[str] = set()


def warn_of_range(owner: str, x: Tensor) -> None:
    """Say, with a text that warnings show once, that images are no pixels, for margins and penalties are per pixel.

    On a GPU only the first images of an owner are looked at, and none inside a CUDA graph.
    """
    if x.device.type != "cpu":
        if owner in _SEEN_ON_GPU or torch.cuda.is_current_stream_capturing():
            return
        _SEEN_ON_GPU.add(owner)
    low, high = (float(v) for v in x.detach().aminmax())
    if low < 0.0 or high > 1.0:
        warnings.warn(
            f"{owner}: images are outside [0, 1], so what is measured is not in pixels; give images in [0, 1] to "
            "widemargin.pixels(model, mean=..., std=...), which normalizes them inside",
            WidemarginWarning,
            stacklevel=2,
        )


def check_tensor(owner: str, name: str, value: object) -> None:
    """Refuse lists and arrays in a tensor's place, and tensors that are not simply numbers in rows."""
    if not isinstance(value, Tensor):
        raise InputError(
            f"{owner}: {name} must be a torch.Tensor, got {type(value).__name__}; convert them with torch.as_tensor"
        )
    if value.layout != torch.strided or value.is_nested or value.device.type == "meta":
        got = "a nested one" if value.is_nested else f"{value.layout} on {value.device}"
        raise InputError(f"{owner}: {name} must be a dense tensor with values, got {got}; use to_dense()")


def usable(x: Tensor) -> Tensor:
    """The images, or a copy of those made under ``torch.inference_mode()``, which cannot be differentiated."""
    return x.clone() if x.is_inference() and not torch.is_inference_mode_enabled() else x


def refuse_unfit(owner: str, model: nn.Module, x: Tensor, error: RuntimeError) -> None:
    """A model failed on images x that are differentiated by: the usual reasons in one line, nothing for others."""
    types = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    if types and x.dtype not in types and "type" in str(error):
        weights = " and ".join(sorted(map(str, types)))
        raise InputError(
            f"{owner}: the images are {x.dtype}, the model's weights {weights}, and it does not convert them; make "
            "them alike with x.to(dtype)"
        ) from error
    if "Inference tensors cannot be saved" in str(error):
        held = [name for name, buffer in model.named_buffers() if buffer.is_inference()]
        raise InputError(
            f"{owner}: the model uses tensors made under torch.inference_mode() ({', '.join(held) or 'no buffers'}), "
            "which cannot be differentiated through; make them outside, or clone them there"
        ) from error
    if "leaf Variable" in str(error) and "in-place" in str(error):
        raise InputError(
            f"{owner}: the model's first operator writes into its images, which cannot be differentiated then; use one "
            "that does not (such as ReLU without inplace=True), or begin its forward with x = x.clone()"
        ) from error


def refuse_transforms(owner: str) -> None:
    """Gradients are taken by torch's ordinary backward passes, which see nothing inside torch.func's transforms."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise InputError(
            f"{owner}: called inside a transform of torch.func (grad, vmap, jvp, ...); call it outside, on a whole "
            "batch and with an ordinary backward()"
        )


def check_labels(owner: str, y: Tensor, *, batch: int, num_classes: int | None = None) -> None:
    """Labels must be (B,) integers; with ``num_classes``, on the CPU, in range as well."""
    check_tensor(owner, "labels", y)
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or y.shape != (batch,):
        raise InputError(f"{owner}: labels must be integers of shape ({batch},), got {y.dtype} {tuple(y.shape)}")
    if num_classes is not None and y.device.type == "cpu":
        low, high = (int(v) for v in y.long().aminmax())
        if low < 0 or high >= num_classes:
            raise InputError(
                f"{owner}: labels must be in 0..{num_classes - 1}, got {low}..{high}; "
                f"the model has {num_classes} outputs"
            )


def check_targets(owner: str, y: Tensor, *, batch: int, num_classes: int | None = None) -> None:
    """What a cross-entropy takes: labels (B,), or mixed labels, shares of the classes (B, K)."""
    if not isinstance(y, Tensor) or not y.is_floating_point() or y.dim() != 2:
        check_labels(owner, y, batch=batch, num_classes=num_classes)
    elif y.shape != (batch, num_classes or y.shape[1]):
        classes = "K" if num_classes is None else num_classes
        raise InputError(f"{owner}: mixed labels must be shares ({batch}, {classes}), got {tuple(y.shape)}")


def check_model(owner: str, model: object) -> None:
    """A model is a module: its mode and its parameters matter."""
    if not isinstance(model, nn.Module):
        raise InputError(
            f"{owner}: the model comes first and must be a torch.nn.Module, got {type(model).__name__}; "
            "put a function into a module's forward"
        )
    for parameter in model.parameters():
        if isinstance(parameter, UninitializedParameter):
            raise InputError(f"{owner}: the model has lazy layers without weights yet; call it once on a batch first")
        if parameter.is_inference():
            raise InputError(
                f"{owner}: the model was made under torch.inference_mode(), so nothing can be differentiated; make or "
                "load it outside"
            )


def logits_of(output: Any) -> Any:
    """The logits in what a model returned: its ``.logits`` or its entry "logits", as Hugging Face's models have them.

    Anything else is given back as it is, a tensor or what a check will refuse.
    """
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    return output if isinstance(output, Tensor) else getattr(output, "logits", output)


_UNWRAP = "; wrap it in a module whose forward returns the logits alone, such as model(x)[0]"


def check_logits(owner: str, output: Any, *, batch: int) -> Tensor:
    """The logits (B, K), of at least two classes, that a classifier returned, by themselves or inside an output."""
    logits = logits_of(output)
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[0] != batch or logits.shape[1] < 2:
        got, hint = (tuple(logits.shape), "") if isinstance(logits, Tensor) else (type(logits).__name__, _UNWRAP)
        raise InputError(f"{owner}: the model must return logits of shape ({batch}, K) with K >= 2, got {got}{hint}")
    if logits.is_complex() or logits.layout != torch.strided:
        raise InputError(f"{owner}: the model must return real, dense logits, got {logits.dtype}, {logits.layout}")
    return logits


def check_number(name: str, value: object, *, is_valid: Callable[[float], bool], rule: str, hint: str) -> None:
    """Refuse what is not a finite number that is valid; ``rule`` says what is, ``hint`` what to do."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not is_valid(value):
        raise InputError(f"{name} must be {rule}, got {value!r}; {hint}")


def pixel_hint(value: object) -> str:
    """What to do about a size in pixel units that does not fit: most often 255 was forgotten."""
    if isinstance(value, int | float) and 1 < value <= 255:
        return f"images are in [0, 1], did you mean {value:g}/255?"
    return "images are in [0, 1], so write a number such as 8/255"


def check_count(name: str, value: object) -> None:
    """Refuse what is not a whole number of at least 1, or has more bits than a size may have."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
    if value >= 2**63:
        raise InputError(f"{name} must be a whole number below 2^63, got {value}; write a smaller one")


def choice(owner: str, field: str, value: Any, allowed: tuple[T, ...]) -> T:
    """The value; refused where it is not one of the allowed ones, naming them. An option has no owner."""
    if value not in allowed or isinstance(value, bool) != isinstance(allowed[allowed.index(value)], bool):
        name = f"{owner}.{field}" if owner else field
        raise InputError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return allowed[allowed.index(value)]
