"""A second source of training images, such as generated ones, of which every batch gets a fixed share.

An ``.npz`` file with ``image`` (N, H, W, C) or (N, C, H, W), uint8, and ``label`` (N,), as the generated CIFAR sets of
Rebuffi et al. (2021) and Wang et al. (2023) have them, or several such files, one after the other. They are mapped into
memory and not read: a batch reads the rows it needs, so 50 million images (150 GB) need no more memory than a batch.
While a step computes, the system is asked for the rows of the next.
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from widemargin.core.files import check_file, readable
from widemargin.data.datasets import data_folder
from widemargin.data.image_set import ImageSet, as_floats
from widemargin.data.npz import Member, image_layout, open_npz
from widemargin.errors import InputError

_LABELS_AT_ONCE = 1 << 22
_FORM = "numpy.savez(file, image=..., label=...), images uint8 and labels class numbers from 0 on"


@dataclass(frozen=True, eq=False)
class _Mapped:
    """The images and labels of one file, on the disk."""

    content: mmap.mmap
    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[Any]
    layout: str

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W)."""
        shape = self.images.shape[1:]
        return {"NHW": (1, *shape), "NCHW": shape, "NHWC": (*shape[2:], *shape[:2])}[self.layout]

    def channels_first(self, images: Tensor) -> Tensor:
        """Rows of the images as (n, C, H, W)."""
        if self.layout == "NCHW":
            return images
        return images.unsqueeze(1) if self.layout == "NHW" else images.permute(0, 3, 1, 2)


@dataclass(frozen=True, eq=False)
class ExtraImages:
    """The images of one file or several, by their number."""

    name: str
    files: tuple[_Mapped, ...]
    ends: npt.NDArray[np.int64]
    """The number after the last image of each file."""
    largest_label: int

    def __len__(self) -> int:
        return int(self.ends[-1])

    def check_fits(self, data: ImageSet) -> None:
        """Whether they can be mixed into batches of this set."""
        shape = self.files[0].image_shape
        if shape != data.image_shape:
            raise InputError(
                f"data.extra: the images of {self.name} are {shape}, those of {data.name} {data.image_shape}; "
                "one network takes both, so make them alike"
            )
        if self.largest_label >= data.num_classes:
            raise InputError(
                f"data.extra: {self.name} has the label {self.largest_label}, and {data.name} has {data.num_classes} "
                "classes, from 0 on; give a file of the same classes"
            )

    def draw(self, count: int, batch_size: int, generator: torch.Generator) -> "ExtraRows":
        """So many of them, with replacement, and their places among the others in a batch."""
        rows = torch.randint(len(self), (count,), generator=generator)
        return ExtraRows(self, rows, torch.randperm(batch_size, generator=generator))

    def read(self, rows: Tensor, *, pinned: bool) -> tuple[Tensor, Tensor]:
        """(images (n, C, H, W) uint8, labels (n,)), on the CPU; pinned memory is copied to a GPU without waiting."""
        numbers, form = rows.numpy(), self.files[0]
        images = torch.empty((len(rows), *form.images.shape[1:]), dtype=torch.uint8, pin_memory=pinned)
        labels = torch.empty(len(rows), dtype=torch.int64, pin_memory=pinned)
        for file, where, own in self._by_file(numbers):
            if len(self.files) == 1:
                np.take(file.images, own, axis=0, out=images.numpy(), mode="clip")
            else:
                images.numpy()[where] = file.images[own]
            labels.numpy()[where] = file.labels[own]
        return form.channels_first(images), labels

    def fetch(self, rows: Tensor) -> None:
        """Ask the system to have these rows ready soon; it does not wait for them."""
        if not hasattr(mmap, "MADV_WILLNEED"):  # not a POSIX machine: they are read when they are needed
            return
        for file, _, own in self._by_file(rows.numpy()):
            size = file.images[0].nbytes
            first = file.images.__array_interface__["data"][0] - np.frombuffer(file.content, np.uint8).ctypes.data
            for start in (first + own * size).tolist():
                page = start - start % mmap.PAGESIZE
                file.content.madvise(mmap.MADV_WILLNEED, page, start - page + size)

    def _by_file(
        self, numbers: npt.NDArray[np.int64]
    ) -> list[tuple[_Mapped, npt.NDArray[np.bool_], npt.NDArray[np.int64]]]:
        """(file, which of the numbers are in it, their rows there)."""
        which = np.searchsorted(self.ends, numbers, side="right")
        found = []
        for index, file in enumerate(self.files):
            where = which == index
            if where.any():
                found.append((file, where, numbers[where] - (self.ends[index - 1] if index else 0)))
        return found


