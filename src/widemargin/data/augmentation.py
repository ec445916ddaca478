"""The augmentations there are, by name: what is done to training images before a step sees them.

``crop-flip`` is the usual one of CIFAR, ``random-resized-crop`` that of ImageNet, for streamed
images. Several are a list, done in this order: ``["crop-flip", "cutmix"]``.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from widemargin.data.autoaugment import AutoAugment
from widemargin.data.batch_augmentation import DrawnAugmentation
from widemargin.data.boxes import CutMix, Cutout, RandomErasing
from widemargin.data.decoding import RandomResizedCrop
from widemargin.errors import InputError


@dataclass(frozen=True)
class NoAugmentation(DrawnAugmentation):
    """Images as they are."""

    rows: ClassVar[int] = 0

    def draw(self, count: int, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Nothing."""
        return torch.empty(0, count, dtype=torch.int64)

    def apply(self, images: Tensor, draws: Tensor) -> Tensor:  # noqa: ARG002
        """Return the batch untouched."""
        return images


@dataclass(frozen=True)
class CropFlip(DrawnAugmentation):
    """Shift by up to ``padding`` pixels in each direction, zeros coming in, then mirror every other image or so."""

    padding: int = 4
    rows: ClassVar[int] = 3

    def __post_init__(self) -> None:
        if isinstance(self.padding, bool) or not isinstance(self.padding, int) or self.padding < 0:
            raise InputError(f"CropFlip.padding must be a whole number of pixels from 0 up, got {self.padding!r}")

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """(3, count): rows down and columns right into the padded image, and 1 where to flip. On the CPU."""
        shifts = torch.randint(0, 2 * self.padding + 1, (2, count), generator=generator)
        flips = torch.randint(0, 2, (1, count), generator=generator)
        return torch.cat([shifts, flips])

    def apply(self, images: Tensor, draws: Tensor) -> Tensor:
        """Pad, crop and flip as ``draw`` says; one gather for the whole batch."""
        B, C, H, W = images.shape
        down, right, flip = draws.long()
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


AUGMENTATIONS: dict[str, type] = {
    "none": NoAugmentation,
    "crop-flip": CropFlip,
    "autoaugment": AutoAugment,
    "cutmix": CutMix,
    "cutout": Cutout,
    "random-erasing": RandomErasing,
    "random-resized-crop": RandomResizedCrop,
}
