"""Training batches, in an order that depends on (seed, epoch) alone: a run can stop at any step and go on from there.

Augmentation changes a whole batch at a time on its device. What it draws comes from a CPU generator and is then moved,
so that every device sees the same images. Several processes share each batch: all of them augment the whole of it, with
the same random numbers, and take their rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from widemargin.core.batch_share import BatchShare, share_of, sharing
from widemargin.core.checks import check_count
from widemargin.core.randomness import derived
from widemargin.data.image_set import ImageSet, as_floats
from widemargin.errors import InputError


class Augmentation(Protocol):
    """(images (B, C, H, W) float or uint8, generator) -> images of the same shape, type and device."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change a batch."""


class DrawnBefore(Protocol):
    """An augmentation in two halves: what it draws, on the CPU, and what it does, which a CUDA graph can hold."""

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """The draws for so many images."""

    def apply(self, images: Tensor, draws: Tensor) -> Tensor:
        """Change the images as drawn; the draws are on their device."""


@dataclass(frozen=True)
class NoAugmentation:
    """Images as they are."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Return the batch untouched; nothing is drawn."""
        return images

    def draw(self, count: int, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Nothing."""
        return torch.empty(0, count, dtype=torch.int64)

    def apply(self, images: Tensor, draws: Tensor) -> Tensor:  # noqa: ARG002
        """Return the batch untouched."""
        return images


@dataclass(frozen=True)
class CropFlip:
    """Shift by up to ``padding`` pixels in each direction, zeros coming in, then mirror every other image or so."""

    padding: int = 4

    def __post_init__(self) -> None:
        if isinstance(self.padding, bool) or not isinstance(self.padding, int) or self.padding < 0:
            raise InputError(f"CropFlip.padding must be a whole number of pixels from 0 up, got {self.padding!r}")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Zero-pad, crop at a random place, flip with probability 1/2."""
        return self.apply(images, self.draw(len(images), generator).to(images.device, non_blocking=True))

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """(3, count): rows down and columns right into the padded image, and 1 where to flip. On the CPU."""
        shifts = torch.randint(0, 2 * self.padding + 1, (2, count), generator=generator)
        flips = torch.randint(0, 2, (1, count), generator=generator)
        return torch.cat([shifts, flips])

    def apply(self, images: Tensor, draws: Tensor) -> Tensor:
        """Pad, crop and flip as ``draw`` says; one gather for the whole batch."""
        B, C, H, W = images.shape
        down, right, flip = draws
        y, x = (torch.arange(size, device=images.device) for size in (H, W))
        rows = down[:, None] + y  # (B, H)
        columns = right[:, None] + torch.where(flip[:, None] == 1, W - 1 - x, x)  # (B, W)
        samples, channels = (torch.arange(size, device=images.device) for size in (B, C))
        padded = F.pad(images, [self.padding] * 4)
        return padded[
            samples[:, None, None, None],
            channels[None, :, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]


def is_drawn_before(augmentation: Augmentation) -> bool:
    """Whether calling it is drawing, then applying; one of your own may do something else."""
    return type(augmentation).__call__ in (NoAugmentation.__call__, CropFlip.__call__)


AUGMENTATIONS: dict[str, type] = {"none": NoAugmentation, "crop-flip": CropFlip}


class Batch:
    """One step's data: images (B, C, H, W) float32 in [0, 1], labels (B,), and where in the set they come from.

    ``share`` says which rows of the step's batch these are, where several processes share it.
    """

    def __init__(
        self, step: int, indices: Tensor, images: Tensor, labels: Tensor, share: BatchShare | None = None
    ) -> None:
        self.step, self.indices, self.share = step, indices, share
        self._images, self._labels = images, labels

    @property
    def images(self) -> Tensor:
        """(B, C, H, W) float32 in [0, 1]."""
        return self._images

    @property
    def labels(self) -> Tensor:
        """(B,) int64."""
        return self._labels

    @property
    def size(self) -> int:
        """Samples in the whole batch."""
        return len(self.indices) if self.share is None else self.share.total


class LazyBatch(Batch):
    """A batch that is made when somebody looks: until then it is a choice of images and what changes them."""

    def __init__(
        self,
        step: int,
        rows: Tensor,
        data: ImageSet,
        augmentation: Augmentation,
        generator: Callable[[], torch.Generator],
        share: BatchShare | None = None,
    ) -> None:
        self.step, self.rows, self.share = step, rows, share
        self.data, self.augmentation, self.generator = data, augmentation, generator
        self.indices = rows if share is None else rows[share.rows]

    @cached_property
    def images(self) -> Tensor:
        """(B, C, H, W) float32 in [0, 1]."""
        with sharing(None):  # every process augments the whole batch
            whole = self.augmentation(self.data.images[self.rows], self.generator())
        return as_floats(whole if self.share is None else whole[self.share.rows])

    @cached_property
    def labels(self) -> Tensor:
        """(B,) int64."""
        return self.data.labels[self.indices]


def epoch_order(n: int, *, seed: int, epoch: int) -> Tensor:
    """The order in which this epoch visits n images: a permutation, on the CPU."""
    return torch.randperm(n, generator=derived(seed, "order", epoch))


@dataclass(frozen=True, eq=False, kw_only=True)
class Batches:
    """Training batches of a set. Every tensor lives on the set's device; no step waits for it."""

    data: ImageSet
    batch_size: int
    seed: int
    augmentation: Augmentation = field(default_factory=NoAugmentation)
    drop_last: bool = False
    rank: int = 0
    processes: int = 1

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        if self.drop_last and self.batch_size > len(self.data):
            raise InputError(
                f"batch_size must be at most {len(self.data)}, the number of images in {self.data.name}, when the last "
                f"incomplete batch is dropped, got {self.batch_size}; use a smaller one or drop_last=False"
            )

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch."""
        whole, rest = divmod(len(self.data), self.batch_size)
        return whole if self.drop_last or not rest else whole + 1

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from ``start_step`` on, exactly as a full epoch would give them."""
        if not 0 <= start_step <= self.steps_per_epoch:
            raise InputError(f"start_step must be in [0, {self.steps_per_epoch}], got {start_step}")
        order = epoch_order(len(self.data), seed=self.seed, epoch=epoch).to(self.data.device)
        return (self._batch(order, epoch, step) for step in range(start_step, self.steps_per_epoch))

    def _batch(self, order: Tensor, epoch: int, step: int) -> Batch:
        rows = order[step * self.batch_size : (step + 1) * self.batch_size]
        share = share_of(len(rows), rank=self.rank, processes=self.processes)
        generator = partial(derived, self.seed, "augment", epoch, step)
        return LazyBatch(step, rows, self.data, self.augmentation, generator, share)


def in_order(data: ImageSet, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(images in [0, 1], labels) from first to last, the last batch possibly smaller: for evaluation."""
    check_count("batch_size", batch_size)
    rows = (slice(start, start + batch_size) for start in range(0, len(data), batch_size))
    return ((data.floats(part), data.labels[part]) for part in rows)
