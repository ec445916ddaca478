"""The digits that come with the package: 12,000 to train and 3,000 to test, so that a first run needs no download."""

from importlib.resources import as_file, files

from widemargin.data.idx import read_images, read_labels
from widemargin.data.image_set import ImageSet

STEMS = {"train": "train", "test": "t10k"}


def read_mnist_embedded(split: str) -> ImageSet:
    """The class-balanced part of MNIST in ``embedded/``; see the README there."""
    with as_file(files("widemargin.data") / "embedded") as folder:
        images = read_images(folder / f"{STEMS[split]}-images-idx3-ubyte.gz")
        labels = read_labels(folder / f"{STEMS[split]}-labels-idx1-ubyte.gz")
    return ImageSet(images, labels, num_classes=10, name="mnist-embedded")
