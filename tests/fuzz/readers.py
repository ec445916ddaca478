"""Every reader of the package with real files for it, small ones.

A packed file (gzip, zip, a checksum) is also changed inside and packed again, so that the reader behind the packing is
reached and not only the packing's own checks.
"""

import gzip
import hashlib
import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save

from data_files import (
    cifar100_binary,
    cifar_binary,
    cifar_python2,
    idx,
    mat,
    mat_array,
    npy,
    tar_of,
    tiny_imagenet,
    zip_of,
)
from report_folders import write_evaluation, write_result, write_run, write_sweep
from widemargin.cli.report import references
from widemargin.config.checkpoint import Checkpoint, Description, load_checkpoint, restore_model, save_checkpoint
from widemargin.config.toml import read_toml, to_dict, to_toml
from widemargin.data import load, read_cifar10, read_cifar100, read_svhn, read_tiny_imagenet
from widemargin.data.cifar import read_python_batch
from widemargin.data.idx import read_images, read_labels
from widemargin.data.image_folder import read_image_folder
from widemargin.data.npz import has_parts, read_npz
from widemargin.data.tar_shards import open_tar_shards
from widemargin.errors import InputError
from widemargin.evaluation.target import load_model
from widemargin.models import MLPConfig
from widemargin.recipes import all_recipes
from widemargin.report import write_report

RECORDS = 2
IMAGES = 6


def _as_it_is(content: bytes) -> bytes:
    return content


@dataclass(frozen=True)
class Reader:
    """Real files, the name they have, how they are packed after a change, and what reads them."""

    files: tuple[bytes, ...]
    name: str
    read: Callable[[Path], object]
    pack: Callable[[bytes], bytes] = field(default=_as_it_is)
    sealed: bool = False
    """Whether any change at all must be seen."""


@cache
def digits() -> np.ndarray:
    """(IMAGES, 28, 28), real ones."""
    return load("mnist-embedded", "test", limit=IMAGES).images[:, 0].numpy()


@cache
def photos() -> np.ndarray:
    """(IMAGES, 3, 32, 32), real ones."""
    return load("cifar10-embedded", "test", limit=IMAGES).images.numpy()


def idx_images() -> bytes:
    return idx(digits())


def idx_labels() -> bytes:
    return idx(np.arange(IMAGES, dtype=np.uint8))


def binary_batch() -> bytes:
    return cifar_binary(photos()[:RECORDS], list(range(RECORDS)))


def python_batch() -> bytes:
    return cifar_python2(photos()[:RECORDS], [3, 8])


def npz(save: Callable[..., None] = np.savez, prefix: str = "", images: np.ndarray | None = None) -> bytes:
    stream = io.BytesIO()
    arrays = {f"{prefix}images": digits() if images is None else images, f"{prefix}labels": np.arange(IMAGES) % 3}
    save(stream, **arrays, num_classes=np.array(10))
    return stream.getvalue()


def picture(form: str, **options: object) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(photos()[0].transpose(1, 2, 0)).save(stream, form, **options)
    return stream.getvalue()


def _shard(ending: str, label: bytes) -> bytes:
    return tar_of(
        {f"{n}.{part}": label if part == ending else _pictures()[n] for n in (0, 1) for part in ("png", ending)}
    )


def _tar_shard(path: Path) -> object:
    return open_tar_shards(path, "train").in_memory()


def _image_folder(path: Path) -> object:
    """The file is one image of two."""
    root = path.parent / "images"
    for name in ("a", "b"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "a" / "1.png").write_bytes(path.read_bytes())
    if not (root / "b" / "1.png").exists():
        (root / "b" / "1.png").write_bytes(picture("PNG"))
    return read_image_folder(root, "test")


def _cifar(path: Path) -> object:
    if path.suffix == ".gz":
        return read_cifar10(path, "test", records_per_batch=RECORDS)
    folder = path.parent / "cifar"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    (folder / path.name).write_bytes(path.read_bytes())
    return read_cifar10(folder, "test", records_per_batch=RECORDS)


def _cifar100(path: Path) -> object:
    return read_cifar100(path, "test", records_per_batch=RECORDS)


def _digits() -> np.ndarray:
    return np.arange(1, IMAGES + 1, dtype=np.uint8)[:, None]


def svhn(**form: bool) -> bytes:
    return mat({"X": photos().transpose(2, 3, 1, 0), "y": _digits()}, **form)


@cache
def tiny_files() -> dict[str, bytes]:
    """Two classes of two photos."""
    large = photos()[:4].repeat(2, axis=2).repeat(2, axis=3).transpose(0, 2, 3, 1)
    return tiny_imagenet(["n1", "n2"], large.reshape(2, 2, 64, 64, 3), val=2)


def _tiny(path: Path) -> object:
    parts = (read_tiny_imagenet(path, split, classes=2, per_class=2) for split in ("train", "test"))
    return [part.images for part in parts]


