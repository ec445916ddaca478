"""AutoAugment's policy for CIFAR (Cubuk et al., CVPR 2019), on a whole batch at a time.

Each image gets one of the paper's 25 sub-policies: two operations, one after the other, each with its own probability
and strength (a level from 0 to 9 of the paper's ranges; where an operation has two directions, either is as likely).
It comes after the crop and the flip: ``["crop-flip", "autoaugment"]``.

The operations are Pillow's, to the bit, on values 0 to 255; floating-point images are rounded to these where something
acts on them. The authors' own training code is another policy: 95 sub-policies, levels of a tenth, and enhancement in
one direction only. What the field trains with instead, as here and in torchvision, is the paper's table, with ranges
of shear 0.3, translation 150/331 of the side, rotation 30 degrees, solarization from 256 down to 0, 8 to 4 bits, and
enhancement by factors 0.1 to 1.9. Pixels are moved to the nearest one, and what comes in from outside is grey: in
torchvision it is black, a translation is rounded down and solarization begins at 255; in DeepVoltaire's port a shear is
bicubic.

All images pass through all kinds of operations, of which each may leave them as they are: so the shapes are the same
in every step, and a CUDA graph can hold it. There are three kinds: moving pixels, changing values by a table of each
channel, and blending with the grey or the smoothed image.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from widemargin.data.batch_augmentation import DrawnAugmentation
from widemargin.data.boxes import check_fill
from widemargin.errors import InputError

# fmt: off
POLICY = (
    (("invert", 0.1, 7), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate-x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear-y", 0.5, 8), ("translate-y", 0.7, 9)),
    (("autocontrast", 0.5, 8), ("equalize", 0.9, 2)),
    (("shear-y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 5), ("equalize", 0.5, 1)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate-x", 0.5, 8)),
    (("equalize", 0.3, 7), ("autocontrast", 0.4, 8)),
    (("translate-y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 3)),
    (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
    (("equalize", 0.2, 8), ("equalize", 0.6, 4)),
    (("color", 0.9, 9), ("equalize", 0.6, 6)),
    (("autocontrast", 0.8, 4), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("autocontrast", 0.9, 3)),
    (("translate-y", 0.9, 9), ("translate-y", 0.7, 9)),
    (("autocontrast", 0.9, 2), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 8), ("invert", 0.1, 3)),
    (("translate-y", 0.7, 9), ("autocontrast", 0.9, 1)),
)
"""Pairs of (operation, probability, level): the paper's table of the policy found on CIFAR-10."""
# fmt: on
OPERATIONS = (
    *("none", "shear-y", "translate-x", "translate-y", "rotate"),
    *("invert", "solarize", "posterize", "autocontrast", "equalize", "brightness", "contrast"),
    *("color", "sharpness"),
)
"""By what they do: move pixels, change values by a table, blend. Draws hold the position here."""
LEVELS = 9
"""The highest; 0 leaves an image as it is, but for those operations that know no strength."""


@dataclass(frozen=True, kw_only=True)
class AutoAugment(DrawnAugmentation):
    """AutoAugment's policy for CIFAR: two operations on each image, by one of 25 pairs; ``fill`` is what moves in.

    It is for grey and RGB images, usually after the crop and the flip: ``["crop-flip", "autoaugment"]``.
    """

    fill: float = 0.5
    rows: ClassVar[int] = 4

    def __post_init__(self) -> None:
        check_fill("AutoAugment", self.fill)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """(4, count): the first operation and its level, negative for the other direction; the second and its level."""
        which = torch.randint(len(POLICY), (count,), generator=generator)
        chances = torch.rand(2, count, generator=generator)
        signs = 2 * torch.randint(2, (2, count), generator=generator) - 1
        operations, probabilities, levels = (
            torch.tensor([[part[column] for part in pair] for pair in _TABLE], dtype=torch.float64)[which].T
            for column in range(3)
        )
        happens = chances < probabilities
        drawn = torch.stack([operations * happens, levels * signs * happens], dim=1)
        return drawn.flatten(0, 1).float()

    def apply(self, images: Tensor, draws: Tensor) -> Tensor:
        """The images after both operations."""
        if images.shape[1] not in (1, 3):
            raise InputError(f"AutoAugment is for grey or RGB images, got {images.shape[1]} channels; remove it")
        values = (images * 255).round().to(torch.uint8) if images.is_floating_point() else images
        for operation, level in draws.view(2, 2, -1):
            values = operate(values, operation.long(), level.double(), round(255 * self.fill))
        if not images.is_floating_point():
            return values
        acts = (draws[0] + draws[2] > 0)[:, None, None, None]
        return torch.where(acts, values.to(images.dtype) / 255, images)


_TABLE = [[(OPERATIONS.index(name), p, level) for name, p, level in pair] for pair in POLICY]

Chosen = dict[str, Tensor]
"""By operation, (B,): which images get it."""


def operate(images: Tensor, operation: Tensor, level: Tensor, fill: int) -> Tensor:
    """uint8 images, each after its operation (B,) at its signed level (B,)."""
    numbers = torch.arange(len(OPERATIONS), device=images.device)
    chosen = dict(zip(OPERATIONS, operation == numbers[:, None], strict=True))
    moved = _moved(images, chosen, level, fill)
    grey = _grey(moved)
    return _blended(_toned(moved, grey, chosen, level), grey, chosen, level)


# Moving pixels


