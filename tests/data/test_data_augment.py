"""Augmentation against a slow version that pads, cuts and mirrors one image at a time."""

import pytest
import torch
from torch import Tensor

from widemargin.data import AUGMENTATIONS, CropFlip, NoAugmentation
from widemargin.errors import InputError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def slowly(images: Tensor, draws: Tensor, padding: int) -> Tensor:
    """One image at a time, one row at a time."""
    _, C, H, W = images.shape
    changed = []
    for image, (down, right, flip) in zip(images, draws.T.tolist(), strict=True):
        canvas = torch.zeros(C, H + 2 * padding, W + 2 * padding, dtype=image.dtype)
        canvas[:, padding : padding + H, padding : padding + W] = image
        cut = canvas[:, down : down + H, right : right + W]
        changed.append(torch.stack([row.flip(-1) for row in cut.unbind(1)], dim=1) if flip else cut)
    return torch.stack(changed)


@pytest.mark.parametrize("padding", [0, 1, 4])
@pytest.mark.parametrize("shape", [(17, 3, 8, 8), (1, 1, 5, 3), (9, 2, 1, 1), (5, 3, 2, 9)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_same_as_slow_version(shape: tuple[int, ...], padding: int, dtype: torch.dtype) -> None:
    images = torch.randint(1, 256, shape, generator=generator(), dtype=torch.uint8).to(dtype)
    augmentation = CropFlip(padding=padding)
    expected = slowly(images, augmentation.draw(shape[0], generator(5)), padding)
    changed = augmentation(images, generator(5))
    assert changed.dtype == dtype
    assert torch.equal(changed, expected)
    assert torch.equal(changed, augmentation(images, generator(5)))


def test_draws_cover_their_range_evenly() -> None:
    down, right, flip = CropFlip(padding=2).draw(50_000, generator())
    for shift in (down, right):
        assert (shift.bincount(minlength=5) / 50_000 - 0.2).abs().max() < 0.01
    assert abs(flip.float().mean() - 0.5) < 0.01
    pairs = (down * 10 + right * 2 + flip).bincount(minlength=50) / 50_000
    assert (pairs - 0.02).abs().max() < 0.004  # the three draws are independent


def test_none_changes_and_draws_nothing() -> None:
    images, source = torch.rand(3, 1, 4, 4), generator()
    before = source.get_state()
    assert NoAugmentation()(images, source) is images
    assert torch.equal(source.get_state(), before)


def test_table_holds_values_that_compare() -> None:
    assert AUGMENTATIONS["none"]() == NoAugmentation()
    assert AUGMENTATIONS["crop-flip"]() == CropFlip(padding=4)


@pytest.mark.parametrize("padding", [-1, 1.5, True])
def test_bad_padding(padding: int) -> None:
    with pytest.raises(InputError, match=r"CropFlip\.padding"):
        CropFlip(padding=padding)
