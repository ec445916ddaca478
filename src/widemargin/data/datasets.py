"""From a name to images: the data sets known by name, an ``.npz`` file, a folder of images, or tar shards.

A named data set is looked for in ``<folder>/<name>`` and ``<folder>``, then fetched from its official addresses. A file
that is already there is read, not hashed again: the readers check sizes, and the folder may be the user's own. What is
fetched is held to its SHA-256 (the MD5 sums are those that publishers list, for people). Pooch writes to a temporary
file beside the destination, compares the checksum and only then renames, so a file under its final name is whole. Where
that fails, one line says what to put where. Pooch and rich are imported when something is fetched, not before.

Two samples come with the package: 12,000 + 3,000 digits of MNIST, so that a first run needs no download, and 100 + 60
real CIFAR-10 images, enough to see that code runs.
"""

import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np
import torch
from PIL import Image

from widemargin.core.files import check_file
from widemargin.data.cifar import CIFAR10, CIFAR100, Cifar, find_cifar, read_cifar
from widemargin.data.idx import memory_limit, read_images, read_labels
from widemargin.data.image_folder import is_divided, open_image_folder
from widemargin.data.image_set import ImageSet
from widemargin.data.image_stream import ImageStream, check_workers
from widemargin.data.npz import has_parts, read_npz
from widemargin.data.svhn import read_svhn
from widemargin.data.tar_shards import is_divided as tar_is_divided
from widemargin.data.tar_shards import is_tar, open_tar_shards
from widemargin.data.tiny_imagenet import ARCHIVE, find_tiny_imagenet, read_tiny_imagenet
from widemargin.errors import InputError, WidemarginWarning

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")
VARIABLE = "WIDEMARGIN_DATA"
_CHUNK = 1 << 16
_PATIENCE = 30  # seconds without an answer


STREAMED_FROM = 2 << 30
"""Bytes, once decoded: sets up to here are held in memory unless told otherwise, which is faster."""


def load(
    name: str | Path,
    split: Split,
    *,
    data_dir: str | Path | None = None,
    download: bool = True,
    limit: int | None = None,
    image_size: int | None = None,
) -> ImageSet:
    """The images of one split, at most ``limit`` of them, in memory.

    ``name`` is a key of ``DATASETS``, a path to an ``.npz`` file, to a folder of images or to tar shards. Files are
    looked for in ``data_dir``, else in $WIDEMARGIN_DATA, else in the cache folder, and fetched there if ``download``
    allows it. Images of a folder or of shards are resized to ``image_size``, or else must be of one size.
    """
    options: dict[str, Any] = {"data_dir": data_dir, "download": download, "limit": limit, "image_size": image_size}
    found = open_images(name, split, **options, streaming=False)
    return found if isinstance(found, ImageSet) else found.in_memory()


def open_images(
    name: str | Path,
    split: Split,
    *,
    data_dir: str | Path | None = None,
    download: bool = True,
    limit: int | None = None,
    image_size: int | None = None,
    streaming: bool | None = None,
    crops: bool = False,
    num_classes: int | None = None,
    workers: int | None = None,
) -> ImageSet | ImageStream:
    """The images of one split, as ``load`` has them: in memory, or decoded as they are needed (``ImageStream``).

    With ``streaming=None`` folders and shards are streamed from 2 GiB on, or where ``crops`` are to be taken of the
    images as they are stored. ``num_classes`` is for shards, which do not say. ``workers`` processes decode.
    """
    if split not in SPLITS:
        raise InputError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    check_workers(workers)
    path = Path(name).expanduser()
    if str(name) in DATASETS or not (path.is_dir() or (path.suffix == ".tar" and path.exists())):
        for option, given in (("data.image_size", image_size is not None), ("data.streaming", streaming)):
            if given:
                raise InputError(
                    f"{option} is for folders of images and tar shards, and {str(name)!r} is none; remove it"
                )
        found = DATASETS[str(name)](split, data_folder(data_dir), download) if str(name) in DATASETS else None
        data = _load_npz(path, split) if found is None else found
        return data if limit is None else data.first(limit)
    if is_tar(path):
        stream = open_tar_shards(path, split, image_size=image_size, num_classes=num_classes, workers=workers)
    else:
        stream = open_image_folder(path, split, image_size=image_size, workers=workers)
    if split == "test" and not (is_divided(path) or tar_is_divided(path)):
        _note_single(path)
    stream = stream if limit is None else stream.first(limit)
    if streaming is None:
        streaming = crops or stream.nbytes > min(STREAMED_FROM, memory_limit())
    return stream if streaming else stream.in_memory()


