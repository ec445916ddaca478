"""What every architecture asks of its numbers, with errors that name owner, field and remedy.

Normalization as the model's first layer: (x - mean) / std, one mean and std per channel.

It lives inside the model so that everything outside (attacks, eps, margins) is in pixel units, images in [0,
1]. The buffers are not saved: the run description holds the two tuples, and the state dict keeps the field's
public keys.

The shape every model has: images -> normalization -> backbone -> features -> head -> logits.

``model(x) == model.head(model.features(x))`` always holds, so a loss that needs the features (large margin,
hypersphere) computes them once. A backbone writes ``embed`` and keeps its head under the name the field uses
(``fc``, ``linear``), so that public checkpoints load; ``model.head`` finds it whatever its name. No
normalization means ``nn.Identity``, which adds no keys.

The first weights: as torch's layers draw them, or larger, as He et al. derive them for ReLU.

Torch's own have a sixth of the variance that keeps the size of activations, so a deep network without batch norm starts
with small outputs. What it learns remembers that: see ``docs/paper-vs-code.md`` on the MLP.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard

import torch
from torch import Tensor, nn

from widemargin.errors import InputError
from widemargin.types import Head, MakeHead

ImageShape = tuple[int, int, int]
"""(channels, height, width) of one image."""


def is_count(value: object) -> TypeGuard[int]:
    """Whether this is an integer of one or more; ``True`` is not a count."""
    return type(value) is int and value >= 1


def require_count(name: str, value: object, *, remedy: str) -> None:
    """Refuse anything but an integer of one or more. ``name`` is ``Owner.field``."""
    if not is_count(value):
        raise InputError(f"{name} must be an integer of at least 1, got {value!r}; {remedy}")


def require_counts(name: str, values: object, *, remedy: str) -> None:
    """Refuse anything but a tuple of integers of one or more."""
    if not isinstance(values, tuple) or not all(is_count(value) for value in values):
        raise InputError(f"{name} must be a tuple of integers of at least 1, got {values!r}; {remedy}")


def require_finite(name: str, values: object) -> None:
    """Refuse anything but a tuple of at least one finite number."""
    if not isinstance(values, tuple) or not values or not all(_is_finite_number(value) for value in values):
        raise InputError(f"{name} must be a tuple of finite numbers, got {values!r}; give one number per channel")


def require_image_shape(name: str, shape: object) -> None:
    """Refuse anything but (channels, height, width)."""
    remedy = "give (channels, height, width), such as (3, 32, 32)"
    require_counts(name, shape, remedy=remedy)
    if isinstance(shape, tuple) and len(shape) != 3:
        raise InputError(f"{name} must have three entries, got {shape!r}; {remedy}")


def require_num_classes(name: str, value: object) -> None:
    """Refuse anything but an integer of two or more."""
    if not is_count(value) or value < 2:
        raise InputError(f"{name} must be an integer of at least 2, got {value!r}; count the classes of the data set")


def _is_finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """One mean and one standard deviation per channel, in pixel units ([0, 1])."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse empty, uneven or non-finite values and a std that is not positive."""
        require_finite("Normalization.mean", self.mean)
        require_finite("Normalization.std", self.std)
        if len(self.mean) != len(self.std):
            raise InputError(
                f"Normalization.std must be as long as mean ({len(self.mean)}), got {len(self.std)}; "
                "give one of each per channel"
            )
        if min(self.std) <= 0:
            raise InputError(f"Normalization.std must be positive, got {self.std}; images are divided by it")


MNIST_NORMALIZATION = Normalization(mean=(0.1307,), std=(0.3081,))
CIFAR10_NORMALIZATION = Normalization(mean=(0.4914, 0.4822, 0.4465), std=(0.2471, 0.2435, 0.2616))


NORMALIZATIONS = {"cifar10": CIFAR10_NORMALIZATION, "mnist": MNIST_NORMALIZATION}


def normalization_of(text: str, channels: int, *, owner: str) -> Normalization | None:
    """``cifar10``, ``mnist``, ``none``, or MEAN,STD: one of each, or first all means and then all deviations."""
    if text == "none":
        return None
    named = NORMALIZATIONS.get(text)
    try:
        numbers = [float(part) for part in text.split(",")] if named is None else []
    except ValueError:
        numbers = []
    if len(numbers) == 2:
        numbers = [number for number in numbers for _ in range(channels)]
    if named is None and len(numbers) == 2 * channels:
        named = Normalization(mean=tuple(numbers[:channels]), std=tuple(numbers[channels:]))
    if named is None or len(named.mean) != channels:
        raise InputError(
            f"{owner} must be none, {', '.join(NORMALIZATIONS)}, or MEAN,STD (2 numbers, or {2 * channels} for images "
            f"of {channels} channels: the means, then the standard deviations), got {text!r}"
        )
    return named


