"""Images with labels, whole, in memory: the one form in which data walks through the package.

Everything is checked here, once, where data enters. Later code trusts an ``ImageSet`` and so never has to look at a
value on the device, which would make the host wait for it.

``stratified_split`` sets some training images aside, each class in proportion, to choose by without touching the test
set.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from widemargin.core.checks import check_count
from widemargin.core.randomness import derived
from widemargin.errors import InputError


@dataclass(frozen=True, eq=False)
class ImageSet:
    """N images (N, C, H, W), uint8 or float32 in [0, 1], and their labels (N,) int64 in [0, num_classes)."""

    images: Tensor
    labels: Tensor
    num_classes: int
    name: str

    def __post_init__(self) -> None:
        _check_form(self)
        _check_images(self.images, self.name)
        _check_labels(self.labels, self.num_classes, self.name)

    def __len__(self) -> int:
        return self.images.shape[0]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @property
    def device(self) -> torch.device:
        """Where the images live."""
        return self.images.device

    def to(self, device: torch.device | str) -> "ImageSet":
        """The same set on another device."""
        return self._with_rows(self.images.to(device), self.labels.to(device))

    def subset(self, indices: Tensor | Sequence[int]) -> "ImageSet":
        """The images at these positions, in this order; a set-up step, so the positions are checked."""
        rows = checked_rows(indices, len(self), self.name).to(self.device)
        return self._with_rows(self.images[rows], self.labels[rows])

    def first(self, n: int) -> "ImageSet":
        """The first ``n`` images, or all of them if there are fewer."""
        check_count(f"{self.name}: the limit", n)
        return self._with_rows(self.images[:n], self.labels[:n])

    def floats(self, indices: Tensor | slice | None = None) -> Tensor:
        """Images as float32 in [0, 1], on the set's device; all of them, or those at ``indices``."""
        return as_floats(self.images if indices is None else self.images[indices])

    def _with_rows(self, images: Tensor, labels: Tensor) -> "ImageSet":
        """This set with other rows. Rows of checked data are checked, so the checks are not run again."""
        other = copy.copy(self)
        object.__setattr__(other, "images", images)
        object.__setattr__(other, "labels", labels)
        return other


def as_floats(images: Tensor) -> Tensor:
    """uint8 0..255 to float32 in [0, 1]; float32 is returned as it is."""
    return images.to(torch.float32).div_(255) if images.dtype == torch.uint8 else images


def _check_form(data: ImageSet) -> None:
    """Types, dimensions and counts: what can be known without looking at a value."""
    if not isinstance(data.name, str) or not data.name:
        raise InputError(f"ImageSet.name must be a non-empty string, got {data.name!r}")
    for field in ("images", "labels"):
        value = getattr(data, field)
        if not isinstance(value, Tensor):
            raise InputError(
                f"{data.name}: {field} must be a torch tensor, got {type(value).__name__}; use torch.as_tensor"
            )
    if data.images.ndim != 4 or min(data.images.shape) < 1:
        raise InputError(
            f"{data.name}: images must be (N, C, H, W) with every size at least 1, got {tuple(data.images.shape)}"
        )
    if data.labels.ndim != 1 or len(data.labels) != len(data.images):
        raise InputError(
            f"{data.name}: labels must be ({len(data.images)},), one per image, got {tuple(data.labels.shape)}"
        )
    if data.labels.device != data.images.device:
        raise InputError(
            f"{data.name}: images are on {data.images.device} and labels on {data.labels.device}; move one of them"
        )


def _check_images(images: Tensor, name: str) -> None:
    if images.dtype == torch.uint8:
        return
    if images.dtype != torch.float32:
        raise InputError(
            f"{name}: images must be uint8 or float32 in [0, 1], got {images.dtype}; "
            "convert with .to(torch.uint8) or .to(torch.float32)"
        )
    low, high = (bound.item() for bound in images.aminmax())
    if not (math.isfinite(low) and math.isfinite(high)):  # aminmax carries a NaN through
        raise InputError(f"{name}: images must be finite, found NaN or infinity; repair or drop those images")
    if low < 0 or high > 1:
        remedy = "they look like 0..255: divide by 255" if high <= 255 else "scale them to [0, 1]"
        if low < 0:
            remedy = "they look normalized: undo that, since the model normalizes in its first layer"
        raise InputError(f"{name}: float images must be in [0, 1], found {low:g} to {high:g}; {remedy}")