def _tiny_member(name: str, *others: bytes) -> Reader:
    """A zip file of which this member is changed inside."""
    name = f"tiny-imagenet-200/{name}"
    files = tiny_files()
    return Reader((files[name], *others), "a.zip", _tiny, lambda content: zip_of(files | {name: content}))


_WNIDS = "tiny-imagenet-200/wnids.txt"


def _mat_inside() -> bytes:
    return mat_array("X", photos().transpose(2, 3, 1, 0), deflated=False)


def _deflated_again(content: bytes) -> bytes:
    """A file of these labels and of what is here, deflated."""
    packed = zlib.compress(content, 1)
    return svhn()[:128] + struct.pack("<2I", 15, len(packed)) + packed + mat({"y": _digits()})[128:]


def _npz(path: Path) -> object:
    return has_parts(path), read_npz(path, "train")


def _restored(path: Path) -> object:
    checkpoint = load_checkpoint(path)
    return checkpoint.description.run_config(), restore_model(checkpoint, source=path)


def _judgeable(path: Path) -> object:
    return load_model(str(path), image_shape=(1, 4, 4))


def network() -> torch.nn.Module:
    return MLPConfig(hidden=(5,)).build(image_shape=(1, 4, 4), num_classes=3, seed=0)


def checkpoint_bytes(folder: Path) -> bytes:
    recipe = next(iter(all_recipes().values())).config
    table = to_dict(recipe) | {"model": {"kind": "mlp", "hidden": [5]}}
    description = Description(
        which="last",
        selection="the last step trained",
        config=table,
        image_shape=(1, 4, 4),
        num_classes=3,
        epoch=3,
        step=0,
        scores={"test_clean": 91.0},
        versions={"torch": "2.13"},
    )
    path = folder / "real.safetensors"
    save_checkpoint(path, Checkpoint(dict(network().state_dict()), {"sums/loss": torch.tensor(2.0)}, description))
    return path.read_bytes()


def sealed_again(content: bytes) -> bytes:
    """The checksum made to fit, as an enemy would."""
    mark = b'\\"checksum\\": \\"sha256:'
    at = content.find(mark) + len(mark)
    if at < len(mark) or len(content) < at + 64:
        return content
    blank = content[:at] + b"0" * 64 + content[at + 64 :]
    return content[:at] + hashlib.sha256(blank).hexdigest().encode() + content[at + 64 :]


def public(folder: Path, state: object, **options: object) -> bytes:
    path = folder / "real.pt"
    torch.save(state, path, **options)
    return path.read_bytes()


def repickled(whole: bytes) -> Callable[[bytes], bytes]:
    """A torch file with another ``data.pkl``."""
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (key,) = (name for name in members if name.endswith("data.pkl"))
    return lambda content: zip_of(members | {key: content})


def pickle_in(whole: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))


SHOWN = {
    "metrics": "run/metrics.jsonl",
    "configuration": "run/config.toml",
    "evaluation": "e/report.json",
    "examples": "e/examples.jsonl",
    "gallery": "e/gallery.npz",
    "sweep": "sweep/sweep.json",
    "result": "seed-0/result.json",
}
"""What a report reads, and where that lies in ``shown_folder``."""


def shown_folder(folder: Path) -> Path:
    """One of everything that a report shows."""
    if not folder.exists():
        write_run(folder / "run", epochs=2)
        write_evaluation(folder / "e", count=4, gallery=False)
        write_sweep(folder / "sweep")
        write_result(folder / "seed-0")
        (folder / "e" / "gallery.npz").write_bytes(gallery())
    return folder


def gallery(images: bytes | None = None) -> bytes:
    """One gray image; ``images`` is its array as a file."""
    pictures = npy(digits()[:1, None, :4, :4])
    classes = dict.fromkeys(("labels", "predictions", "adversarial_predictions"), npy(np.zeros(1, np.int64)))
    arrays = {"images": pictures if images is None else images, "adversarial": pictures} | classes
    return zip_of({f"{name}.npy": content for name, content in arrays.items()})


def _shown(name: str, whole: Path) -> Reader:
    """A file of the folder; whatever it holds, there is a page."""

    def read(path: Path) -> object:
        place = path.parent / "shown"
        changed = shown_folder(place) / SHOWN[name]
        changed.write_bytes(path.read_bytes())
        try:
            return write_report([place], path.parent / "page.html", references=references())
        except InputError as error:
            raise AssertionError(f"no page: {error}") from error

    return Reader(((whole / SHOWN[name]).read_bytes(),), "content", read)


def _python_batch(path: Path) -> object:
    return read_python_batch(path.read_bytes(), str(path), records=RECORDS)


def _recipes() -> tuple[bytes, ...]:
    return tuple(to_toml(recipe.config).encode() for recipe in list(all_recipes().values())[::9])


def _tars() -> tuple[bytes, ...]:
    return tar_of({"a/test_batch.bin": binary_batch()}), tar_of({"a/test_batch": python_batch()})


