"""Normalization as the model's first layer: (x - mean) / std, one mean and std per channel.

It lives inside the model so that everything outside (attacks, eps, margins) is in pixel units, images in [0,
1]. The buffers are not saved: the run description holds the two tuples, and the state dict keeps the field's
public keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from widemargin.errors import InputError
from widemargin.models.constraints import require_finite


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
