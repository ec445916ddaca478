"""Tiny-ImageNet-200, three classes of it: in the zip file, unpacked, and not whole."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_files import jpeg, tiny_imagenet, written, zip_of
from widemargin.data import ImageSet, read_tiny_imagenet
from widemargin.data.tiny_imagenet import find_tiny_imagenet
from widemargin.errors import InputError

WNIDS = ["n20", "n10", "n03"]
PER_CLASS, VAL = 11, 2
ROOT = "tiny-imagenet-200"
# smooth, so that what JPEG loses is small
_PHASES = np.random.default_rng(0).uniform(0, 6, (3, PER_CLASS, 1, 1, 3))
_RAMP = np.linspace(0, 3, 64)
PIXELS = (127 + 120 * np.sin(_RAMP[:, None, None] + 2 * _RAMP[None, :, None] + _PHASES)).astype(np.uint8)
FILES = tiny_imagenet(WNIDS, PIXELS, val=VAL)


def as_zip(folder: Path, files: dict[str, bytes]) -> Path:
    return written(folder, f"{ROOT}.zip", zip_of(files))


def as_folder(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        written(folder, name, content)
    return folder / ROOT


def read(place: Path, split: str) -> ImageSet:
    return read_tiny_imagenet(place, split, classes=3, per_class=PER_CLASS if split == "train" else VAL)


def decoded(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).transpose(2, 0, 1)


@pytest.mark.parametrize("place", [as_zip, as_folder])
def test_training_images_by_class(tmp_path: Path, place) -> None:
    data = read(place(tmp_path, FILES), "train")
    wanted = [(n, i) for n in ("n03", "n10", "n20") for i in sorted(range(PER_CLASS), key=str)]  # 0, 1, 10, 2, ...
    assert data.labels.tolist() == [sorted(WNIDS).index(n) for n, _ in wanted]
    for found, (n, i) in zip(data.images.numpy(), wanted, strict=True):
        assert np.array_equal(found, decoded(FILES[f"{ROOT}/train/{n}/images/{n}_{i}.JPEG"]))
        assert np.abs(found.transpose(1, 2, 0).astype(int) - PIXELS[WNIDS.index(n), i]).mean() < 6
    assert (data.image_shape, data.num_classes, data.name) == ((3, 64, 64), 3, "tiny-imagenet")


@pytest.mark.parametrize("place", [as_zip, as_folder])
def test_the_test_images_are_those_of_val(tmp_path: Path, place) -> None:
    data = read(place(tmp_path, FILES), "test")
    assert data.labels.tolist() == [0, 1, 2] * VAL  # the list goes through the classes backwards
    for number, found in enumerate(data.images.numpy()):
        assert np.array_equal(found, decoded(FILES[f"{ROOT}/val/images/val_{number}.JPEG"]))


def test_grey_images_become_rgb(tmp_path: Path) -> None:
    grey = jpeg(PIXELS[1, 0, :, :, 0])
    assert Image.open(io.BytesIO(grey)).mode == "L"
    found = read(as_zip(tmp_path, FILES | {f"{ROOT}/train/n03/images/n03_0.JPEG": grey}), "train").images[0]
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()


def test_where_it_is_looked_for(tmp_path: Path) -> None:
    assert find_tiny_imagenet(tmp_path) is None
    packed = as_zip(tmp_path, FILES)
    assert find_tiny_imagenet(tmp_path) == packed
    folder = as_folder(tmp_path, FILES)
    assert find_tiny_imagenet(tmp_path) == find_tiny_imagenet(folder) == folder


ONE = f"{ROOT}/train/n10/images/n10_3.JPEG"
LIST = f"{ROOT}/val/val_annotations.txt"


@pytest.mark.parametrize("place", [as_zip, as_folder])
@pytest.mark.parametrize(
    ("change", "split", "words"),
    [
        ({ONE: None}, "train", "class n10 must have 11 train images, found 10; fetch or unpack it again"),
        ({f"{ROOT}/wnids.txt": b"n10\nn20\n"}, "train", "wnids.txt must name 3 classes, got 2"),
        ({f"{ROOT}/wnids.txt": b"\xff\n"}, "train", "wnids.txt cannot be read"),
        ({ONE: b""}, "train", "n10_3.JPEG is missing or damaged"),
        ({ONE: FILES[ONE][:300]}, "train", "n10_3.JPEG is missing or damaged"),
        ({ONE: jpeg(PIXELS[0, 0, :32])}, "train", "it is 64x32, not 64x64"),
        ({ONE: bytes(2**20 + 1)}, "train", "it has 1048577 bytes"),
        ({LIST: None}, "test", "val_annotations.txt cannot be read"),
        ({LIST: b"nonsense\n\t\n"}, "test", "class n03 must have 2 test images, found 0"),
        ({LIST: FILES[LIST].replace(b"val_0", b"../images/val_0")}, "test", "class n03 must have 2 test images, found"),
        ({LIST: FILES[LIST] + b"val_9.JPEG\tn03\n"}, "test", "class n03 must have 2 test images, found 3"),
        ({f"{ROOT}/val/images/val_2.JPEG": None}, "test", "val_2.JPEG is missing or damaged"),
    ],
)
def test_refusals(tmp_path: Path, place, change: dict[str, bytes | None], split: str, words: str) -> None:
    files = {name: content for name, content in (FILES | change).items() if content is not None}
    with pytest.raises(InputError, match=words) as caught:
        read(place(tmp_path, files), split)
    assert "\n" not in str(caught.value)


def test_a_zip_file_that_is_none(tmp_path: Path) -> None:
    whole = as_zip(tmp_path, FILES)
    for content in (b"", whole.read_bytes()[:-30]):
        whole.write_bytes(content)
        with pytest.raises(InputError, match="cannot be read as a zip file"):
            read(whole, "train")


def test_the_published_numbers_are_expected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"wnids\.txt must name 200 classes, got 3"):
        read_tiny_imagenet(as_zip(tmp_path, FILES), "train")