def data_folder(data_dir: str | Path | None = None) -> Path:
    """The argument, else the environment variable WIDEMARGIN_DATA, else the platform's cache folder."""
    chosen = data_dir or os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    try:
        import pooch
    except ImportError:
        return Path.home() / ".cache" / "widemargin"
    return Path(pooch.os_cache("widemargin"))


def _load_sample(dataset: str, split: Split, folder: Path, download: bool) -> ImageSet:  # noqa: ARG001 - no folder
    """A class-balanced sample in ``embedded/``; see the README there."""
    stem = f"cifar10-{split}" if dataset == "cifar10" else _IDX_STEMS[split]
    with as_file(files("widemargin.data") / "embedded") as embedded:
        if dataset == "cifar10":
            with Image.open(embedded / f"{stem}.png") as sheet:
                pixels = torch.from_numpy(np.array(sheet.convert("RGB")))
            images = pixels.view(-1, 32, 32, 3).permute(0, 3, 1, 2).contiguous()
        else:
            images = read_images(embedded / f"{stem}-images-idx3-ubyte.gz")
        labels = read_labels(embedded / f"{stem}-labels-idx1-ubyte.gz")
    return ImageSet(images, labels, num_classes=10, name=f"{dataset}-embedded")


def _load_cifar(kind: Cifar, split: Split, folder: Path, download: bool) -> ImageSet:
    for place in (folder / kind.name, folder):
        found = find_cifar(kind, place, split)
        if found:
            return read_cifar(kind, found, split)
    (archive,) = _obtain(kind.name, split, folder, download)
    return read_cifar(kind, archive, split)


def _load_svhn(split: Split, folder: Path, download: bool) -> ImageSet:
    (file,) = SOURCES["svhn"][split]
    found = next((place / file.name for place in (folder / "svhn", folder) if (place / file.name).is_file()), None)
    return read_svhn(found or _obtain("svhn", split, folder, download)[0])


def _load_tiny_imagenet(split: Split, folder: Path, download: bool) -> ImageSet:
    found = find_tiny_imagenet(folder / "tiny-imagenet") or find_tiny_imagenet(folder)
    return read_tiny_imagenet(found or _obtain("tiny-imagenet", split, folder, download)[0], split)


def _load_idx(dataset: str, split: Split, folder: Path, download: bool) -> ImageSet:
    pair = _find_idx(dataset, split, folder) or _obtain(dataset, split, folder, download)
    images, labels = read_images(pair[0]), read_labels(pair[1])
    if len(images) != len(labels):
        raise InputError(f"{pair[0]} holds {len(images)} images, {pair[1]} {len(labels)} labels; fetch both again")
    first = tuple(labels[:10].tolist())
    for other, known in FIRST_LABELS.items():  # its files under the same names would be read without complaint
        if other != dataset and first == known[split]:
            raise InputError(f"{pair[1].parent} holds {other}, not {dataset}; put the files of {dataset} elsewhere")
    return ImageSet(images, labels, num_classes=10, name=dataset)


def _find_idx(dataset: str, split: Split, folder: Path) -> list[Path] | None:
    """The images file and the labels file, from one folder."""
    for place in (folder / dataset, folder):  # its own folder first: some data sets share file names
        pair = []
        for name in (file.name for file in SOURCES[dataset][split]):
            gzipped_or_not = (name, name.removesuffix(".gz"))
            spelled = (*gzipped_or_not, *(other.replace("-idx", ".idx") for other in gzipped_or_not))
            pair += [place / other for other in spelled if (place / other).is_file()][:1]
        if len(pair) == 2:
            return pair
    return None