def _moved(images: Tensor, chosen: Chosen, level: Tensor, fill: int) -> Tensor:
    """Every pixel from the nearest one before an affine map, computed in 1/65536 of a pixel as Pillow does."""
    B, C, H, W = images.shape
    strength = level / LEVELS
    angle = torch.pi / 6 * strength * chosen["rotate"]
    cos, sin = angle.cos(), angle.sin()
    shear = 0.3 * strength * chosen["shear-y"]
    right = 150 / 331 * W * strength * chosen["translate-x"] + W / 2 * (1 - cos) + H / 2 * sin
    down = 150 / 331 * H * strength * chosen["translate-y"] + H / 2 * (1 - cos) - W / 2 * sin
    # x' = cos x - sin y + right, y' = (sin + shear) x + cos y + down, at the centers of the pixels
    rows = ((cos, -sin, right + (cos - sin) / 2), (sin + shear, cos, down + (sin + shear + cos) / 2))
    y, x = (torch.arange(size, device=images.device, dtype=torch.int32) for size in (H, W))
    columns = []
    for factors in rows:
        by_x, by_y, start = ((65536 * factor + 0.5).floor().int()[:, None, None] for factor in factors)
        columns.append((start + by_y * y[:, None] + by_x * x) >> 16)
    from_x, from_y = columns
    inside = (from_x >= 0) & (from_x < W) & (from_y >= 0) & (from_y < H)
    place = (from_y.clamp(0, H - 1) * W + from_x.clamp(0, W - 1)).long()
    found = images.flatten(2).gather(2, place.view(B, 1, -1).expand(B, C, -1)).view_as(images)
    return torch.where(inside.unsqueeze(1), found, fill)


# Changing values


def _grey(images: Tensor) -> Tensor:
    """(B, 1, H, W) int32: brightness by the weights of ITU-R 601-2, rounded as Pillow does."""
    if images.shape[1] == 1:
        return images.int()
    red, green, blue = images.int().split(1, dim=1)
    total: Tensor = 19595 * red + 38470 * green + 7471 * blue + 32768
    return total.bitwise_right_shift(16)


def _toned(images: Tensor, grey: Tensor, chosen: Chosen, level: Tensor) -> Tensor:
    """Every value by the table (256 values) of its image and channel."""
    B, C = images.shape[:2]
    values = torch.arange(256, device=images.device)
    places = images.reshape(B, C, -1).long()
    chosen, level = {name: which[:, None, None] for name, which in chosen.items()}, level[:, None, None]
    threshold = 256 * (1 - level.abs() / LEVELS) * ~chosen["invert"]
    dropped = (4 * level.abs() / LEVELS).round().long()
    mean = (grey.double().mean((1, 2, 3)) + 0.5).floor()[:, None, None] * chosen["contrast"]
    table = values.expand(B, C, 256)
    for which, changed in (
        (chosen["invert"] | chosen["solarize"], torch.where(values < threshold, values, 255 - values)),
        (chosen["posterize"], (values >> dropped) << dropped),
        (chosen["autocontrast"], _stretched(places, values)),
        (chosen["equalize"], _equalized(places, values)),
        (chosen["brightness"] | chosen["contrast"], _between(mean, values, level)),
    ):
        table = torch.where(which, changed, table)
    return table.to(torch.uint8).gather(2, places).view_as(images)


def _stretched(places: Tensor, values: Tensor) -> Tensor:
    """Each channel's darkest value to 0 and its brightest to 255."""
    low, high = (bound.unsqueeze(2).double() for bound in places.aminmax(dim=2))
    scale = torch.full_like(low, 255) / (high - low)
    stretched = (values * scale + -low * scale).trunc().clamp(0, 255)
    return torch.where(high > low, stretched, values)


def _equalized(places: Tensor, values: Tensor) -> Tensor:
    """Each channel's values spread so that as many pixels lie in every part of the range."""
    B, C, N = places.shape
    flat = (places + 256 * torch.arange(B * C, device=places.device).view(B, C, 1)).flatten()
    ones = torch.ones((), dtype=torch.int32, device=places.device).expand_as(flat)
    counts = ones.new_zeros(B * C * 256).scatter_add_(0, flat, ones).view(B, C, 256).long()
    brightest = counts.gather(2, places.amax(2, keepdim=True))
    step = (N - brightest) // 255
    below = counts.cumsum(2) - counts
    spread = ((step // 2 + below) // step.clamp_min(1)).clamp(0, 255)
    return torch.where(step > 0, spread, values)


def _between(one: Tensor, other: Tensor, level: Tensor) -> Tensor:
    """From the one through the other and beyond, by a factor of 1 and a tenth a level."""
    factor = (1 + level * (0.9 / LEVELS)).float()
    return (one.float() + factor * (other - one).float()).clamp(0, 255).trunc()


# Blending


def _blended(images: Tensor, grey: Tensor, chosen: Chosen, level: Tensor) -> Tensor:
    """Images away from, or towards, their grey (color) or smoothed (sharpness) selves."""
    color, sharpness = (chosen[name][:, None, None, None] for name in ("color", "sharpness"))
    plain = torch.where(color, grey, _smoothed(images))
    changed = _between(plain, images, level[:, None, None, None])
    return torch.where(color | sharpness, changed, images).to(torch.uint8)


def _smoothed(images: Tensor) -> Tensor:
    """float32: each pixel five times and its eight neighbors once, over 13, rounded; those at the border stay."""
    smooth = images.float()
    if min(images.shape[2:]) >= 3:
        rows = smooth[:, :, :-2] + smooth[:, :, 1:-1] + smooth[:, :, 2:]
        total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * smooth[:, :, 1:-1, 1:-1]
        smooth[:, :, 1:-1, 1:-1] = (total / 13 + 0.5).floor()  # never a half: 13 is odd
    return smooth