def _pictures() -> tuple[bytes, ...]:
    squeezed = (picture("TIFF", compression="tiff_lzw"), picture("TIFF", compression="tiff_adobe_deflate"))
    return (*(picture(form) for form in ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM")), *squeezed)


def _arrays(changed: str) -> Reader:
    """An .npz of which one array is changed inside."""
    arrays = {"images.npy": npy(digits()), "labels.npy": npy(np.arange(IMAGES) % 3)}
    others = {"images.npy": npy(photos()), "labels.npy": arrays["images.npy"]}
    return Reader(
        (arrays[changed], others[changed]), "a.npz", _npz, lambda content: zip_of(arrays | {changed: content})
    )


def _public(folder: Path, **options: object) -> bytes:
    return public(folder, {"state_dict": dict(network().state_dict()), "epoch": 3}, **options)


def _pickle_inside(folder: Path) -> Reader:
    whole = _public(folder)
    return Reader((pickle_in(whole),), "a.pt", _judgeable, repickled(whole))


def _gallery_inside(folder: Path) -> Reader:
    files = (npy(digits()[:1, None, :4, :4]),)
    return replace(_shown("gallery", shown_folder(folder / "shown")), files=files, pack=gallery)


READERS: dict[str, Callable[[Path], Reader]] = {
    "idx": lambda _: Reader((idx_images(), idx_labels()), "a-idx3-ubyte", read_images),
    "idx labels": lambda _: Reader((idx_labels(), idx_images()), "a-idx1-ubyte", read_labels),
    "idx.gz": lambda _: Reader((gzip.compress(idx_images()),), "a-idx3-ubyte.gz", read_images),
    "idx.gz, inside": lambda _: Reader((idx_images(), idx_labels()), "a-idx3-ubyte.gz", read_images, gzip.compress),
    "cifar binary": lambda _: Reader((binary_batch(),), "test_batch.bin", _cifar),
    "cifar python": lambda _: Reader((python_batch(),), "test_batch", _cifar),
    "cifar pickle": lambda _: Reader((python_batch(),), "batch", _python_batch),
    "cifar tar.gz": lambda _: Reader(tuple(map(gzip.compress, _tars())), "a.tar.gz", _cifar),
    "cifar tar.gz, inside": lambda _: Reader(_tars(), "a.tar.gz", _cifar, lambda content: gzip.compress(content, 1)),
    "cifar-100 tar.gz, inside": lambda _: Reader(
        (tar_of({"a/test.bin": cifar100_binary(photos()[:RECORDS], [3, 80])}),),
        "a.tar.gz",
        _cifar100,
        lambda content: gzip.compress(content, 1),
    ),
    "svhn": lambda _: Reader((svhn(), svhn(deflated=False)), "a.mat", read_svhn),
    "svhn, inside": lambda _: Reader(
        (_mat_inside(), mat_array("y", np.ones((IMAGES, 1)), deflated=False)), "a.mat", read_svhn, _deflated_again
    ),
    "tiny-imagenet": lambda _: Reader((zip_of(tiny_files()),), "a.zip", _tiny),
    "tiny-imagenet, an image inside": lambda _: _tiny_member("val/images/val_1.JPEG", picture("PNG")),
    "tiny-imagenet, a list inside": lambda _: _tiny_member("val/val_annotations.txt", tiny_files()[_WNIDS]),
    "npz": lambda _: Reader(
        (npz(), npz(np.savez_compressed), npz(prefix="train_"), npz(images=photos())), "a.npz", _npz
    ),
    "npz, images inside": lambda _: _arrays("images.npy"),
    "npz, labels inside": lambda _: _arrays("labels.npy"),
    "image folder": lambda _: Reader(_pictures(), "1.png", _image_folder),
    "tar shard": lambda _: Reader((_shard("cls", b"1"), _shard("json", b'{"label": 1}')), "0.tar", _tar_shard),
    "run configuration": lambda _: Reader(_recipes(), "a.toml", read_toml),
    "checkpoint": lambda folder: Reader((checkpoint_bytes(folder),), "a.safetensors", _restored, sealed=True),
    "checkpoint, checksum made to fit": lambda folder: Reader(
        (checkpoint_bytes(folder),), "a.safetensors", _restored, sealed_again
    ),
    "public .pt": lambda folder: Reader(
        (_public(folder), public(folder, dict(network().state_dict()))), "a.pt", _judgeable
    ),
    "public .pt, pickle inside": _pickle_inside,
    "public .pt, old form": lambda folder: Reader(
        (_public(folder, _use_new_zipfile_serialization=False),), "a.pt", _judgeable
    ),
    "public .safetensors": lambda _: Reader((save(dict(network().state_dict())),), "a.safetensors", _judgeable),
    **{f"report, {name}": lambda folder, name=name: _shown(name, shown_folder(folder / "shown")) for name in SHOWN},
    "report, gallery inside": _gallery_inside,
}
"""By name, given a folder for what must be on disk to be made."""