DATASETS: dict[str, Callable[[Split, Path, bool], ImageSet]] = {
    "mnist-embedded": partial(_load_sample, "mnist"),
    "mnist": partial(_load_idx, "mnist"),
    "fashion-mnist": partial(_load_idx, "fashion-mnist"),
    "cifar10-embedded": partial(_load_sample, "cifar10"),
    "cifar10": partial(_load_cifar, CIFAR10),
    "cifar100": partial(_load_cifar, CIFAR100),
    "svhn": _load_svhn,
    "tiny-imagenet": _load_tiny_imagenet,
}


def _load_npz(path: Path, split: Split) -> ImageSet:
    if path.suffix != ".npz" or not path.is_file():
        raise InputError(
            f"data set {str(path)!r} is unknown: use one of {', '.join(DATASETS)}, the path of an existing .npz file "
            "or the path of an existing folder of images (root/train/<class>/*.png, root/test/<class>/*.png) or of tar "
            "shards (root/train/*.tar, root/test/*.tar)"
        )
    if split == "test" and not has_parts(path):
        _note_single(path)
    return read_npz(path, split)


def _note_single(path: Path) -> None:
    warnings.warn(
        f"{path} holds one set, with no test part of its own: all of it serves as test data; "
        "if a model was trained on it, the numbers flatter that model",
        WidemarginWarning,
        stacklevel=3,
    )


# Official files


@dataclass(frozen=True)
class OfficialFile:
    """One published file: its name, the addresses to try in turn, and its checksums."""

    name: str
    urls: tuple[str, ...]
    md5: str
    sha256: str


def _official(name: str, mirrors: tuple[str, ...], checksums: str) -> OfficialFile:
    """``checksums`` are the MD5 and the SHA-256 sum."""
    return OfficialFile(name, tuple(mirror + name for mirror in mirrors), *checksums.split())


_IDX_STEMS: dict[Split, str] = {"train": "train", "test": "t10k"}


def _idx_files(mirrors: tuple[str, ...], *checksums: str) -> dict[str, tuple[OfficialFile, ...]]:
    """Images and labels of each split; ``checksums`` are theirs in this order, train before test."""
    parts = [f"{stem}-{part}-ubyte.gz" for stem in _IDX_STEMS.values() for part in ("images-idx3", "labels-idx1")]
    files = [_official(name, mirrors, sums) for name, sums in zip(parts, checksums, strict=True)]
    return {"train": tuple(files[:2]), "test": tuple(files[2:])}


_KRIZHEVSKY = ("https://www.cs.toronto.edu/~kriz/",)
_CIFAR10 = _official(
    "cifar-10-binary.tar.gz",
    _KRIZHEVSKY,
    "c32a1d4ab5d03f1284b67883e8d87530 c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
_CIFAR100 = _official(
    "cifar-100-binary.tar.gz",
    _KRIZHEVSKY,
    "03b5dce01913d631647c71ecec9e9cb8 58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
)
_SVHN = ("http://ufldl.stanford.edu/housenumbers/",)
_SVHN_TRAIN = _official(
    "train_32x32.mat",
    _SVHN,
    "e26dedcc434d2e4c54c9b2d4a06d8373 435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
)
_SVHN_TEST = _official(
    "test_32x32.mat",
    _SVHN,
    "eb5a983be6a315427106f1b164d9cef3 cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
)
_TINY_IMAGENET = _official(
    ARCHIVE,
    ("http://cs231n.stanford.edu/",),
    "90528d7ca1a48142e341f4ef8d21d0de 6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
)

SOURCES: dict[str, dict[str, tuple[OfficialFile, ...]]] = {
    "mnist": _idx_files(
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        "f68b3c2dcbeaaa9fbdd348bbdeb94873 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "d53e105ee54ea40749a09fcbcd1e9432 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "9fb629c4189551a2d022fa330f9573f3 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "ec29112dd5afa0611ce80d1b7f02629c f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "fashion-mnist": _idx_files(
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        ),
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d 3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "25c81989df183df01b3e8a0aad5dffbe a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "bef4ecab320f06d8554ea6380940ec79 346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "bb300cfdad3c16e7a12a480ee83cd310 67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    "cifar10": {"train": (_CIFAR10,), "test": (_CIFAR10,)},
    "cifar100": {"train": (_CIFAR100,), "test": (_CIFAR100,)},
    "svhn": {"train": (_SVHN_TRAIN,), "test": (_SVHN_TEST,)},
    "tiny-imagenet": {"train": (_TINY_IMAGENET,), "test": (_TINY_IMAGENET,)},
}
"""The files of each split; of an idx pair, images come first and labels second."""

FIRST_LABELS: dict[str, dict[str, tuple[int, ...]]] = {
    "mnist": {"train": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4), "test": (7, 2, 1, 0, 4, 1, 4, 9, 5, 9)},
    "fashion-mnist": {"train": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5), "test": (9, 2, 1, 1, 6, 1, 4, 6, 5, 7)},
}
"""MNIST and Fashion-MNIST use the same file names; the first labels tell one from the other."""


