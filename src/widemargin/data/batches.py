"""Training batches, in an order that depends on (seed, epoch) alone: a run can stop at any step and go on from there.

Several processes share each batch: all of them augment the whole of it, with the same random numbers, and take their
rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from widemargin.core.batch_share import BatchShare, share_of, sharing
from widemargin.core.checks import check_count
from widemargin.core.randomness import derived
from widemargin.data.augmentation import Augmentation, NoAugmentation
from widemargin.data.image_set import ImageSet, as_floats
from widemargin.errors import InputError


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
    replays: int = 1
    """So many steps in a row have the same batch."""
    rank: int = 0
    processes: int = 1

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_count("replays", self.replays)
        if self.drop_last and self.batch_size > len(self.data):
            raise InputError(
                f"batch_size must be at most {len(self.data)}, the number of images in {self.data.name}, when the last "
                f"incomplete batch is dropped, got {self.batch_size}; use a smaller one or drop_last=False"
            )

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch, every replay counted."""
        whole, rest = divmod(len(self.data), self.batch_size)
        return self.replays * (whole if self.drop_last or not rest else whole + 1)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from ``start_step`` on, exactly as a full epoch would give them."""
        if not 0 <= start_step <= self.steps_per_epoch:
            raise InputError(f"start_step must be in [0, {self.steps_per_epoch}], got {start_step}")
        order = epoch_order(len(self.data), seed=self.seed, epoch=epoch).to(self.data.device)
        return (self._batch(order, epoch, step) for step in range(start_step, self.steps_per_epoch))

    def _batch(self, order: Tensor, epoch: int, step: int) -> Batch:
        number = step // self.replays
        rows = order[number * self.batch_size : (number + 1) * self.batch_size]
        share = share_of(len(rows), rank=self.rank, processes=self.processes)
        generator = partial(derived, self.seed, "augment", epoch, number)
        return LazyBatch(step, rows, self.data, self.augmentation, generator, share)


def in_order(data: ImageSet, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(images in [0, 1], labels) from first to last, the last batch possibly smaller: for evaluation."""
    check_count("batch_size", batch_size)
    rows = (slice(start, start + batch_size) for start in range(0, len(data), batch_size))
    return ((data.floats(part), data.labels[part]) for part in rows)
