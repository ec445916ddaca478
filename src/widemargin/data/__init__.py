"""Data: readers, one form to hold images in, splits, augmentation and resumable batches."""

from widemargin.data.augmentation import AUGMENTATIONS, CropFlip, NoAugmentation
from widemargin.data.autoaugment import AutoAugment
from widemargin.data.batch_augmentation import Augmentation, Chain, DrawnAugmentation, MixesLabels
from widemargin.data.batches import Batch, Batches, LazyBatch, epoch_order, in_order
from widemargin.data.boxes import CutMix, Cutout, RandomErasing
from widemargin.data.cifar import read_cifar10, read_cifar100
from widemargin.data.datasets import DATASETS, SPLITS, Split, data_folder, load, open_images
from widemargin.data.decoding import RandomResizedCrop
from widemargin.data.extra import ExtraImages, open_extra
from widemargin.data.idx import read_images, read_labels
from widemargin.data.image_folder import read_image_folder
from widemargin.data.image_set import ImageSet, as_floats, stratified_split
from widemargin.data.image_stream import ImageStream
from widemargin.data.loader_images import LoaderImages
from widemargin.data.npz import read_npz
from widemargin.data.svhn import read_svhn
from widemargin.data.tiny_imagenet import read_tiny_imagenet

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "SPLITS",
    "Augmentation",
    "AutoAugment",
    "Batch",
    "Batches",
    "Chain",
    "CropFlip",
    "CutMix",
    "Cutout",
    "DrawnAugmentation",
    "ExtraImages",
    "ImageSet",
    "ImageStream",
    "LazyBatch",
    "LoaderImages",
    "MixesLabels",
    "NoAugmentation",
    "RandomErasing",
    "RandomResizedCrop",
    "Split",
    "as_floats",
    "data_folder",
    "epoch_order",
    "in_order",
    "load",
    "open_extra",
    "open_images",
    "read_cifar10",
    "read_cifar100",
    "read_image_folder",
    "read_images",
    "read_labels",
    "read_npz",
    "read_svhn",
    "read_tiny_imagenet",
    "stratified_split",
]
