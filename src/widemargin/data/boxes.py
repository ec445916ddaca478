"""Augmentations by boxes: CutMix puts part of another image into one, Cutout and random erasing take a part away.

CutMix (Yun et al., 2019), as Rebuffi et al. (2021) train with it: with lambda ~ Beta(alpha, alpha), a box of
int(H sqrt(1 - lambda)) x int(W sqrt(1 - lambda)) pixels around a uniform center, cut off at the border, comes from
the image that a permutation puts here; lambda is then what is left of the image, and the label lambda of the one and
1 - lambda of the other. There is one box and one permutation for the whole batch; ``parts`` cuts it into so many, each
with its own, as in training on several devices (Rebuffi et al.: 4).

Cutout (DeVries and Taylor, 2017) erases a square around a uniform center, cut off at the border. Random erasing (Zhong
et al., 2020) erases, from an image in two, a box inside it of a random share of the area and a random aspect ratio,
height by width. Both are published after the normalization, where they erase to the mean color: nearer to the
grey that is the default here than to black.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from widemargin.core.checks import check_count, check_number
from widemargin.data.batch_augmentation import DrawnAugmentation
from widemargin.errors import InputError


@dataclass(frozen=True)
class Boxes:
    """Rows ``top`` to ``bottom`` and columns ``left`` to ``right`` (B,), the ends not included."""

    top: Tensor
    bottom: Tensor
    left: Tensor
    right: Tensor

    @staticmethod
    def around(center_y: Tensor, center_x: Tensor, height: Tensor, width: Tensor, size: tuple[int, int]) -> "Boxes":
        """From half the height (rounded down) before the center to as much after it, cut off at the border."""
        H, W = size
        return Boxes(
            (center_y - height // 2).clamp(0, H),
            (center_y + height // 2).clamp(0, H),
            (center_x - width // 2).clamp(0, W),
            (center_x + width // 2).clamp(0, W),
        )

    def area(self) -> Tensor:
        """Pixels (B,)."""
        return (self.bottom - self.top) * (self.right - self.left)

    def mask(self, images: Tensor) -> Tensor:
        """(B, 1, H, W): which pixels are inside."""
        y, x = (torch.arange(size, device=images.device) for size in images.shape[-2:])
        rows = (y >= self.top[:, None]) & (y < self.bottom[:, None])
        columns = (x >= self.left[:, None]) & (x < self.right[:, None])
        return (rows[:, :, None] & columns[:, None, :]).unsqueeze(1)


def _pixel(uniform: Tensor, size: int) -> Tensor:
    """Numbers in [0, 1) as positions 0 to size - 1."""
    return (uniform * size).long().clamp_max(size - 1)


@dataclass(frozen=True, kw_only=True)
class CutMix(DrawnAugmentation):
    """Put a box of another image into each, and mix their labels by area; for losses with a cross-entropy.

    The other images are those of the batch in another order; an image may get a box of itself. ``probability`` is how
    often a batch (of ``parts``, a part of it) is mixed at all.
    """

    alpha: float = 1.0
    probability: float = 1.0
    parts: int = 1
    rows: ClassVar[int] = 4

    def __post_init__(self) -> None:
        check_number(
            "CutMix.alpha", self.alpha, is_valid=lambda a: a > 0, rule="a positive number", hint="1 is as published"
        )
        _check_probability("CutMix", self.probability)
        check_count("CutMix.parts", self.parts)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """(4, count): the number of the other image; lambda, and the center's row and column as parts of the size."""
        ends = [count * part // self.parts for part in range(self.parts + 1)]
        drawn = []
        for start, stop in pairwise(ends):
            other = start + torch.randperm(stop - start, generator=generator)
            one, two = torch._standard_gamma(torch.full((2,), self.alpha, dtype=torch.float64), generator=generator)
            happens, *center = torch.rand(3, generator=generator)
            kept = one / (one + two) if happens < self.probability else torch.ones(())
            box = torch.stack([kept.float(), *center]).unsqueeze(1).expand(3, stop - start)
            drawn.append(torch.cat([other.float().unsqueeze(0), box]))
        return torch.cat(drawn, dim=1)

    def apply(self, images: Tensor, draws: Tensor) -> Tensor:
        """Images with the box of another in them."""
        height, width = images.shape[-2:]
        mask = self._boxes(draws, (height, width)).mask(images)
        return torch.where(mask, images[draws[0].long()], images)

    def mix(self, shares: Tensor, draws: Tensor, size: tuple[int, int]) -> Tensor:
        """By what is inside the box and what is outside."""
        inside = (self._boxes(draws, size).area() / (size[0] * size[1])).unsqueeze(1)
        return (1 - inside) * shares + inside * shares[draws[0].long()]

    def _boxes(self, draws: Tensor, size: tuple[int, int]) -> Boxes:
        _, kept, center_y, center_x = draws
        height, width = ((side * (1 - kept).sqrt()).long() for side in size)
        return Boxes.around(_pixel(center_y, size[0]), _pixel(center_x, size[1]), height, width, size)


@dataclass(frozen=True, kw_only=True)
class Cutout(DrawnAugmentation):
    """Erase a square of ``size`` pixels around a random center, to ``fill``; published: 16 on CIFAR-10, 8 on CIFAR-100.

    What reaches over the border is not made up for.
    """

    size: int = 16
    fill: float = 0.5
    rows: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_count("Cutout.size", self.size)
        if self.size < 2:
            raise InputError("Cutout.size must be at least 2 pixels, got 1: half of it, rounded down, is no pixel")
        check_fill("Cutout", self.fill)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """(2, count): the center's row and column as parts of the size."""
        return torch.rand(2, count, generator=generator)

    def apply(self, images: Tensor, draws: Tensor) -> Tensor:
        """Images without the square."""
        height, width = images.shape[-2:]
        side = torch.full_like(draws[0], self.size, dtype=torch.int64)
        centers = _pixel(draws[0], height), _pixel(draws[1], width)
        return _erased(images, Boxes.around(*centers, side, side, (height, width)), self.fill)


ATTEMPTS = 10
"""Boxes drawn for an image, of which the first that fits is taken; the published code tries a hundred."""


@dataclass(frozen=True, kw_only=True)
class RandomErasing(DrawnAugmentation):
    """Erase a random box, to ``fill``: its share of the area and its aspect ratio are uniform between two bounds."""

    probability: float = 0.5
    smallest: float = 0.02
    largest: float = 0.4
    aspect: float = 0.3
    fill: float = 0.5
    rows: ClassVar[int] = 1 + 4 * ATTEMPTS

    def __post_init__(self) -> None:
        _check_probability("RandomErasing", self.probability)
        if not 0 < self.smallest <= self.largest < 1:
            raise InputError(
                f"RandomErasing.smallest and largest must be shares of the area, 0 < smallest <= largest < 1, got "
                f"{self.smallest!r} and {self.largest!r}; 0.02 and 0.4 are as published"
            )
        if not 0 < self.aspect <= 1:
            raise InputError(
                f"RandomErasing.aspect must be in (0, 1], got {self.aspect!r}; the aspect ratio is drawn from it to "
                "one over it, and 0.3 is as published"
            )
        check_fill("RandomErasing", self.fill)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """(1 + 4 attempts, count), uniform: whether; then by attempt the area, the aspect ratio, the place."""
        return torch.rand(self.rows, count, generator=generator)

    def apply(self, images: Tensor, draws: Tensor) -> Tensor:
        """Images without the box; one that no attempt fits into stays as it is."""
        H, W = images.shape[-2:]
        area, aspect, y, x = draws[1:].view(4, ATTEMPTS, -1)
        pixels = (self.smallest + (self.largest - self.smallest) * area) * H * W
        ratio = self.aspect + (1 / self.aspect - self.aspect) * aspect
        height, width = (pixels * ratio).sqrt().round().long(), (pixels / ratio).sqrt().round().long()
        fits = (height < H) & (width < W)
        first = fits.to(torch.int8).argmax(0, keepdim=True)
        height, width, y, x = (values.gather(0, first)[0] for values in (height, width, y, x))
        happens = (draws[0] < self.probability) & fits.any(0)
        top = torch.minimum((y * (H - height + 1)).long(), H - height)
        left = torch.minimum((x * (W - width + 1)).long(), W - width)
        boxes = Boxes(top, top + torch.where(happens, height, 0), left, left + width)
        return _erased(images, boxes, self.fill)


def _erased(images: Tensor, boxes: Boxes, fill: float) -> Tensor:
    """The boxes filled, in the images' own scale."""
    return images.masked_fill(boxes.mask(images), fill if images.is_floating_point() else round(255 * fill))


def _check_probability(owner: str, probability: float) -> None:
    check_number(
        f"{owner}.probability",
        probability,
        is_valid=lambda p: 0 < p <= 1,
        rule="a probability in (0, 1]",
        hint="remove the augmentation to have it never",
    )


def check_fill(owner: str, fill: float) -> None:
    """Refuse what is no grey."""
    check_number(
        f"{owner}.fill", fill, is_valid=lambda v: 0 <= v <= 1, rule="a grey in [0, 1]", hint="0 is black, 1 white"
    )
