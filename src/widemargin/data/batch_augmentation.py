"""What an augmentation is: random changes to training images, a whole batch at a time on its device.

What it draws comes from a CPU generator and is then moved, so that every device sees the same images. Most come in two
halves, ``draw`` and ``apply``: a CUDA graph can hold the second. One that mixes images mixes their labels too: from
there on a label is a row of shares (B, K), how much of the image is of each class.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import one_hot


class Augmentation(Protocol):
    """(images (B, C, H, W) float or uint8, generator) -> images of the same shape, type and device."""

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Change a batch."""


class DrawnAugmentation:
    """The base of an augmentation in two halves: what it draws, on the CPU, and what it does, without a random number.

    ``draws`` is (rows, B): so many numbers for each image.
    """

    rows: ClassVar[int]

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Draw, then change the batch."""
        return self.apply(images, self.draw(len(images), generator).to(images.device, non_blocking=True))

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """The draws for so many images, on the CPU."""
        raise NotImplementedError

    def apply(self, images: Tensor, draws: Tensor) -> Tensor:
        """The images changed as drawn; the draws are on their device."""
        raise NotImplementedError


@runtime_checkable
class MixesLabels(Protocol):
    """An augmentation in two halves that makes one image of several, which then has several labels."""

    def mix(self, shares: Tensor, draws: Tensor, size: tuple[int, int]) -> Tensor:
        """The shares (B, K) after ``apply`` of these draws to images of this height and width, from those before."""


@dataclass(frozen=True)
class Chain:
    """Several augmentations, one after the other."""

    parts: tuple[Augmentation, ...]

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The images; what becomes of their labels is for ``augment``."""
        for part in self.parts:
            images = part(images, generator)
        return images


def parts_of(augmentation: Augmentation) -> tuple[Augmentation, ...]:
    """The augmentations of a chain, or the one that it is."""
    return augmentation.parts if isinstance(augmentation, Chain) else (augmentation,)


def mixes_labels(augmentation: Augmentation) -> bool:
    """Whether labels become shares."""
    return any(isinstance(part, MixesLabels) for part in parts_of(augmentation))


def without_mixing(augmentation: Augmentation) -> Augmentation:
    """What is done to each image by itself, so that it keeps its label."""
    return Chain(tuple(part for part in parts_of(augmentation) if not isinstance(part, MixesLabels)))


def is_drawn_before(augmentation: Augmentation) -> bool:
    """Whether calling it is drawing, then applying; one of your own may do something else."""
    return all(type(part).__call__ is DrawnAugmentation.__call__ for part in parts_of(augmentation))


def draw(augmentation: Augmentation, count: int, generator: torch.Generator) -> Tensor:
    """All draws of an augmentation that is drawn before: those of each part, below one another."""
    return torch.cat([part.draw(count, generator).float() for part in _drawn(augmentation)])


def apply(
    augmentation: Augmentation, images: Tensor, labels: Tensor, num_classes: int, draws: Tensor
) -> tuple[Tensor, Tensor]:
    """(images, labels) changed as ``draw`` says; the labels are shares where something mixes."""
    for part in _drawn(augmentation):
        own, draws = draws[: part.rows], draws[part.rows :]
        images, labels = part.apply(images, own), _mixed(part, labels, num_classes, own, images)
    return images, labels


def augment(
    augmentation: Augmentation, images: Tensor, labels: Tensor, num_classes: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """(images, labels) changed by any augmentation; the labels are shares where something mixes."""
    for part in parts_of(augmentation):
        if isinstance(part, DrawnAugmentation) and isinstance(part, MixesLabels):
            own = part.draw(len(images), generator).to(images.device, non_blocking=True)
            images, labels = part.apply(images, own), _mixed(part, labels, num_classes, own, images)
        else:
            images = part(images, generator)
    return images, labels


def _drawn(augmentation: Augmentation) -> Iterator[DrawnAugmentation]:
    return (cast(DrawnAugmentation, part) for part in parts_of(augmentation))


def _mixed(part: DrawnAugmentation, labels: Tensor, num_classes: int, draws: Tensor, images: Tensor) -> Tensor:
    if not isinstance(part, MixesLabels):
        return labels
    shares = labels if labels.is_floating_point() else one_hot(labels, num_classes).float()
    height, width = images.shape[-2:]
    return part.mix(shares, draws, (height, width))
