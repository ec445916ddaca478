"""Images with labels that stay on the disk: each is decoded when a batch needs it, by processes that work ahead.

For what does not fit into memory. It has the face of an ``ImageSet``, without its ``images``. What an image becomes
depends on the image, its position and what is drawn for it (``decoding``), so neither the number of processes nor where
a run was resumed changes a bit. Two batches are decoded ahead, in pieces that all processes share: that, and no more,
is what streaming holds in memory.
"""

import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from widemargin.core.checks import check_count
from widemargin.data.decoding import CropDraws, EncodedImages, ImageForm, decode
from widemargin.data.idx import memory_limit
from widemargin.data.image_set import ImageSet, checked_rows
from widemargin.errors import InputError

PIECE_BYTES, MOST_IN_PIECE = 4 << 20, 128
"""What a process decodes and hands over at once: so many bytes, and no more images than that."""
AHEAD = 2
"""Batches that are decoded ahead."""
MOST_WORKERS = 16
_SHARED = Path("/dev/shm")


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageStream:
    """N images on the disk, (C, H, W) uint8 once decoded, and their labels (N,) int64 in [0, num_classes)."""

    files: EncodedImages
    labels: Tensor
    num_classes: int
    name: str
    form: ImageForm
    rows: npt.NDArray[np.int64]
    """(N,): which of the files they are."""
    workers: int | None = None
    """Processes that decode; None for one per CPU, 0 to decode in this one."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        check_workers(self.workers)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.form.shape

    @property
    def nbytes(self) -> int:
        """What all of them take once decoded."""
        return len(self) * self.form.nbytes

    def to(self, device: torch.device | str) -> "ImageStream":
        """The same images, decoded for another device."""
        return replace(self, labels=self.labels.to(device), device=torch.device(device))

    def subset(self, indices: Tensor | Sequence[int]) -> "ImageStream":
        """The images at these positions, in this order."""
        rows = checked_rows(indices, len(self), self.name)
        return replace(self, rows=self.rows[rows.numpy()], labels=self.labels[rows.to(self.device)])

    def first(self, n: int) -> "ImageStream":
        """The first ``n`` images, or all of them if there are fewer."""
        check_count(f"{self.name}: the limit", n)
        return replace(self, rows=self.rows[:n], labels=self.labels[:n])

    def read(self, batches: Sequence[Tensor], draws: CropDraws | None = None) -> Iterator[Tensor]:
        """(n, C, H, W) uint8 on the device, for each of these lists of n positions: whole, or as drawn."""
        size = max(1, min(PIECE_BYTES // self.form.nbytes, MOST_IN_PIECE))
        pieces = [[piece.tolist() for piece in positions.split(size)] for positions in batches]
        ahead = AHEAD * max(map(len, pieces), default=0)
        every = [piece for batch in pieces for piece in batch]
        decoded = _decoded(_Decoder(self, draws), every, self._workers(len(every)), ahead)
        for positions, own in zip(batches, pieces, strict=True):
            parts = islice(decoded, len(own))
            yield self._joined(parts, len(positions)).to(self.device, non_blocking=True)

    def in_memory(self) -> ImageSet:
        """All of them, decoded now; refused where they would take more than half of the memory."""
        if self.nbytes > memory_limit():
            raise InputError(
                f"{len(self)} images of {self.form} are {self.nbytes} bytes, more than half the memory; use fewer, or "
                "stream them (data.streaming = true)"
            )
        images = torch.empty(len(self), *self.image_shape, dtype=torch.uint8)
        parts = torch.arange(len(self)).split(MOST_IN_PIECE)
        for positions, part in zip(parts, replace(self, device=torch.device("cpu")).read(parts), strict=True):
            images[positions[0] : positions[-1] + 1] = part
        return ImageSet(images.to(self.device), self.labels, num_classes=self.num_classes, name=self.name)

    def _joined(self, parts: Iterable[Tensor], count: int) -> Tensor:
        pinned = self.device.type == "cuda"  # which is copied without waiting
        whole, start = torch.empty(count, *self.image_shape, dtype=torch.uint8, pin_memory=pinned), 0
        for part in parts:
            whole[start : start + len(part)] = part
            start += len(part)
        return whole

    def _workers(self, pieces: int) -> int:
        """As many as were asked for, and no more than have something to do."""
        if self.workers is None:
            processes = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
            return min(max(1, usable_cpus() // processes), MOST_WORKERS, pieces) if pieces > 1 else 0
        return min(self.workers, pieces)


StoredImages = ImageSet | ImageStream
"""In memory, or on the disk."""


def check_workers(workers: int | None) -> None:
    """Whether it is a number of processes."""
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 0):
        raise InputError(
            f"workers must be a number of processes that decode images, 0 for none but this one, got {workers!r}; "
            "leave it out for one per CPU"
        )


def usable_cpus() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Decoder(Dataset[Any]):
    """What the processes get: positions in, images out; where an image is refused, the words in its place."""

    def __init__(self, stream: ImageStream, draws: CropDraws | None) -> None:
        self.files, self.rows, self.form, self.draws = stream.files, stream.rows, stream.form, draws
        self.how: Literal["here", "shared memory", "pipe"] = "here"
        """How images come to the process that trains."""

    def __getitem__(self, positions: list[int]) -> Any:
        images = torch.empty(len(positions), *self.form.shape, dtype=torch.uint8)
        if self.how == "shared memory":  # at once: moved there when it is sent, each piece would leave a hole behind
            images.share_memory_()
        try:
            for image, position in zip(images, positions, strict=True):
                row = int(self.rows[position])
                values = decode(self.files, row, self.form, position=position, draws=self.draws)
                image.numpy()[:] = values.transpose(2, 0, 1)
        except InputError as error:  # torch would hand it on with a page of traceback
            return str(error)
        return images.numpy() if self.how == "pipe" else images


def _decoded(decoder: _Decoder, pieces: list[list[int]], workers: int, ahead: int) -> Iterator[Tensor]:
    """Each piece in turn, so many of them ahead; closing this ends the processes."""
    if workers == 0:
        yield from (_checked(decoder[piece]) for piece in pieces)
        return
    factor = max(2, -(-ahead // workers))
    size = factor * workers * max(map(len, pieces)) * decoder.form.nbytes
    decoder.how = "shared memory" if _fits_shared(size) else "pipe"
    loader = DataLoader(
        decoder,
        batch_size=None,
        sampler=pieces,
        num_workers=workers,
        prefetch_factor=factor,
        collate_fn=_as_it_is,
        worker_init_fn=_begin_worker,
        generator=torch.Generator(),  # or it would draw from the global one
    )
    try:
        yield from map(_checked, loader)
    except RuntimeError as error:  # of torch, for a process that was killed
        reason = str(error).partition("\n")[0]
        raise InputError(f"decoding images in {workers} processes failed: {reason}; try fewer (--workers)") from error


def _checked(piece: Any) -> Tensor:
    if isinstance(piece, str):
        raise InputError(piece)
    return torch.as_tensor(piece)


def _fits_shared(size: int) -> bool:
    """Whether shared memory, which containers may have little of, has room for twice that."""
    return not _SHARED.is_dir() or shutil.disk_usage(_SHARED).free > 2 * size


def _as_it_is(piece: Any) -> Any:
    return piece


def _begin_worker(_: int) -> None:
    """A signal to all processes is for the one that trains. Nothing is printed: its display may hold the lock."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