def _obtain(dataset: str, split: Split, folder: Path, download: bool) -> list[Path]:
    wanted, place = SOURCES[dataset][split], folder / dataset
    if not download:
        raise _missing(wanted, place, dataset=dataset, reason="files are missing and downloading is off")
    return fetch(wanted, place, dataset=dataset)


def fetch(files: Iterable[OfficialFile], folder: Path, *, dataset: str) -> list[Path]:
    """Download those of ``files`` that ``folder`` lacks; return where each one is."""
    wanted = list(files)
    for file in wanted:
        check_file(folder / file.name)
        if not (folder / file.name).is_file():
            _fetch_one(file, folder, wanted, dataset)
    return [folder / file.name for file in wanted]


def _missing(files: Iterable[OfficialFile], folder: Path, *, dataset: str, reason: str) -> InputError:
    """The one line for the user: why it failed, and which files to put where."""
    needed = [file for file in files if not (folder / file.name).is_file()]
    places = "; ".join(f"put {file.urls[0]} (md5 {file.md5}) at {folder / file.name}" for file in needed)
    return InputError(f"{dataset}: {reason}; {places}; or use the data set 'mnist-embedded', which needs no file")


def _fetch_one(file: OfficialFile, folder: Path, wanted: list[OfficialFile], dataset: str) -> None:
    """Try each address in turn."""
    try:
        import pooch
    except ImportError as error:
        reason = "files are missing and the package pooch, which downloads them, is not installed"
        raise _missing(wanted, folder, dataset=dataset, reason=reason) from error
    failure: Exception | None = None
    for url in file.urls:
        try:
            with _ProgressBar(file.name) as bar:
                loader = pooch.HTTPDownloader(progressbar=bar, chunk_size=_CHUNK, timeout=_PATIENCE)
                pooch.retrieve(url, f"sha256:{file.sha256}", file.name, folder, downloader=loader)
            (folder / file.name).chmod(0o644)  # pooch's temporary files are for the owner only
            return
        except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong checksum is a ValueError
            failure = error
    hosts = ", ".join(urlsplit(url).netloc for url in file.urls)
    reason = f"cannot download {file.name} from {hosts} ({_brief(failure)})"
    raise _missing(wanted, folder, dataset=dataset, reason=reason) from failure


def _brief(error: Exception | None) -> str:
    if type(error).__name__ == "ConnectionError":  # of requests; its own words are a page of nested causes
        return "no connection"
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}{'...' if len(text) > 160 else ''}"


class _ProgressBar:
    """A progress bar of rich in the form that pooch drives: ``total``, ``update``, ``reset``, ``close``."""

    def __init__(self, title: str) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

        from widemargin.core.screen import console_for

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        console = console_for(stderr=True)
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task(title, total=None)
        self.total = 0

    def __enter__(self) -> "_ProgressBar":
        self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._progress.stop()

    def update(self, size: int) -> None:
        """``size`` more bytes have come."""
        self._progress.update(self._task, advance=size, total=self.total or None)

    def reset(self) -> None:
        """Begin at 0 again; pooch does so before it fills the bar."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Nothing to do: leaving the ``with`` block stops the bar."""
