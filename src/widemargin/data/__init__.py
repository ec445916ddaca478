"""Data: readers, one form to hold images in, splits, augmentation and resumable batches."""

from widemargin.data.augment import AUGMENTATIONS, Augmentation, CropFlip, DrawnBefore, NoAugmentation, is_drawn_before
from widemargin.data.batches import Batch, Batches, Picked, epoch_order, in_order
from widemargin.data.catalog import DATASETS, SPLITS, Split, load
from widemargin.data.cifar import read_cifar10
from widemargin.data.idx import read_images, read_labels
from widemargin.data.image_folder import read_image_folder
from widemargin.data.image_set import ImageSet, as_floats
from widemargin.data.npz import read_npz
from widemargin.data.places import data_folder
from widemargin.data.split import stratified_split

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
    "NoAugmentation",
    "Picked",
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
