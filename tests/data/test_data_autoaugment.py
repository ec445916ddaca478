"""AutoAugment: every operation against Pillow's, image by image and bit by bit; the policy by its frequencies."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from widemargin.data import AUGMENTATIONS, AutoAugment, Chain, CropFlip, CutMix, load
from widemargin.data.autoaugment import OPERATIONS, POLICY, operate
from widemargin.data.batch_augmentation import apply, augment, draw
from widemargin.errors import InputError

FILL = 128


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(count: int, channels: int, height: int, width: int) -> Tensor:
    """Of all values, of a few dark ones, and of one."""
    shape = (count, channels, height, width)
    images = torch.randint(0, 256, shape, generator=generator(), dtype=torch.uint8)
    images[1::3] = images[1::3] // 13 + 20
    images[2] = 77
    return images


def affine(*matrix: float) -> Callable[[Image.Image], Image.Image]:
    return lambda image: image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=grey(image))


def grey(image: Image.Image) -> Any:
    return FILL if image.mode == "L" else (FILL,) * 3


def enhanced(kind: type) -> Callable[[Image.Image, int], Image.Image]:
    return lambda image, level: kind(image).enhance(1 + 0.1 * level)


# The operation by Pillow at a level from -9 to 9: strengths as the paper's ranges in ten steps.
PILLOW: dict[str, Callable[[Image.Image, int], Image.Image]] = {
    "none": lambda image, level: image,
    "shear-y": lambda image, level: affine(1, 0, 0, 0.3 * level / 9, 1, 0)(image),
    "translate-x": lambda image, level: affine(1, 0, 150 / 331 * image.width * level / 9, 0, 1, 0)(image),
    "translate-y": lambda image, level: affine(1, 0, 0, 0, 1, 150 / 331 * image.height * level / 9)(image),
    "rotate": lambda image, level: image.rotate(30 * level / 9, fillcolor=grey(image)),
    "invert": lambda image, level: ImageOps.invert(image),
    "solarize": lambda image, level: ImageOps.solarize(image, np.linspace(256, 0, 10)[abs(level)]),
    "posterize": lambda image, level: ImageOps.posterize(image, round(np.linspace(8, 4, 10)[abs(level)])),
    "autocontrast": lambda image, level: ImageOps.autocontrast(image),
    "equalize": lambda image, level: ImageOps.equalize(image),
    "brightness": enhanced(ImageEnhance.Brightness),
    "contrast": enhanced(ImageEnhance.Contrast),
    "color": enhanced(ImageEnhance.Color),
    "sharpness": enhanced(ImageEnhance.Sharpness),
}


def by_pillow(image: Tensor, operation: str, level: int) -> Tensor:
    pixels = image.permute(1, 2, 0).numpy()
    made = Image.fromarray(pixels if len(image) == 3 else pixels[..., 0])
    changed = np.array(PILLOW[operation](made, level))
    return torch.from_numpy(changed.reshape(pixels.shape)).permute(2, 0, 1)


PHOTOS = load("cifar10-embedded", "train").images[::9]
SHAPES = {
    "photos": PHOTOS,
    "noise": noise(9, 3, 32, 32),
    "large": noise(6, 3, 64, 64),
    "odd": noise(6, 3, 33, 41),
    "flat": noise(6, 3, 2, 7),
    "one pixel": noise(6, 3, 1, 1),
    "grey": noise(9, 1, 28, 28),
}


@pytest.mark.parametrize("images", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_pillows(operation: str, images: Tensor) -> None:
    """At every level; one batch holds all of an image's."""
    levels = range(-9, 10)
    whole = images.repeat_interleave(len(levels), dim=0)
    wanted = torch.stack([by_pillow(image, operation, level) for image, level in product(images, levels)])
    numbers = torch.full((len(whole),), OPERATIONS.index(operation))
    found = operate(whole, numbers, torch.tensor([*levels] * len(images)).double(), FILL)
    assert found.dtype == torch.uint8
    assert torch.equal(found, wanted)


def slowly(images: Tensor, draws: Tensor) -> Tensor:
    """Image by image, one operation and then the other."""
    changed = []
    for image, drawn in zip(images, draws.T.int().tolist(), strict=True):
        for number, level in (drawn[:2], drawn[2:]):
            image = by_pillow(image, OPERATIONS[number], level)
        changed.append(image)
    return torch.stack(changed)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_is_its_images_one_by_one(channels: int) -> None:
    images = PHOTOS.repeat(20, 1, 1, 1)[:, :channels]
    made = AutoAugment()
    draws = made.draw(len(images), generator(7))
    assert len(draws.unique(dim=1).T) > 40
    assert torch.equal(made(images, generator(7)), slowly(images, draws))


