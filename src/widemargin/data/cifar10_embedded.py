"""A few real CIFAR-10 images that come with the package, 100 to train and 60 to test: enough to see that code runs."""

from importlib.resources import as_file, files

import numpy as np
import torch
from PIL import Image

from widemargin.data.idx import read_labels
from widemargin.data.image_set import ImageSet

SIDE = 32


def read_cifar10_embedded(split: str) -> ImageSet:
    """The class-balanced sample in ``embedded/``; see the README there."""
    with as_file(files("widemargin.data") / "embedded") as folder:
        with Image.open(folder / f"cifar10-{split}.png") as sheet:
            pixels = torch.from_numpy(np.array(sheet.convert("RGB")))
        labels = read_labels(folder / f"cifar10-{split}-labels-idx1-ubyte.gz")
    images = pixels.view(-1, SIDE, SIDE, 3).permute(0, 3, 1, 2).contiguous()
    return ImageSet(images, labels, num_classes=10, name="cifar10-embedded")