class Normalize(nn.Module):
    """(x - mean) / std per channel, for images of shape (B, C, H, W)."""

    mean: Tensor  # (C, 1, 1)
    std: Tensor  # (C, 1, 1)

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.values = Normalization(mean=tuple(mean), std=tuple(std))
        self.register_buffer("mean", _per_channel(self.values.mean), persistent=False)
        self.register_buffer("std", _per_channel(self.values.std), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The normalized images. Without the check one channel would broadcast silently over three."""
        channels = len(self.values.mean)
        if x.dim() < 3 or x.shape[-3] != channels:
            raise InputError(
                f"Normalize expects images of {channels} channel(s), got shape {tuple(x.shape)}; "
                "give one mean and std per channel"
            )
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        return f"mean={self.values.mean}, std={self.values.std}"


def _per_channel(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.get_default_dtype()).view(-1, 1, 1)


class Classifier(nn.Module):
    """Images (B, C, H, W) in [0, 1] to logits (B, K). Backbones write ``embed`` and ``head``."""

    def __init__(
        self, *, image_shape: ImageShape, num_classes: int, feature_size: int, normalize: Normalization | None
    ) -> None:
        super().__init__()
        require_image_shape(f"{type(self).__name__}.image_shape", image_shape)
        require_num_classes(f"{type(self).__name__}.num_classes", num_classes)
        self.image_shape = image_shape
        self.num_classes = num_classes
        self.feature_size = feature_size
        self.normalize = self._normalization(normalize)

    @property
    def head(self) -> Head:
        """The last layer, wherever the backbone keeps it."""
        raise NotImplementedError

    def embed(self, x: Tensor) -> Tensor:
        """Normalized images (B, C, H, W) to features (B, d)."""
        raise NotImplementedError

    def features(self, x: Tensor) -> Tensor:
        """What the head sees: (B, feature_size)."""
        self.check_images(x)
        return self.embed(self.normalize(x))

    def forward(self, x: Tensor) -> Tensor:
        """The logits (B, K)."""
        return self.head(self.features(x))

    def check_images(self, x: Tensor) -> None:
        """Refuse the wrong images, by shape and dtype only: no device sync, constant under torch.compile."""
        owner = type(self).__name__
        if x.dim() != 4 or tuple(x.shape[1:]) != self.image_shape:
            expected = ", ".join(str(size) for size in self.image_shape)
            raise InputError(
                f"{owner} expects images of shape (B, {expected}), got {tuple(x.shape)}; "
                "build the model with the image_shape of the data"
            )
        if not x.is_floating_point():
            raise InputError(f"{owner} expects floating-point images in [0, 1], got {x.dtype}; divide by 255 first")

    def _new_head(self, make_head: MakeHead) -> nn.Module:
        head = make_head(self.feature_size, self.num_classes)
        if not callable(getattr(head, "training_logits", None)):
            raise InputError(
                f"{type(self).__name__}.make_head must make a module with training_logits(features, logits, y),"
                f" got {type(head).__name__}; use widemargin.heads.LinearHead in place of nn.Linear"
            )
        return head

    def _normalization(self, normalize: Normalization | None) -> nn.Module:
        if normalize is None:
            return nn.Identity()
        if len(normalize.mean) != self.image_shape[0]:
            raise InputError(
                f"{type(self).__name__}.normalize must have {self.image_shape[0]} channel(s), as the images, "
                f"got {len(normalize.mean)}; give one mean and std per channel"
            )
        return Normalize(normalize.mean, normalize.std)


Init = Literal["he"] | None
"""None is torch's own."""


def require_init(owner: str, init: object) -> None:
    """Refuse a name that is none."""
    if init not in ("he", None):
        raise InputError(f"{owner}.init must be 'he', or None for torch's own, got {init!r}")


def initialize(model: nn.Module, init: Init) -> None:
    """Draw the weights of a new network again, where ``init`` asks for it, from the global generator."""
    if init is None:
        return
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    for module in model.modules():
        project = getattr(module, "after_average", None)  # of a head with unit rows
        if callable(project):
            project()
