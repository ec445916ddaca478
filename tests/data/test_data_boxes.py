"""CutMix, Cutout and random erasing: against a published implementation, and against loops over images and pixels."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from oracles import golden
from widemargin.data import AUGMENTATIONS, Chain, CropFlip, CutMix, Cutout, RandomErasing
from widemargin.data.batch_augmentation import apply, augment, draw
from widemargin.data.boxes import ATTEMPTS
from widemargin.errors import InputError

SHAPES = [(17, 3, 8, 8), (1, 1, 5, 3), (9, 2, 1, 1), (5, 3, 2, 9), (8, 3, 32, 32)]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> Tensor:
    images = torch.randint(0, 256, shape, generator=generator(), dtype=torch.uint8)
    return images if dtype == torch.uint8 else images.to(dtype) / 255


@pytest.mark.parametrize("case", range(6))
def test_cutmix_equals_the_published_one(case: int) -> None:
    stored = {k.removeprefix(f"cutmix/case{case}/"): v for k, v in golden("augmentation").items()}
    x, y = stored["cutmix/x"].float(), stored["cutmix/y"]
    center = (stored["centre"] + 0.5) / 8
    drawn = torch.stack([stored["permutation"], *(v.expand(8) for v in (stored["lam_drawn"], *center))])
    images, shares = apply(CutMix(), x, y, 10, drawn.float())
    torch.testing.assert_close(images, stored["x"].float(), rtol=0, atol=1e-6)
    torch.testing.assert_close(shares, stored["y"].float(), rtol=0, atol=1e-6)


def box_pixels(image: Tensor, center_y: float, center_x: float, height: int, width: int) -> list[tuple[int, int]]:
    """The pixels of a box around the center, one by one."""
    _, H, W = image.shape
    y, x = int(center_y * H), int(center_x * W)
    rows = [i for i in range(y - height // 2, y + height // 2) if 0 <= i < H]
    return [(i, j) for i in rows for j in range(x - width // 2, x + width // 2) if 0 <= j < W]


def cutmix_slowly(augmentation: CutMix, images: Tensor, draws: Tensor) -> tuple[Tensor, list[float]]:
    changed, inside = images.clone(), []
    _, _, H, W = images.shape
    for n, (other, kept, center_y, center_x) in enumerate(draws.T.tolist()):
        cut = (1 - kept) ** 0.5
        pixels = box_pixels(images[n], center_y, center_x, int(H * cut), int(W * cut))
        for i, j in pixels:
            changed[n, :, i, j] = images[int(other), :, i, j]
        inside.append(len(pixels) / (H * W))
    return changed, inside


def cutout_slowly(augmentation: Cutout, images: Tensor, draws: Tensor) -> Tensor:
    changed = images.clone()
    for n, center in enumerate(draws.T.tolist()):
        for i, j in box_pixels(images[n], *center, augmentation.size, augmentation.size):
            changed[n, :, i, j] = filled(images, augmentation.fill)
    return changed


def erasing_slowly(augmentation: RandomErasing, images: Tensor, draws: Tensor) -> Tensor:
    changed = images.clone()
    _, _, H, W = images.shape
    for n, drawn in enumerate(draws.T.tolist()):
        if drawn[0] >= augmentation.probability:
            continue
        for attempt in range(ATTEMPTS):
            area, aspect, y, x = drawn[1 + attempt :: ATTEMPTS]
            pixels = (augmentation.smallest + (augmentation.largest - augmentation.smallest) * area) * H * W
            ratio = augmentation.aspect + (1 / augmentation.aspect - augmentation.aspect) * aspect
            height, width = round((pixels * ratio) ** 0.5), round((pixels / ratio) ** 0.5)
            if height < H and width < W:
                top, left = int(y * (H - height + 1)), int(x * (W - width + 1))
                changed[n, :, top : top + height, left : left + width] = filled(images, augmentation.fill)
                break
    return changed


def filled(images: Tensor, fill: float) -> float:
    return fill if images.is_floating_point() else round(255 * fill)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("made", [CutMix(), CutMix(parts=3, alpha=0.4), CutMix(probability=0.4, parts=9)], ids=str)
def test_cutmix_same_as_slow_version(made: CutMix, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    images, labels = noise(shape, dtype), torch.arange(shape[0]) % 4
    draws = made.draw(shape[0], generator(5))
    expected, inside = cutmix_slowly(made, images, draws)
    changed, shares = augment(made, images, labels, 4, generator(5))
    assert changed.dtype == dtype
    assert torch.equal(changed, expected)
    assert torch.equal(changed, made(images, generator(5)))
    for n, (other, part) in enumerate(zip(draws[0].int().tolist(), inside, strict=True)):
        row = torch.zeros(4)
        row[labels[n]] += 1 - part
        row[labels[other]] += part
        torch.testing.assert_close(shares[n], row)


SLOW: dict[str, tuple[Any, Callable[[Any, Tensor, Tensor], Tensor]]] = {
    "cutout": (Cutout(size=4), cutout_slowly),
    "cutout-odd": (Cutout(size=7, fill=0.0), cutout_slowly),
    "erasing": (RandomErasing(), erasing_slowly),
    "erasing-always": (RandomErasing(probability=1.0, smallest=0.5, largest=0.9, fill=1.0), erasing_slowly),
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", SLOW)
def test_same_as_slow_version(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    made, slowly = SLOW[name]
    images = noise(shape, dtype)
    changed = made(images, generator(5))
    assert changed.dtype == dtype
    assert torch.equal(changed, slowly(made, images, made.draw(shape[0], generator(5))))


def test_the_published_constants() -> None:
    boxes = RandomErasing().apply(torch.ones(20_000, 1, 32, 32), RandomErasing().draw(20_000, generator())) != 1
    erased = boxes.flatten(1).any(1)
    assert abs(erased.float().mean() - 0.5) < 0.02
    area = boxes[erased].flatten(1).float().mean(1)
    assert 0.015 < area.min() < area.max() < 0.42
    assert abs(area.mean() - 0.21) < 0.02
    high, wide = (boxes[erased, 0].any(axis).sum(1).float() for axis in (2, 1))
    assert 0.2 < (high / wide).min() < (high / wide).max() < 5
    cut = Cutout()(torch.ones(4000, 1, 32, 32), generator()) != 1
    assert cut.flatten(1).sum(1).max() == 16 * 16
    kept = CutMix().draw(1, generator())[1]
    many = torch.cat([CutMix().draw(1, generator(seed))[1] for seed in range(1000)])
    assert 0 < kept < 1
    assert abs(many.mean() - 0.5) < 0.05  # Beta(1, 1) is uniform
    assert abs(many.var() - 1 / 12) < 0.01


def test_every_part_of_a_batch_is_mixed_by_itself() -> None:
    draws = CutMix(parts=4).draw(10, generator())
    ends = [0, 2, 5, 7, 10]
    for start, stop in pairwise(ends):
        assert sorted(draws[0, start:stop].int().tolist()) == list(range(start, stop))
        assert (draws[1:, start:stop] == draws[1:, start : start + 1]).all()
    assert len(draws[1].unique()) == 4


CHAINS = [
    (CropFlip(padding=2), CutMix()),
    (CutMix(), Cutout(size=4), CutMix(parts=2)),
    (RandomErasing(), CropFlip(padding=1)),
]


@pytest.mark.parametrize("parts", CHAINS, ids=str)
def test_a_chain_is_one_after_the_other(parts: tuple[Any, ...]) -> None:
    images, labels, source = noise((7, 3, 8, 8)), torch.arange(7) % 4, generator(3)
    expected, shares = images, torch.nn.functional.one_hot(labels, 4).float()
    for part in parts:
        draws = part.draw(7, source)
        if isinstance(part, CutMix):
            shares = part.mix(shares, draws, (8, 8))
        expected = part.apply(expected, draws)
    whole = Chain(parts)
    for changed, targets in (
        augment(whole, images, labels, 4, generator(3)),
        apply(whole, images, labels, 4, draw(whole, 7, generator(3))),
    ):
        assert torch.equal(changed, expected)
        assert torch.equal(targets, shares if any(isinstance(part, CutMix) for part in parts) else labels)
    assert torch.equal(whole(images, generator(3)), expected)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("cutmix", {"alpha": 0.0}, r"CutMix\.alpha must be a positive number, got 0.0; 1 is as published"),
        ("cutmix", {"probability": 0.0}, r"CutMix\.probability must be a probability in \(0, 1\]"),
        ("cutmix", {"parts": 0}, r"CutMix\.parts must be a whole number of at least 1"),
        ("cutout", {"size": 1}, r"Cutout\.size must be at least 2 pixels"),
        ("cutout", {"fill": 128}, r"Cutout\.fill must be a grey in \[0, 1\], got 128; 0 is black"),
        ("random-erasing", {"largest": 0.01}, r"smallest and largest must be shares .* got 0.02 and 0.01"),
        ("random-erasing", {"largest": 1.0}, r"0.02 and 0.4 are as published"),
        ("random-erasing", {"aspect": 2.0}, r"RandomErasing\.aspect must be in \(0, 1\], got 2.0"),
        ("random-erasing", {"probability": 1.5}, r"RandomErasing\.probability"),
    ],
)
def test_refusals(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AUGMENTATIONS[name](**settings)