@dataclass(frozen=True, eq=False)
class ExtraRows:
    """What a batch gets of the second source."""

    source: ExtraImages
    rows: Tensor
    places: Tensor
    """(B,): for each place in the batch, its number among the set's own images and then these."""

    def read(self, data: ImageSet) -> tuple[Tensor, Tensor]:
        """(images, labels), on the device and in the form of the set they are mixed into."""
        images, labels = self.source.read(self.rows, pinned=data.device.type == "cuda")
        images, labels = (part.to(data.device, non_blocking=True) for part in (images, labels))
        return (as_floats(images) if data.images.is_floating_point() else images), labels

    def join(self, own: Tensor, extra: Tensor) -> Tensor:
        """Both, in their places."""
        return torch.cat([own, extra.to(own.device)])[self.places.to(own.device)]

    def fetch(self) -> None:
        """Ask the system to have these images ready soon."""
        self.source.fetch(self.rows)


def extra_count(share: float, batch_size: int) -> int:
    """How many of a batch come from the second source; rounded down, as published."""
    return int(share * batch_size)


def open_extra(names: str | Sequence[str], *, data_dir: str | Path | None = None) -> ExtraImages:
    """The images of these files, each looked for where its path says, then in the data folder."""
    paths = [_found(name, data_folder(data_dir)) for name in ([names] if isinstance(names, str) else names)]
    files = [_mapped(path) for path in paths]
    for path, file in zip(paths[1:], files[1:], strict=True):
        if file.images.shape[1:] != files[0].images.shape[1:]:
            raise InputError(
                f"data.extra: the images of {path} are {file.images.shape[1:]}, those of {paths[0]} "
                f"{files[0].images.shape[1:]}; write them alike"
            )
    largest = max(_largest_label(path, file.labels) for path, file in zip(paths, files, strict=True))
    name = ", ".join(path.name for path in paths)
    return ExtraImages(name, tuple(files), np.cumsum([len(file.labels) for file in files]), largest)


def _found(name: str, folder: Path) -> Path:
    asked = Path(name).expanduser()
    places = list(dict.fromkeys((asked.absolute(), folder / asked)))
    for path in places:
        if path.is_file():
            return path
    raise InputError(
        f"data.extra: there is no file {' or '.join(map(str, places))}; put it there, written with {_FORM}, or train "
        "without it (--set data.extra=none --set data.extra_share=none)"
    )


def _mapped(path: Path) -> _Mapped:
    check_file(path)
    with open_npz(path) as archive:
        missing = sorted({"image.npy", "label.npy"} - set(archive.namelist()))
        if missing:
            raise InputError(f"{path}: has no array {missing[0].removesuffix('.npy')}; write it with {_FORM}")
        image, label = (Member.of(archive, name, path, held=False) for name in ("image", "label"))
        layout = image_layout(image.shape, image.where)
        if image.dtype != np.uint8:
            raise InputError(f"{image.where} must be uint8, got {image.dtype}; write it with {_FORM}")
        if label.shape != image.shape[:1] or label.dtype.kind not in "iu":
            raise InputError(
                f"{label.where} must be {image.shape[:1]} whole numbers, one per image, got {label.shape} "
                f"{label.dtype}; write it with {_FORM}"
            )
        with readable(f"{path}: cannot be mapped into memory", "copy it to a disk of this machine"):
            with path.open("rb") as stream:
                content = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            if hasattr(mmap, "MADV_RANDOM"):  # rows are drawn: what lies beside one is not the next
                content.madvise(mmap.MADV_RANDOM)
        return _Mapped(content, image.mapped(content), label.mapped(content), layout)


def _largest_label(path: Path, labels: npt.NDArray[Any]) -> int:
    """All of them are looked at once, a part at a time."""
    parts = [labels[start : start + _LABELS_AT_ONCE] for start in range(0, len(labels), _LABELS_AT_ONCE)]
    if min(int(part.min()) for part in parts) < 0:
        raise InputError(f"{path}: label must be class numbers from 0 on, found one below 0; write it with {_FORM}")
    return max(int(part.max()) for part in parts)
