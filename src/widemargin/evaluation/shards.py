"""Data in shards: the pieces that an evaluation finishes, writes down and can be interrupted between."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from widemargin.checks import check_batch, check_count, check_range, check_tensor
from widemargin.data import ImageSet
from widemargin.errors import InputError
from widemargin.evaluation.wrapped import as_images, is_square


@dataclass(frozen=True)
class Shard:
    """Examples from ``first`` on: images float32 in [0, 1], where the data has them, and their labels, on the CPU.

    The images are contiguous, whatever layout they came in: the backend views them flat.
    """

    number: int
    first: int
    images: Tensor
    labels: Tensor
    flat: bool = False
    """Whether the inputs came flat, (N, D), and ``images`` shows them as squares."""

    @property
    def shows_images(self) -> bool:
        """Whether they are images (N, C, H, W), and not signals or rows of numbers."""
        return self.images.dim() == 4

    def digest(self) -> str:
        """What tells these examples from others."""
        digest = hashlib.sha256(str(tuple(self.images.shape)).encode())
        digest.update(self.images.cpu().numpy().tobytes())
        digest.update(self.labels.numpy().tobytes())
        return digest.hexdigest()


def size_of(data: object) -> int | None:
    """How many examples the data has; None where only reading it all would tell."""
    if isinstance(data, ImageSet):
        return len(data)
    return len(data[1]) if _is_pair(data) and data[1].dim() else None


def shards(
    data: ImageSet | tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]], size: int, *, limit: int | None = None
) -> Iterator[Shard]:
    """Cut the data into shards of ``size`` examples; only one is held at a time, and each example copied once."""
    if limit is not None:
        check_count("limit", limit)
    held: list[tuple[Tensor, Tensor]] = []
    number, room = 0, size
    for images, labels in _limited(_batches(data, size), limit):
        start = 0
        while start < len(labels):
            part = slice(start, start + room)
            held.append((images[part], labels[part]))
            start, room = start + room, room - len(labels[part])
            if not room:
                yield _shard(number, size, held)
                held, number, room = [], number + 1, size
    if held:
        yield _shard(number, size, held)


def _shard(number: int, size: int, held: list[tuple[Tensor, Tensor]]) -> Shard:
    x, y = torch.cat([images for images, _ in held]), torch.cat([labels for _, labels in held])
    return Shard(number, number * size, as_images(x.contiguous()), y.cpu(), flat=is_square(x))


def _batches(
    data: ImageSet | tuple[Tensor, Tensor] | Iterable[tuple[Tensor, Tensor]], size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    if isinstance(data, ImageSet):
        for start in range(0, len(data), size):
            yield data.floats(slice(start, start + size)), data.labels[start : start + size]
    elif _is_pair(data):
        yield _checked(*data)
    else:
        _check_kinds(data)
        _check_batched(data)
        yield from _of_batches(data)


def _of_batches(batches: Iterable[object]) -> Iterator[tuple[Tensor, Tensor]]:
    for pair in batches:
        _check_kinds(pair)
        if not _is_pair(pair):
            raise InputError(f"evaluate: data must give pairs (images, labels) of tensors, got {type(pair).__name__}")
        images, labels = pair
        if images.shape[:1] != (0,) or labels.shape != (0,):  # an empty batch has nothing to judge
            yield _checked(images, labels)


def _check_kinds(data: object) -> None:
    """Refuse images and labels that are arrays or lists, not tensors."""
    if not isinstance(data, tuple | list) or len(data) != 2 or _is_pair(data):
        return
    if any(isinstance(part, Tensor | np.ndarray) for part in data):
        for name, part in zip(("images", "labels"), data, strict=True):
            check_tensor("evaluate", name, part)


def _check_batched(data: object) -> None:
    """Refuse what gives one example at a time, and what gives none."""
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        raise InputError(
            f"evaluate: data must give batches, got a {type(data).__name__} of single examples; wrap it in a "
            "torch.utils.data.DataLoader"
        )
    if not isinstance(data, Iterable) and not hasattr(data, "__getitem__"):
        raise InputError(
            "evaluate: data must be (images, labels), a data set or its name, or batches of pairs, got "
            f"{type(data).__name__}"
        )


def _is_pair(data: object) -> TypeGuard[tuple[Tensor, Tensor]]:
    return isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(part, Tensor) for part in data)


def _checked(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    check_batch("evaluate", images)
    check_range("evaluate", images)
    check_tensor("evaluate", "labels", labels)
    if labels.shape != (len(images),) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputError(
            f"evaluate: labels must be ({len(images)},) integers, got {labels.dtype} {tuple(labels.shape)}"
        )
    return images.detach().float(), labels.long()


def _limited(batches: Iterator[tuple[Tensor, Tensor]], limit: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    left = limit
    for images, labels in batches:
        yield images[:left], labels[:left]
        if left is not None and (left := left - len(labels)) <= 0:
            return
