"""From a name to images: the data sets known by name, an ``.npz`` file, or a folder of images.

A file that is already there is read, not hashed again: the readers check sizes, and the folder may be the user's own.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from widemargin.data.cifar import find_cifar10, read_cifar10
from widemargin.data.cifar10_embedded import read_cifar10_embedded
from widemargin.data.download import fetch, missing
from widemargin.data.idx import read_images, read_labels
from widemargin.data.image_folder import is_divided, read_image_folder
from widemargin.data.image_set import ImageSet
from widemargin.data.mnist_embedded import read_mnist_embedded
from widemargin.data.npz import has_parts, read_npz
from widemargin.data.places import candidates, data_folder, idx_spellings
from widemargin.data.sources import FIRST_LABELS, SOURCES
from widemargin.errors import InputError, WidemarginWarning

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")


def load(
    name: str | Path,
    split: Split,
    *,
    data_dir: str | Path | None = None,
    download: bool = True,
    limit: int | None = None,
) -> ImageSet:
    """The images of one split, at most ``limit`` of them.

    ``name`` is a key of ``DATASETS``, a path to an ``.npz`` file or to a folder of images. Files are looked for in
    ``data_dir``, else in $WIDEMARGIN_DATA, else in the cache folder, and fetched there if ``download`` allows it.
    """
    if split not in SPLITS:
        raise InputError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if str(name) in DATASETS:
        data = DATASETS[str(name)](split, data_folder(data_dir), download)
    else:
        data = _from_path(Path(name).expanduser(), split)
    return data if limit is None else data.first(limit)


def _embedded(split: Split, folder: Path, download: bool) -> ImageSet:  # noqa: ARG001 - needs no folder
    return read_mnist_embedded(split)


def _cifar10_embedded(split: Split, folder: Path, download: bool) -> ImageSet:  # noqa: ARG001 - needs no folder
    return read_cifar10_embedded(split)


def _mnist(split: Split, folder: Path, download: bool) -> ImageSet:
    return _from_idx("mnist", split, folder, download)


def _fashion_mnist(split: Split, folder: Path, download: bool) -> ImageSet:
    return _from_idx("fashion-mnist", split, folder, download)


def _cifar10(split: Split, folder: Path, download: bool) -> ImageSet:
    for place in candidates(folder, "cifar10"):
        found = find_cifar10(place, split)
        if found:
            return read_cifar10(found, split)
    (archive,) = _obtain("cifar10", split, folder, download)
    return read_cifar10(archive, split)


DATASETS: dict[str, Callable[[Split, Path, bool], ImageSet]] = {
    "mnist-embedded": _embedded,
    "mnist": _mnist,
    "fashion-mnist": _fashion_mnist,
    "cifar10-embedded": _cifar10_embedded,
    "cifar10": _cifar10,
}


def _from_idx(dataset: str, split: Split, folder: Path, download: bool) -> ImageSet:
    pair = _find_idx(dataset, split, folder) or _obtain(dataset, split, folder, download)
    images, labels = read_images(pair[0]), read_labels(pair[1])
    if len(images) != len(labels):
        raise InputError(f"{pair[0]} holds {len(images)} images, {pair[1]} {len(labels)} labels; fetch both again")
    data = ImageSet(images, labels, num_classes=10, name=dataset)
    _check_identity(data, split, pair[1].parent)
    return data


def _find_idx(dataset: str, split: Split, folder: Path) -> list[Path] | None:
    """The images file and the labels file, from one folder."""
    for place in candidates(folder, dataset):
        spelled = [[place / name for name in idx_spellings(file.name)] for file in SOURCES[dataset][split]]
        present = [next((path for path in paths if path.is_file()), None) for paths in spelled]
        pair = [path for path in present if path]
        if len(pair) == len(present):
            return pair
    return None


def _obtain(dataset: str, split: Split, folder: Path, download: bool) -> list[Path]:
    files, place = SOURCES[dataset][split], folder / dataset
    if not download:
        raise missing(files, place, dataset=dataset, reason="files are missing and downloading is off")
    return fetch(files, place, dataset=dataset)


def _check_identity(data: ImageSet, split: Split, folder: Path) -> None:
    """Another data set's files under the same names would be read without complaint, so look at the first labels."""
    first = tuple(data.labels[:10].tolist())
    for other, known in FIRST_LABELS.items():
        if other != data.name and first == known[split]:
            raise InputError(f"{folder} holds {other}, not {data.name}; put the files of {data.name} elsewhere")


def _from_path(path: Path, split: Split) -> ImageSet:
    if path.suffix == ".npz" and path.is_file():
        single = not has_parts(path)
        data = read_npz(path, split)
    elif path.is_dir():
        single = not is_divided(path)
        data = read_image_folder(path, split)
    else:
        raise InputError(
            f"data set {str(path)!r} is unknown: use one of {', '.join(DATASETS)}, the path of an existing .npz file "
            "or the path of an existing folder of images (root/train/<class>/*.png, root/test/<class>/*.png)"
        )
    if single and split == "test":
        warnings.warn(
            f"{path} holds one set, with no test part of its own: all of it serves as test data; "
            "if a model was trained on it, the numbers flatter that model",
            WidemarginWarning,
            stacklevel=3,
        )
    return data
