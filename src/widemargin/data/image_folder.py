"""Folders of images: ``root/train/<class>/*`` and ``root/test/<class>/*``, or ``root/<class>/*`` as a single set.

Classes are numbered in the order of their names, and those of ``train`` count for ``test`` too, so that a class number
means the same in both. Without a size to resize to images must agree in size and color; nothing is resized behind the
user's back.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from widemargin.core.files import check_file
from widemargin.data.decoding import EXTENSIONS, ImageForm, common_form
from widemargin.data.image_set import ImageSet
from widemargin.data.image_stream import ImageStream
from widemargin.errors import InputError

_FORM = "root/train/<class>/*.png and root/test/<class>/*.png, or root/<class>/*.png"


@dataclass(frozen=True, eq=False)
class FolderFiles:
    """The files of all classes, in arrays: a process that decodes copies no list of a million paths."""

    folders: tuple[str, ...]
    classes: npt.NDArray[np.int64]
    names: npt.NDArray[np.bytes_]

    def __len__(self) -> int:
        return len(self.names)

    def open(self, number: int) -> BinaryIO:
        """The file."""
        path = Path(self.name(number))
        check_file(path)
        return path.open("rb")

    def name(self, number: int) -> str:
        """Its path."""
        return os.path.join(self.folders[self.classes[number]], os.fsdecode(self.names[number]))  # noqa: PTH118


def is_divided(root: Path) -> bool:
    """Whether the folder has a train or a test part, and is not a single set."""
    return (root / "train").is_dir() or (root / "test").is_dir()


def read_image_folder(root: Path, split: str) -> ImageSet:
    """The images of one split, or of the single set that the folder holds, in memory."""
    return open_image_folder(root, split).in_memory()


def open_image_folder(
    root: Path, split: str, *, image_size: int | None = None, workers: int | None = None
) -> ImageStream:
    """The images of one split, on the disk; resized to ``image_size`` squared, in color, or else all alike."""
    part = root / split if is_divided(root) else root
    of_train = root / "train" if (root / "train").is_dir() else part
    classes = sorted(entry.name for entry in _entries(of_train) if entry.is_dir())
    if len(classes) < 2:
        raise InputError(
            f"{of_train}: expected one sub-folder per class, at least two, got {classes}; arrange it as {_FORM}"
        )
    files = _files(part, classes)
    return ImageStream(
        files=files,
        labels=torch.from_numpy(files.classes.copy()),
        num_classes=len(classes),
        name=root.resolve().name or str(root),
        form=common_form(files) if image_size is None else ImageForm(image_size, image_size, "RGB", resized=True),
        rows=np.arange(len(files)),
        workers=workers,
    )


def _entries(folder: Path) -> list[Path]:
    """What a folder holds, in the order of names, without hidden entries."""
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror}); arrange images as {_FORM}") from error


def _files(part: Path, classes: list[str]) -> FolderFiles:
    """Class by class."""
    names: list[bytes] = []
    numbers: list[int] = []
    for folder in (entry for entry in _entries(part) if entry.is_dir()):
        if folder.name not in classes:
            raise InputError(f"{folder}: the training images have no class {folder.name!r}, only {', '.join(classes)}")
        images = [os.fsencode(file.name) for file in _entries(folder) if file.suffix.lower() in EXTENSIONS]
        if not images:
            raise InputError(f"{folder}: holds no image ({', '.join(EXTENSIONS)}); add some or remove the folder")
        names += images
        numbers += [classes.index(folder.name)] * len(images)
    if not names:
        raise InputError(f"{part}: holds no images; arrange them as {_FORM}")
    folders = tuple(str(part / name) for name in classes)
    return FolderFiles(folders, np.array(numbers, dtype=np.int64), np.array(names, dtype=np.bytes_))
