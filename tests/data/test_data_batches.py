"""Batches: every image once, a resumed epoch like a whole one, and augmentation against a slow version of it."""

import pytest
import torch
from torch import Tensor

from widemargin.core.batch_share import sharing
from widemargin.core.randomness import derived, uniform
from widemargin.data import (
    AUGMENTATIONS,
    Batch,
    Batches,
    CropFlip,
    ImageSet,
    NoAugmentation,
    epoch_order,
    in_order,
)
from widemargin.errors import InputError


def toy(n: int = 11) -> ImageSet:
    images = torch.randint(0, 256, (n, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return ImageSet(images, torch.arange(n) % 4, num_classes=4, name="toy")


def same(a: Batch, b: Batch) -> bool:
    tensors = all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("indices", "images", "labels"))
    return a.step == b.step and tensors


@pytest.mark.parametrize(("size", "drop_last", "steps"), [(4, False, 3), (4, True, 2), (11, True, 1), (99, False, 1)])
def test_every_image_once(size: int, drop_last: bool, steps: int) -> None:
    data = toy()
    batches = Batches(data=data, batch_size=size, seed=0, drop_last=drop_last)
    found = list(batches.epoch(3))
    assert len(found) == batches.steps_per_epoch == steps
    seen = torch.cat([batch.indices for batch in found])
    assert torch.equal(seen, epoch_order(11, seed=0, epoch=3)[: len(seen)])
    assert len(seen.unique()) == (11 if not drop_last else steps * size)
    for batch in found:
        assert torch.equal(batch.images, data.floats()[batch.indices])
        assert torch.equal(batch.labels, data.labels[batch.indices])


def test_augmentation_depends_on_seed_epoch_and_step() -> None:
    batches = Batches(data=toy(), batch_size=4, seed=7, augmentation=CropFlip(padding=2))
    for batch in batches.epoch(2):
        expected = CropFlip(padding=2)(toy().images[batch.indices], derived(7, "augment", 2, batch.step))
        assert torch.equal(batch.images, expected.float() / 255)


@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_resuming_gives_the_rest_of_the_epoch(start: int) -> None:
    batches = Batches(data=toy(), batch_size=4, seed=7, augmentation=CropFlip())
    whole, rest = list(batches.epoch(5)), list(batches.epoch(5, start_step=start))
    assert len(rest) == len(whole) - start
    assert all(same(a, b) for a, b in zip(whole[start:], rest, strict=True))


def test_order_is_a_permutation_that_changes() -> None:
    orders = [epoch_order(50, seed=seed, epoch=epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert all(order.sort().values.tolist() == list(range(50)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 3
    assert torch.equal(orders[0], epoch_order(50, seed=0, epoch=0))


def test_global_randomness_is_left_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    list(Batches(data=toy(), batch_size=4, seed=7, augmentation=CropFlip()).epoch(0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("size", [1, 4, 11, 50])
def test_in_order(size: int) -> None:
    data = toy()
    images, labels = (torch.cat(parts) for parts in zip(*in_order(data, size), strict=True))
    assert torch.equal(images, data.floats())
    assert torch.equal(labels, data.labels)


def test_float_images_are_never_written_to() -> None:
    data = ImageSet(toy().floats(), toy().labels, num_classes=4, name="toy")
    before = data.images.clone()
    for batch in Batches(data=data, batch_size=4, seed=0).epoch(0):
        batch.images.zero_()
    assert torch.equal(data.images, before)


@pytest.mark.parametrize("size", [0, -1, 2.0, True])
def test_sizes_are_checked(size: int) -> None:
    with pytest.raises(InputError, match="batch_size"):
        Batches(data=toy(), batch_size=size, seed=0)
    with pytest.raises(InputError, match="batch_size"):
        in_order(toy(), size)


def test_other_refusals() -> None:
    with pytest.raises(InputError, match="drop_last=False"):
        Batches(data=toy(), batch_size=12, seed=0, drop_last=True)
    for start in (-1, 4):
        with pytest.raises(InputError, match=r"start_step must be in \[0, 3\]"):
            Batches(data=toy(), batch_size=4, seed=0).epoch(0, start_step=start)
    for padding in (-1, 1.5, True):
        with pytest.raises(InputError, match=r"CropFlip\.padding"):
            CropFlip(padding=padding)  # type: ignore[arg-type]


def test_a_share_is_rows_of_the_batch_that_every_process_augments_whole() -> None:
    class Noisy:
        def __call__(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            return (images * uniform(images.shape, generator=generator, dtype=torch.float32)).to(torch.uint8)

    (whole,) = Batches(data=toy(), batch_size=11, seed=0, augmentation=Noisy()).epoch(0)
    for rank in range(2):
        (part,) = Batches(data=toy(), batch_size=11, seed=0, augmentation=Noisy(), rank=rank, processes=2).epoch(0)
        assert part.share is not None
        with sharing(part.share):
            assert torch.equal(part.images, whole.images[part.share.rows])
        assert torch.equal(part.labels, whole.labels[part.share.rows])
        assert part.size == 11


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


def test_none_changes_and_draws_nothing_and_the_table_holds_values_that_compare() -> None:
    images, source = torch.rand(3, 1, 4, 4), generator()
    before = source.get_state()
    assert NoAugmentation()(images, source) is images
    assert torch.equal(source.get_state(), before)
    assert (AUGMENTATIONS["none"](), AUGMENTATIONS["crop-flip"]()) == (NoAugmentation(), CropFlip(padding=4))
