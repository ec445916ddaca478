"""Training batches, in an order that depends on (seed, epoch) alone: a run can stop at any step and go on from there.

Several processes share each batch: all of them augment the whole of it, with the same random numbers, and take their
rows. Of streamed images each process decodes only its rows; where the batch is augmented beyond their crops, the
processes hand each other what they decoded.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from widemargin.core.batch_share import BatchShare, share_of, sharing, whole_batch
from widemargin.core.checks import check_count
from widemargin.core.randomness import derived
from widemargin.data.augmentation import NoAugmentation
from widemargin.data.batch_augmentation import Augmentation, Chain, augment, mixes_labels, parts_of
from widemargin.data.decoding import CropDraws, RandomResizedCrop
from widemargin.data.extra import ExtraImages, ExtraRows, extra_count
from widemargin.data.image_set import ImageSet, as_floats
from widemargin.data.image_stream import ImageStream, StoredImages
from widemargin.data.loader_images import LoaderImages
from widemargin.errors import InputError

Images = StoredImages | LoaderImages
"""In memory, on the disk, or as a loader gives them."""


class Batch:
    """One step's data: images (B, C, H, W) float32 in [0, 1], labels (B,), and where in the set they come from.

    Where the augmentation mixes images, labels are shares (B, K). ``share`` says which rows of the step's batch these
    are, where several processes share it.
    """

    def __init__(
        self, step: int, indices: Tensor, images: Tensor, labels: Tensor, share: BatchShare | None = None
    ) -> None:
        self.step, self.share = step, share
        self._indices, self._images, self._labels = indices, images, labels

    @property
    def indices(self) -> Tensor:
        """(B,) positions in the training set."""
        return self._indices

    @property
    def images(self) -> Tensor:
        """(B, C, H, W) float32 in [0, 1]."""
        return self._images

    @property
    def labels(self) -> Tensor:
        """(B,) int64, or shares (B, K) float32."""
        return self._labels

    @property
    def size(self) -> int:
        """Samples in the whole batch."""
        return len(self.indices) if self.share is None else self.share.total


class LazyBatch(Batch):
    """A batch that is made when somebody looks: until then it is a choice of images and what changes them.

    ``rows`` are positions in the set, and ``extra`` is what a second source adds to them.
    """

    def __init__(
        self,
        step: int,
        rows: Tensor,
        data: ImageSet,
        augmentation: Augmentation,
        generator: Callable[[], torch.Generator],
        share: BatchShare | None = None,
        extra: ExtraRows | None = None,
    ) -> None:
        self.step, self.rows, self.share, self.extra = step, rows, share, extra
        self.data, self.augmentation, self.generator = data, augmentation, generator

    @property
    def size(self) -> int:
        """Samples in the whole batch."""
        return len(self.rows) if self.extra is None else len(self.extra.places)

    @cached_property
    def indices(self) -> Tensor:
        """(B,) positions in the training set; from its length on, those of the second source."""
        rows = self.rows if self.extra is None else self.extra.join(self.rows, self.extra.rows + len(self.data))
        return rows if self.share is None else rows[self.share.rows]

    @cached_property
    def images(self) -> Tensor:
        """(B, C, H, W) float32 in [0, 1]."""
        return as_floats(self._made[0])

    @cached_property
    def labels(self) -> Tensor:
        """(B,) int64, or shares (B, K) float32."""
        if self.extra is None and not mixes_labels(self.augmentation):
            return self.data.labels[self.indices]  # without an image
        return self._made[1]

    @cached_property
    def _made(self) -> tuple[Tensor, Tensor]:
        images, labels = self.data.images[self.rows], self.data.labels[self.rows]
        if self.extra is not None:
            more, their_labels = self.extra.read(self.data)
            images, labels = self.extra.join(images, more), self.extra.join(labels, their_labels)
        with sharing(None):  # every process augments the whole batch
            images, labels = augment(self.augmentation, images, labels, self.data.num_classes, self.generator())
        return (images, labels) if self.share is None else (images[self.share.rows], labels[self.share.rows])


def epoch_order(n: int, *, seed: int, epoch: int) -> Tensor:
    """The order in which this epoch visits n images: a permutation, on the CPU."""
    return torch.randperm(n, generator=derived(seed, "order", epoch))


@dataclass(frozen=True, eq=False, kw_only=True)
class Batches:
    """Training batches of a set. Every tensor lives on the set's device; no step waits for it.

    With a second source, int(extra_share * batch_size) images of every batch are drawn from it, with replacement. An
    epoch has as many batches as without it, so it visits only so many of the set's own images, others in each epoch.
    Every batch is then whole: where the set has no more images in this epoch, the second source fills it up.
    """

    data: StoredImages
    batch_size: int
    seed: int
    augmentation: Augmentation = field(default_factory=NoAugmentation)
    drop_last: bool = False
    replays: int = 1
    """So many steps in a row have the same batch."""
    rank: int = 0
    processes: int = 1
    extra: ExtraImages | None = None
    extra_share: float = 0.0

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        check_count("replays", self.replays)
        if self.drop_last and self.batch_size > len(self.data):
            raise InputError(
                f"batch_size must be at most {len(self.data)}, the number of images in {self.data.name}, when the last "
                f"incomplete batch is dropped, got {self.batch_size}; use a smaller one or drop_last=False"
            )
        if self.extra is not None:
            if isinstance(self.data, ImageStream):
                raise InputError(
                    f"data.extra is mixed into images in memory, and {self.data.name} is streamed; hold it in memory "
                    "(data.streaming = false), or remove data.extra"
                )
            self.extra.check_fits(self.data)
        crops = [isinstance(part, RandomResizedCrop) for part in parts_of(self.augmentation)]
        if any(crops) and not isinstance(self.data, ImageStream):
            raise InputError(
                f"data.augmentation 'random-resized-crop' is taken while images are decoded, and {self.data.name} is "
                "in memory; stream it (data.streaming = true, for folders of images and tar shards), or use crop-flip"
            )
        if any(crops[1:]):
            raise InputError(
                "data.augmentation must name 'random-resized-crop' first and once: it is taken while images are decoded"
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
        order = epoch_order(len(self.data), seed=self.seed, epoch=epoch)
        if isinstance(self.data, ImageStream):
            return self._streamed(self.data, order, epoch, start_step)
        order = order.to(self.data.device)
        batches = (self._batch(self.data, order, epoch, step) for step in range(start_step, self.steps_per_epoch))
        return batches if self.extra is None else _fetched_ahead(batches)

    def _streamed(self, data: ImageStream, order: Tensor, epoch: int, start_step: int) -> Iterator[Batch]:
        """Every batch is decoded once, however often it is replayed."""
        numbers = range(start_step // self.replays, self.steps_per_epoch // self.replays)
        wholes = [order[number * self.batch_size : (number + 1) * self.batch_size] for number in numbers]
        shares = [share_of(len(rows), rank=self.rank, processes=self.processes) for rows in wholes]
        own = [rows if share is None else rows[share.rows] for rows, share in zip(wholes, shares, strict=True)]
        crop, rest = crop_of(self.augmentation)
        draws = None if crop is None else CropDraws(crop, self.seed, "crop", epoch)
        for number, rows, whole, share, images in zip(numbers, own, wholes, shares, data.read(own, draws), strict=True):
            labels = data.labels[whole.to(data.device)]
            generator = derived(self.seed, "augment", epoch, number)
            made = _shared_augmentation(rest, images, labels, data.num_classes, generator, share)
            for step in range(max(start_step, number * self.replays), (number + 1) * self.replays):
                yield Batch(step, rows.to(data.device), *made, share)

    def _batch(self, data: ImageSet, order: Tensor, epoch: int, step: int) -> LazyBatch:
        number = step // self.replays
        own = self.batch_size - (0 if self.extra is None else extra_count(self.extra_share, self.batch_size))
        rows, extra = order[number * own : (number + 1) * own], None
        if self.extra is not None:
            generator = derived(self.seed, "extra", epoch, number)
            extra = self.extra.draw(self.batch_size - len(rows), self.batch_size, generator)
        count = len(rows) if extra is None else self.batch_size
        share = share_of(count, rank=self.rank, processes=self.processes)
        generator_of = partial(derived, self.seed, "augment", epoch, number)
        return LazyBatch(step, rows, data, self.augmentation, generator_of, share, extra)


def _fetched_ahead(batches: Iterator[LazyBatch]) -> Iterator[Batch]:
    """The batches; while one is trained on, the disk is asked for the second source's images of the next."""
    ready = None
    for batch in batches:
        if batch.extra is not None:
            batch.extra.fetch()
        if ready is not None:
            yield ready
        ready = batch
    if ready is not None:
        yield ready