def _check_labels(labels: Tensor, num_classes: int, name: str) -> None:
    if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 2:
        raise InputError(f"{name}: num_classes must be a whole number from 2 up, got {num_classes!r}")
    if labels.dtype != torch.int64:
        raise InputError(f"{name}: labels must be int64, got {labels.dtype}; convert with .to(torch.int64)")
    low, high = (int(bound) for bound in labels.aminmax())
    if low < 0 or high >= num_classes:
        hint = "; they seem to count from 1: subtract 1" if low == 1 and high == num_classes else ""
        raise InputError(
            f"{name}: labels must be in [0, {num_classes}) for {num_classes} classes, found {low} to {high}{hint}"
        )


def checked_rows(indices: Tensor | Sequence[int], count: int, name: str) -> Tensor:
    """Positions in a set of that many images, on the CPU."""
    rows = torch.as_tensor(indices).cpu()
    if rows.ndim != 1 or rows.numel() == 0 or rows.is_floating_point() or rows.dtype == torch.bool:
        raise InputError(
            f"{name}: a subset needs a non-empty list of whole numbers, got {rows.dtype} {tuple(rows.shape)}; "
            "for a mask use mask.nonzero()[:, 0]"
        )
    low, high = int(rows.min()), int(rows.max())
    if low < 0 or high >= count:
        raise InputError(f"{name}: subset indices must be in [0, {count}), found {low} to {high}")
    return rows.to(torch.int64)


def stratified_split(labels: Tensor, *, held_out: int, seed: int) -> tuple[Tensor, Tensor]:
    """(train indices, held-out indices): disjoint, sorted, on the CPU, the same for the same seed.

    Each class gives its share of the ``held_out`` places, rounded so that the sum is exact (largest remainder).
    """
    labels = labels.cpu()
    counts = torch.bincount(labels).tolist() if labels.numel() else []
    _check_held_out(len(labels), sum(count > 0 for count in counts), held_out)
    is_held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label, quota in enumerate(_quotas(counts, held_out)):
        members = (labels == label).nonzero()[:, 0]
        order = torch.randperm(len(members), generator=derived(seed, "split", label))
        is_held_out[members[order[:quota]]] = True
    return (~is_held_out).nonzero()[:, 0], is_held_out.nonzero()[:, 0]


def _check_held_out(total: int, classes: int, held_out: int) -> None:
    check_count("data.held_out", held_out)
    if held_out >= total:
        raise InputError(f"data.held_out must leave images to train on: got {held_out} of {total}; hold out fewer")
    if held_out < classes:
        raise InputError(
            f"data.held_out must be at least the number of classes, {classes}, got {held_out}; hold out more"
        )
    if total - held_out < classes:
        raise InputError(
            f"data.held_out must leave one image of each of {classes} classes to train on: got {held_out} of {total}; "
            "hold out fewer"
        )


def _quotas(counts: list[int], held_out: int) -> list[int]:
    """How many of each class to hold out: the floor of its share, and one more for the largest remainders."""
    total = sum(counts)
    quotas = [held_out * count // total for count in counts]

    def rank(label: int) -> tuple[bool, int, int]:
        empties = quotas[label] + 1 >= counts[label]  # last choice: it would leave none of this class to train on
        return empties, -(held_out * counts[label] % total), label

    for label in sorted(range(len(counts)), key=rank)[: held_out - sum(quotas)]:
        quotas[label] += 1
    return quotas


def is_square(x: Tensor) -> bool:
    """Whether flat inputs (N, D) can be shown as square one-channel images."""
    return x.dim() == 2 and math.isqrt(x.shape[1]) ** 2 == x.shape[1]


def as_images(x: Tensor) -> Tensor:
    """Flat inputs as square images where they can be: AutoAttack draws squares on them. Others as they are."""
    side = math.isqrt(x.shape[1])
    return x.view(len(x), 1, side, side) if is_square(x) else x
