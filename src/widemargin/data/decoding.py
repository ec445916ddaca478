"""From an encoded image (JPEG, PNG, ...) to pixels: its form, the part of it that is taken, and that part resized.

Without a size to resize to, images are as they are and must all agree. With one, a part of the image is resized to it:
in training what ``random-resized-crop`` draws, everywhere else the middle, 7/8 of the largest part of that shape, as is
usual (224 out of 256). An image that has the size already is taken whole.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from widemargin.core.files import readable
from widemargin.core.randomness import derived
from widemargin.errors import InputError

EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
MIDDLE = 0.875
TRIES = 10
_COLOR = {"1": "L", "L": "L", "P": "RGB", "RGB": "RGB", "YCbCr": "RGB", "CMYK": "RGB"}  # as stored -> as we hold it
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM")  # by content; Pillow would run Ghostscript on others
Box = tuple[float, float, float, float]
"""Left, upper, right, lower."""
SPARE = 2
"""A JPEG is decoded at the smallest of its own scales that still has so many pixels for each one wanted, per side."""


class EncodedImages(Protocol):
    """Images as they lie on the disk, by number."""

    def __len__(self) -> int: ...

    def open(self, number: int) -> BinaryIO:
        """Its bytes, to be read."""

    def name(self, number: int) -> str:
        """Where it is, for messages."""


@dataclass(frozen=True)
class ImageForm:
    """What all images of a set agree in, once decoded; ``resized`` says that they are made so."""

    width: int
    height: int
    color: str
    resized: bool = False

    def __str__(self) -> str:
        return f"{self.width}x{self.height} {'grey' if self.color == 'L' else 'RGB'}"

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return len(self.color), self.height, self.width

    @property
    def nbytes(self) -> int:
        """Of one image."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class RandomResizedCrop:
    """A random part of the image (Szegedy et al., 2015), resized to ``data.image_size``, mirrored every other time.

    Its share of the area is uniform between ``smallest`` and ``largest``, the logarithm of its aspect ratio uniform
    between ``aspect`` and one over it. It works on images while they are decoded, so only on streamed ones.
    """

    smallest: float = 0.08
    largest: float = 1.0
    aspect: float = 0.75
    flip: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.smallest <= self.largest <= 1:
            raise InputError(
                "RandomResizedCrop.smallest and largest must be shares of the area, 0 < smallest <= largest <= 1, got "
                f"{self.smallest!r} and {self.largest!r}; 0.08 and 1 are usual"
            )
        if not 0 < self.aspect <= 1:
            raise InputError(f"RandomResizedCrop.aspect must be in (0, 1], got {self.aspect!r}; 0.75 is usual")
        if not 0 <= self.flip <= 1:
            raise InputError(f"RandomResizedCrop.flip must be a probability, got {self.flip!r}; 0.5 is usual")

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Refused: these have been decoded."""
        raise InputError("random-resized-crop is taken while images are decoded; use crop-flip for images in memory")

    def draw(self, width: int, height: int, generator: torch.Generator) -> tuple[Box, bool]:
        """The part of an image of that size, and whether to mirror it; the largest that fits where no draw does."""
        flips, *draws = torch.rand(1 + 4 * TRIES, generator=generator, dtype=torch.float64).tolist()
        for trial in range(TRIES):
            area, shape, right, down = draws[4 * trial : 4 * trial + 4]
            size = width * height * (self.smallest + area * (self.largest - self.smallest))
            aspect = self.aspect ** (1 - 2 * shape)
            w, h = max(1, round(math.sqrt(size * aspect))), max(1, round(math.sqrt(size / aspect)))
            if w <= width and h <= height:
                left, upper = int(right * (width - w + 1)), int(down * (height - h + 1))
                return (left, upper, left + w, upper + h), flips < self.flip
        aspect = min(max(width / height, self.aspect), 1 / self.aspect)
        return _middle(width, height, aspect, share=1.0), flips < self.flip


@dataclass(frozen=True)
class CropDraws:
    """What is drawn for an image depends on these and on its position in the set alone."""

    crop: RandomResizedCrop
    seed: int
    purpose: str
    epoch: int

    def of(self, position: int, width: int, height: int) -> tuple[Box, bool]:
        """The part that is taken of the image at that position, and whether it is mirrored."""
        return self.crop.draw(width, height, derived(self.seed, self.purpose, self.epoch, position))


def _middle(width: int, height: int, aspect: float, *, share: float) -> Box:
    w, h = min(width, height * aspect) * share, min(height, width / aspect) * share
    left, upper = (width - w) / 2, (height - h) / 2
    return left, upper, left + w, upper + h


def form_of(files: EncodedImages, number: int) -> ImageForm:
    """From the header alone."""
    with _opened(files, number) as image:
        return _form(image)


def common_form(files: EncodedImages) -> ImageForm:
    """The form of every image, from the headers alone; they must all be the same."""
    form = form_of(files, 0)
    for number in range(1, len(files)):
        other = form_of(files, number)
        if other != form:
            raise InputError(
                f"images must agree in size and color: {files.name(0)} is {form}, {files.name(number)} is {other}; "
                "set data.image_size, to which they are resized, or resize or convert them to one form"
            )
    return form


def decode(
    files: EncodedImages, number: int, form: ImageForm, *, position: int = 0, draws: CropDraws | None = None
) -> npt.NDArray[np.uint8]:
    """(H, W, C): the pixels of an image, or what is drawn of it for its position, in that form."""
    where = files.name(number)
    with _opened(files, number) as image, readable(f"{where}: is damaged", "replace or remove it"):
        found = _form(image)
        if not form.resized and (found.width, found.height, found.color) != (form.width, form.height, form.color):
            raise InputError(f"{where} is {found} and was to be {form}; it has changed, put it back")
        box: Box = (0, 0, found.width, found.height)
        flipped = False
        if draws is not None:
            box, flipped = draws.of(position, found.width, found.height)
        elif (found.width, found.height) != (form.width, form.height):
            box = _middle(found.width, found.height, form.width / form.height, share=MIDDLE)
        pixels = image if box == (0, 0, form.width, form.height) else _coarse(image, box, form)
        across, down = pixels.width / found.width, pixels.height / found.height
        pixels = pixels.convert(form.color)
        if box != (0, 0, form.width, form.height):
            part = box[0] * across, box[1] * down, box[2] * across, box[3] * down
            pixels = pixels.resize((form.width, form.height), Image.Resampling.BILINEAR, box=part)
        values = np.asarray(pixels).reshape(form.height, form.width, len(form.color))
        return values[:, ::-1] if flipped else values


def _coarse(image: Image.Image, box: Box, form: ImageForm) -> Image.Image:
    """The image, of which a JPEG decodes no more pixels than the resized part needs."""
    times = SPARE * max(form.width / (box[2] - box[0]), form.height / (box[3] - box[1]))
    if times <= 0.5:
        image.draft(None, (math.ceil(image.width * times), math.ceil(image.height * times)))
    return image


@contextmanager
def _opened(files: EncodedImages, number: int) -> Iterator[Image.Image]:
    where = files.name(number)
    with (
        readable(f"{where}: cannot be read as an image", "replace or remove it"),
        files.open(number) as stream,
        Image.open(stream, formats=_FORMATS) as image,
    ):
        if "transparency" in image.info or image.mode not in _COLOR:
            raise InputError(
                f"{where}: must be a grey or RGB image of 8 bits without transparency, got mode {image.mode}; "
                "convert it with Pillow: Image.open(f).convert('RGB').save(f)"
            )
        yield image


def _form(image: Image.Image) -> ImageForm:
    return ImageForm(*image.size, _COLOR[image.mode])
