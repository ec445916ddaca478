"""Data: readers, one form to hold images in, splits, augmentation and resumable batches."""

from widemargin.data.augmentation import (
    AUGMENTATIONS,
    Augmentation,
    CropFlip,
    DrawnBefore,
    NoAugmentation,
    is_drawn_before,
)
from widemargin.data.batches import Batch, Batches, LazyBatch, epoch_order, in_order
from widemargin.data.cifar import read_cifar10
from widemargin.data.datasets import DATASETS, SPLITS, Split, data_folder, load
from widemargin.data.idx import read_images, read_labels
from widemargin.data.image_folder import read_image_folder
from widemargin.data.image_set import ImageSet, as_floats, stratified_split
from widemargin.data.npz import read_npz

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "SPLITS",
    "Augmentation",
    "Batch",
    "Batches",
    "CropFlip",
    "DrawnBefore",
    "ImageSet",
    "LazyBatch",
    "NoAugmentation",
    "Split",
    "as_floats",
    "data_folder",
    "epoch_order",
    "in_order",
    "is_drawn_before",
    "load",
    "read_cifar10",
    "read_image_folder",
    "read_images",
    "read_labels",
    "read_npz",
    "stratified_split",
]
