"""Random changes to training images, a whole batch at a time on its device.

What an augmentation draws comes from a CPU generator and is then moved, so that every device sees the same images.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

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