def _shared_augmentation(
    augmentation: Augmentation,
    images: Tensor,
    labels: Tensor,
    num_classes: int,
    generator: torch.Generator,
    share: BatchShare | None,
) -> tuple[Tensor, Tensor]:
    """(images, labels) of this process's rows, of its images and the labels of the whole batch."""
    if isinstance(augmentation, NoAugmentation):
        return as_floats(images), labels if share is None else labels[share.rows]
    with sharing(share):
        images = whole_batch(images)
    with sharing(None):
        images, labels = augment(augmentation, images, labels, num_classes, generator)
    if share is not None:
        images, labels = images[share.rows], labels[share.rows]
    return as_floats(images), labels


def crop_of(augmentation: Augmentation) -> tuple[RandomResizedCrop | None, Augmentation]:
    """What is done while images are decoded, and what is done to the batch after it."""
    parts = parts_of(augmentation)
    if not parts or not isinstance(parts[0], RandomResizedCrop):
        return None, augmentation
    return parts[0], Chain(parts[1:]) if parts[1:] else NoAugmentation()


@dataclass(frozen=True, eq=False, kw_only=True)
class LoaderBatches:
    """Training batches of a user's loader: every process loads the whole of them and takes its rows.

    The indices of a batch are places in the epoch: what a loader's images are in its data set, it does not say.
    """

    data: LoaderImages
    seed: int
    augmentation: Augmentation = field(default_factory=NoAugmentation)
    replays: int = 1
    rank: int = 0
    processes: int = 1

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches in an epoch, every replay counted."""
        return self.replays * len(self.data)

    def epoch(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The batches of one epoch from ``start_step`` on; those before are loaded too, and passed over."""
        first = start_step // self.replays
        loaded = self.data.batches(self.seed, "loader", epoch, start=first)
        for number, (images, labels) in enumerate(loaded, start=first):
            share = share_of(len(labels), rank=self.rank, processes=self.processes)
            rows = slice(None) if share is None else share.rows
            places = number * self.data.batch_size + torch.arange(len(labels), device=self.data.device)
            generator = derived(self.seed, "augment", epoch, number)
            with sharing(None):  # every process augments the whole batch
                x, y = augment(self.augmentation, images, labels, self.data.num_classes, generator)
            for step in range(max(start_step, number * self.replays), (number + 1) * self.replays):
                yield Batch(step, places[rows], x[rows], y[rows], share)


def read_in_order(
    data: Images, batch_size: int, *, start: int = 0, every: int = 1, draws: CropDraws | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """(images as they are stored, labels) of every so many-th batch, from number ``start`` on, in the set's order.

    The batches of a loader are its own.
    """
    check_count("batch_size", batch_size)
    if isinstance(data, LoaderImages):
        return data.batches(0, "measure", 0, start=start, every=every)
    batches = torch.arange(len(data)).split(batch_size)[start::every]
    if isinstance(data, ImageStream):
        images = data.read(batches, draws)
    else:
        images = (data.images[rows[0] : rows[-1] + 1] for rows in batches)
    return ((x, data.labels[rows[0] : rows[-1] + 1]) for x, rows in zip(images, batches, strict=True))


def in_order(data: Images, batch_size: int, *, start: int = 0, every: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """(images in [0, 1], labels) from first to last, the last batch possibly smaller: for evaluation."""
    return ((as_floats(x), y) for x, y in read_in_order(data, batch_size, start=start, every=every))
