"""Tiny-ImageNet-200 as published: ``tiny-imagenet-200.zip``, which stays packed, or the folder that is in it.

There are 200 classes of ImageNet at 64 x 64: 500 training images each, ``train/<wnid>/images/*.JPEG``, and 50 in
``val``, whose classes ``val_annotations.txt`` tells. The labels of ``test`` were never published, so ``val`` is the
test split, as everywhere. Classes are numbered in the order of their names, as public networks have them, which is not
the order of ``wnids.txt``; grey images become RGB.
"""

import io
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from widemargin.core.files import check_file, readable
from widemargin.core.screen import console_for
from widemargin.data.idx import memory_limit
from widemargin.data.image_set import ImageSet
from widemargin.errors import InputError

FOLDER = "tiny-imagenet-200"
ARCHIVE = f"{FOLDER}.zip"
CLASSES, PER_CLASS, SIDE = 200, {"train": 500, "test": 50}, 64
_MOST_BYTES = 1 << 20  # of one file; the list of val's classes has 0.4 MB, an image 2 to 10 kB
_AGAIN = "fetch or unpack it again"
Read = Callable[[str], bytes]
"""The content of one file by its name inside the folder."""


def find_tiny_imagenet(folder: Path) -> Path | None:
    """What in ``folder`` holds the data: the folder that unpacking makes, it itself, or the zip file."""
    unpacked = next((place for place in (folder / FOLDER, folder) if (place / "wnids.txt").is_file()), None)
    archive = folder / ARCHIVE
    return unpacked or (archive if archive.is_file() else None)


def read_tiny_imagenet(place: Path, split: str, *, classes: int = CLASSES, per_class: int | None = None) -> ImageSet:
    """The images of one split from the zip file or the folder, in the order of their names; all must be there."""
    check_file(place)
    per_class = PER_CLASS[split] if per_class is None else per_class
    if (size := classes * per_class * 3 * SIDE**2) > memory_limit():
        raise InputError(f"{place}: its images are {size} bytes, more than half of this machine's memory")
    if place.is_dir():
        names = (file.relative_to(place).as_posix() for file in (place / "train").glob("*/images/*.JPEG"))
        return _read(place, names, lambda name: _from_folder(place / name), split, classes, per_class)
    with readable(f"{place}: cannot be read as a zip file", _AGAIN), zipfile.ZipFile(place) as archive:
        names = (name.removeprefix(f"{FOLDER}/") for name in archive.namelist())
        return _read(place, names, lambda name: _from_archive(archive, name), split, classes, per_class)


def _from_folder(path: Path) -> bytes:
    check_file(path)
    _check_size(path.stat().st_size)
    return path.read_bytes()


def _from_archive(archive: zipfile.ZipFile, name: str) -> bytes:
    _check_size(archive.getinfo(f"{FOLDER}/{name}").file_size)
    return archive.read(f"{FOLDER}/{name}")  # no more than that, its checksum compared


def _check_size(size: int) -> None:
    if size > _MOST_BYTES:
        raise ValueError(f"it has {size} bytes")


def _read(place: Path, names: Iterable[str], read: Read, split: str, classes: int, per_class: int) -> ImageSet:
    numbers = {name: number for number, name in enumerate(sorted(set(_text(place, read, "wnids.txt").split())))}
    if len(numbers) != classes:
        raise InputError(f"{place}: wnids.txt must name {classes} classes, got {len(numbers)}; {_AGAIN}")
    found = _of_train(names, numbers) if split == "train" else _of_val(_text(place, read, _LIST), numbers)
    counts = Counter(found.values())
    for name, number in numbers.items():
        if counts[number] != per_class:
            raise InputError(
                f"{place}: class {name} must have {per_class} {split} images, found {counts[number]}; {_AGAIN}"
            )
    images = np.empty((len(found), 3, SIDE, SIDE), dtype=np.uint8)
    labels = torch.empty(len(found), dtype=torch.int64)
    for row, name in enumerate(_with_progress(sorted(found), f"{FOLDER}, {split}")):
        images[row], labels[row] = _decode(place, read, name).transpose(2, 0, 1), found[name]
    return ImageSet(torch.from_numpy(images), labels, num_classes=classes, name="tiny-imagenet")


_LIST = "val/val_annotations.txt"


def _text(place: Path, read: Read, name: str) -> str:
    with readable(f"{place}: {name} cannot be read", _AGAIN):
        return read(name).decode("ascii")


def _of_train(names: Iterable[str], numbers: dict[str, int]) -> dict[str, int]:
    """File names with class numbers, by the folder they are in."""
    found = {}
    for name in names:
        parts = name.split("/")
        if len(parts) == 4 and parts[0] == "train" and parts[1] in numbers and name.endswith(".JPEG"):
            found[name] = numbers[parts[1]]
    return found


def _of_val(listed: str, numbers: dict[str, int]) -> dict[str, int]:
    """The same by the list: a line for each image, its name, its class and a box. No name leads elsewhere."""
    rows = (line.split("\t") for line in listed.splitlines())
    named = (row for row in rows if len(row) > 1 and row[1] in numbers and row[0].isprintable() and "/" not in row[0])
    return {f"val/images/{name}": numbers[wnid] for name, wnid, *_ in named}


def _decode(place: Path, read: Read, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    with (
        readable(f"{place}: {name} is missing or damaged", _AGAIN),
        Image.open(io.BytesIO(read(name)), formats=("JPEG",)) as image,
    ):
        if image.size != (SIDE, SIDE):
            raise ValueError(f"it is {image.width}x{image.height}, not {SIDE}x{SIDE}")
        return np.asarray(image.convert("RGB"))


def _with_progress(names: list[str], title: str) -> Iterable[str]:
    """A bar on a terminal: decoding the training images takes half a minute."""
    from rich.progress import track

    console = console_for(stderr=True)
    return track(names, title, console=console, transient=True, disable=not console.is_terminal)
