"""A folder of image files, one sub-folder per class: ``root/train/<class>/*.png`` and ``root/test/<class>/*.png``.

``root/<class>/*.png`` is a single set. Classes are numbered in the order of their names, and those of ``train``
count for ``test`` too, so that a class number means the same in both. Images must agree in size and color; nothing
is resized behind the user's back.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from widemargin.core.files import check_file, readable
from widemargin.data.idx import memory_limit
from widemargin.data.image_set import ImageSet
from widemargin.errors import InputError

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_COLOR = {"1": "L", "L": "L", "P": "RGB", "RGB": "RGB", "YCbCr": "RGB", "CMYK": "RGB"}  # as stored -> as we hold it
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM")  # by content; Pillow would run Ghostscript on others
_FORM = "root/train/<class>/*.png and root/test/<class>/*.png, or root/<class>/*.png"


@dataclass(frozen=True)
class _Form:
    """What all images of a set must agree in."""

    width: int
    height: int
    color: str

    def __str__(self) -> str:
        return f"{self.width}x{self.height} {'grey' if self.color == 'L' else 'RGB'}"


def is_divided(root: Path) -> bool:
    """Whether the folder has a train or a test part, and is not a single set."""
    return (root / "train").is_dir() or (root / "test").is_dir()


def read_image_folder(root: Path, split: str) -> ImageSet:
    """The images of one split, or of the single set that the folder holds."""
    part = root / split if is_divided(root) else root
    of_train = root / "train" if (root / "train").is_dir() else part
    classes = sorted(entry.name for entry in _entries(of_train) if entry.is_dir())
    if len(classes) < 2:
        raise InputError(
            f"{of_train}: expected one sub-folder per class, at least two, got {classes}; arrange it as {_FORM}"
        )
    files = _files(part, classes)
    form = _common_form([file for file, _ in files])
    images = torch.from_numpy(_pixels([file for file, _ in files], form))
    labels = torch.tensor([label for _, label in files], dtype=torch.int64)
    return ImageSet(images, labels, num_classes=len(classes), name=root.resolve().name or str(root))


def _entries(folder: Path) -> list[Path]:
    """What a folder holds, in the order of names, without hidden entries."""
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror}); arrange images as {_FORM}") from error


def _files(part: Path, classes: list[str]) -> list[tuple[Path, int]]:
    """(file, class number), class by class."""
    found: list[tuple[Path, int]] = []
    for folder in (entry for entry in _entries(part) if entry.is_dir()):
        if folder.name not in classes:
            raise InputError(f"{folder}: the training images have no class {folder.name!r}, only {', '.join(classes)}")
        images = [file for file in _entries(folder) if file.suffix.lower() in EXTENSIONS]
        if not images:
            raise InputError(f"{folder}: holds no image ({', '.join(EXTENSIONS)}); add some or remove the folder")
        found += [(file, classes.index(folder.name)) for file in images]
    if not found:
        raise InputError(f"{part}: holds no images; arrange them as {_FORM}")
    return found


def _common_form(files: list[Path]) -> _Form:
    """Size and color of every image, from the headers alone; they must all be the same."""
    form = _form(files[0])
    for file in files[1:]:
        other = _form(file)
        if other != form:
            raise InputError(
                f"images must agree in size and color: {files[0]} is {form}, {file} is {other}; "
                "resize or convert them to one form"
            )
    size = len(files) * form.width * form.height * len(form.color)
    if size > memory_limit():
        raise InputError(f"{len(files)} images of {form} are {size} bytes, more than half the memory; use fewer")
    return form


def _form(file: Path) -> _Form:
    check_file(file)
    with (
        readable(f"{file}: cannot be read as an image", "replace or remove it"),
        Image.open(file, formats=_FORMATS) as image,
    ):
        if "transparency" in image.info or image.mode not in _COLOR:
            raise InputError(
                f"{file}: must be a grey or RGB image of 8 bits without transparency, got mode {image.mode}; "
                "convert it with Pillow: Image.open(f).convert('RGB').save(f)"
            )
        return _Form(*image.size, _COLOR[image.mode])


def _pixels(files: list[Path], form: _Form) -> npt.NDArray[np.uint8]:
    """(N, C, H, W) uint8."""
    channels = len(form.color)
    images = np.empty((len(files), form.height, form.width, channels), dtype=np.uint8)
    for row, file in zip(images, files, strict=True):
        with readable(f"{file}: is damaged", "replace or remove it"), Image.open(file, formats=_FORMATS) as image:
            row[:] = np.asarray(image.convert(form.color)).reshape(form.height, form.width, channels)
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