def test_floating_point_images_are_rounded_where_something_acts() -> None:
    images = PHOTOS.repeat(6, 1, 1, 1)
    floats = (images / 255 + 1e-4).clamp(0, 1)
    made = AutoAugment()
    draws = made.draw(len(images), generator(3))
    untouched = (draws[0] == 0) & (draws[2] == 0)
    assert 0 < untouched.sum() < len(images)
    found, wanted = made.apply(floats, draws), made.apply(images, draws)
    assert torch.equal(found[untouched], floats[untouched])
    assert torch.equal(found[~untouched], wanted[~untouched] / 255)


def test_what_moves_in_is_the_fill() -> None:
    draws = torch.tensor([[3.0], [9.0], [0.0], [0.0]])  # by 14.5 pixels, 15 rounded
    for fill, value in ((0.0, 0), (0.5, 128), (1.0, 255)):
        moved = AutoAugment(fill=fill).apply(torch.full((1, 3, 32, 32), 7, dtype=torch.uint8), draws)
        assert (moved[:, :, 17:] == value).all()
        assert (moved[:, :, :17] == 7).all()


def test_the_policy_by_its_frequencies() -> None:
    """All pairs of outcomes of both operations, drawn 200,000 times, against what the table says."""
    count = 200_000
    drawn = AutoAugment().draw(count, generator(11)).int()
    expected: dict[tuple[int, ...], float] = {}
    for pair in POLICY:
        outcomes = []
        for name, probability, level in pair:
            number = OPERATIONS.index(name)
            signs = [(number, sign * level, probability / 2) for sign in (-1, 1)]
            outcomes.append([(0, 0, 1 - probability), *signs])
        for first, second in product(*outcomes):
            key = (*first[:2], *second[:2])
            expected[key] = expected.get(key, 0) + first[2] * second[2] / len(POLICY)
    assert sum(expected.values()) == pytest.approx(1)
    kinds, counts = drawn.unique(dim=1, return_counts=True)
    found = {tuple(kind): n for kind, n in zip(kinds.T.tolist(), counts.tolist(), strict=True)}
    assert set(found) <= {key for key, chance in expected.items() if chance > 0}
    for key, chance in expected.items():
        deviation = (count * chance * (1 - chance)) ** 0.5
        assert abs(found.get(key, 0) - count * chance) <= 4.5 * deviation, key


PUBLISHED = {
    "invert": (3, 2, 13),
    "contrast": (2, 8, 13),
    "rotate": (1, 7, 2),
    "translate-x": (2, 8, 17),
    "sharpness": (5, 28, 24),
    "shear-y": (2, 7, 15),
    "translate-y": (5, 34, 39),
    "autocontrast": (7, 50, 26),
    "equalize": (9, 47, 41),
    "posterize": (1, 3, 7),
    "color": (5, 29, 27),
    "brightness": (4, 23, 25),
    "solarize": (4, 19, 18),
}
"""By operation, summed over the public port's table: how often it stands there, tenths of probability, levels."""


def test_the_policy_is_the_published_one() -> None:
    found = dict.fromkeys(OPERATIONS[1:], (0, 0, 0))
    for name, probability, level in (part for pair in POLICY for part in pair):
        often, chance, levels = found[name]
        found[name] = often + 1, chance + round(10 * probability), levels + level
    assert found == PUBLISHED
    assert len(POLICY) == 25


def test_in_a_chain() -> None:
    images, labels = PHOTOS.repeat(2, 1, 1, 1), torch.arange(24) % 10
    whole = Chain((CropFlip(), AutoAugment(), CutMix()))
    draws = draw(whole, len(images), generator(5))
    found, shares = apply(whole, images, labels[: len(images)], 10, draws)
    again, same = augment(whole, images, labels[: len(images)], 10, generator(5))
    assert torch.equal(found, again)
    assert torch.equal(shares, same)
    moved = CropFlip().apply(images, draws[:3])
    assert torch.equal(found, CutMix().apply(slowly(moved, draws[3:7]), draws[7:]))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("name", [name for name in AUGMENTATIONS if name != "random-resized-crop"])  # drawn by image
def test_no_augmentation_looks_at_a_value_or_makes_a_tensor_elsewhere(name: str, dtype: torch.dtype) -> None:
    """So that a CUDA graph can hold it: on ``meta`` there are no values, and no other device mixes with it."""
    made = AUGMENTATIONS[name]()
    images = torch.zeros(4, 3, 32, 32, dtype=dtype, device="meta")
    labels = torch.zeros(4, dtype=torch.int64, device="meta")
    found, shares = apply(made, images, labels, 10, draw(made, 4, generator()).to("meta"))
    assert (found.shape, found.dtype, found.device) == (images.shape, dtype, images.device)
    assert shares.device == images.device


def test_refusals() -> None:
    with pytest.raises(InputError, match=r"AutoAugment\.fill must be a grey in \[0, 1\], got 128"):
        AUGMENTATIONS["autoaugment"](fill=128)
    with pytest.raises(InputError, match="AutoAugment is for grey or RGB images, got 2 channels"):
        AutoAugment()(torch.zeros(2, 2, 4, 4), generator())
