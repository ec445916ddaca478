"""What a captured step reads is the batch: filled in, gathered, augmented. The same code runs on every device."""

import pytest
import torch

from widemargin.core.batch_share import BatchShare
from widemargin.data import Batch, Batches, CropFlip, ImageSet, NoAugmentation
from widemargin.training.graphed_step import CopyInputs, GatherInputs, inputs_for, kind_of


class Inverting:
    """An augmentation that draws as it goes."""

    def __call__(self, images, generator):
        return torch.where(torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5, 255 - images, images)


class InvertingToo(CropFlip):
    """One that does more than it draws."""

    def __call__(self, images, generator):
        return 255 - super().__call__(images, generator)


def batches(augmentation, **others):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (11, 3, 6, 6), dtype=torch.uint8, generator=generator)
    data = ImageSet(images, torch.arange(11) % 4, num_classes=4, name="toy")
    return list(Batches(data=data, batch_size=4, seed=7, augmentation=augmentation, **others).epoch(2))


GATHERED = [NoAugmentation(), CropFlip(padding=2)]
COPIED = [Inverting(), InvertingToo()]


@pytest.mark.parametrize("augmentation", [*GATHERED, *COPIED])
def test_what_is_read_is_the_batch_that_was_filled_in(augmentation):
    found, again = batches(augmentation), batches(augmentation)
    held = inputs_for(found[0])
    assert isinstance(held, GatherInputs if augmentation in GATHERED else CopyInputs)
    assert kind_of(found[0]) != kind_of(found[-1])  # three images: another graph
    for batch, expected in zip(found[:-1], again[:-1], strict=True):
        assert kind_of(batch) == kind_of(found[0])
        held.fill(batch)
        images, labels = held.read()
        assert torch.equal(images, expected.images)
        assert torch.equal(labels, expected.labels)


def test_a_batch_that_is_made_or_shared_is_copied():
    picked = batches(CropFlip())[0]
    made = Batch(0, picked.indices, picked.images, picked.labels)
    assert isinstance(inputs_for(made), CopyInputs)
    share = next(batch for batch in batches(CropFlip(), rank=1, processes=2))
    assert isinstance(share.share, BatchShare)
    assert isinstance(inputs_for(share), CopyInputs)
    with pytest.raises(TypeError, match="a picked batch is due, this is a Batch"):
        inputs_for(picked).fill(made)


def test_nothing_is_made_until_somebody_looks():
    picked = batches(NoAugmentation())[0]
    inputs_for(picked).fill(picked)
    assert picked.size == 4
    assert not {"images", "labels"} & set(vars(picked))
    assert picked.images is picked.images
