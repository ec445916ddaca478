"""Users' .npz files: layouts, parts, and headers that lie."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from data_files import npy, npy_that_says, written, zip_of
from widemargin.data import read_npz
from widemargin.errors import InputError

NCHW = np.arange(4 * 3 * 5 * 6, dtype=np.uint8).reshape(4, 3, 5, 6)
LABELS = np.array([0, 2, 1, 2])


def save(path: Path, **arrays: object) -> Path:
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (NCHW, NCHW),
        (NCHW.transpose(0, 2, 3, 1), NCHW),
        (np.asfortranarray(NCHW), NCHW),
        (NCHW[:, 0], NCHW[:, :1]),
        (NCHW[:, :1], NCHW[:, :1]),
        (NCHW / 510, (NCHW / 510).astype(np.float32)),
        ((NCHW / 510).astype(">f4"), (NCHW / 510).astype(np.float32)),
        ((NCHW / 512).astype(np.float16), (NCHW / 512).astype(np.float16).astype(np.float32)),
    ],
)
def test_layouts_and_types(tmp_path: Path, stored: np.ndarray, expected: np.ndarray) -> None:
    data = read_npz(save(tmp_path / "a.npz", images=stored, labels=LABELS.astype(">i2")), "train")
    assert np.array_equal(data.images.numpy(), expected)
    assert data.images.is_contiguous()
    assert data.labels.tolist() == [0, 2, 1, 2]
    assert data.num_classes == 3
    assert data.name == "a.npz"


@pytest.mark.parametrize("more", ["train_labels", "test_labels"])
def test_parts_agree_on_the_number_of_classes(tmp_path: Path, more: str) -> None:
    arrays = {"train_images": NCHW, "train_labels": LABELS, "test_images": NCHW[:2], "test_labels": LABELS[:2]}
    arrays[more] = arrays[more] + 5
    file = save(tmp_path / "a.npz", **arrays)
    assert (len(read_npz(file, "train")), len(read_npz(file, "test"))) == (4, 2)
    assert read_npz(file, "test").num_classes == read_npz(file, "train").num_classes == 8


def test_num_classes_may_be_given(tmp_path: Path) -> None:
    assert read_npz(save(tmp_path / "a.npz", images=NCHW, labels=LABELS, num_classes=20), "test").num_classes == 20
    with pytest.raises(InputError, match="num_classes must be one whole number"):
        read_npz(save(tmp_path / "b.npz", images=NCHW, labels=LABELS, num_classes="x"), "test")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": NCHW}, "has no array train_images, train_labels, it holds images"),
        ({"train_images": NCHW, "test_labels": LABELS}, "has no array train_labels"),
        ({"images": NCHW.astype(np.int64), "labels": LABELS}, "astype"),
        ({"images": np.zeros((4, 3, 3, 3), np.uint8), "labels": LABELS}, r"may be \(N, C, H, W\) or \(N, H, W, C\)"),
        ({"images": np.zeros((4, 5, 5, 5), np.uint8), "labels": LABELS}, "1 or 3 channels"),
        ({"images": np.zeros(4, np.uint8), "labels": LABELS}, "1 or 3 channels"),
        ({"images": np.zeros((0, 5, 5), np.uint8), "labels": LABELS[:0]}, "at least one"),
        ({"images": NCHW[:3], "labels": LABELS}, r"labels must be \(3,\)"),
        ({"images": NCHW.astype(float), "labels": LABELS}, "divide by 255"),
        ({"images": NCHW, "labels": LABELS.astype(float)}, "whole numbers"),
        ({"images": NCHW, "labels": np.eye(4, dtype=int)}, "one-hot"),
        ({"images": NCHW, "labels": np.array([2**64 - 1] * 4, np.uint64)}, "class indices"),
        ({"images": NCHW, "labels": LABELS - 1}, "found -1"),
        ({"images": np.array([None] * 4), "labels": LABELS}, "Python objects|must be"),
        ({"images": NCHW, "labels": np.array([print] * 4)}, "Python objects"),
    ],
)
def test_refusals(tmp_path: Path, arrays: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_npz(save(tmp_path / "a.npz", **arrays), "train")


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("images", "words"),
    [
        (npy_that_says((4, 2, 2), bytes(1_000_000)), "should be .* bytes"),
        (npy_that_says((4, 2, 2), bytes(15)), "promises|should be"),
        (npy_that_says((4, -2, -2), bytes(16)), "images|cannot"),
        (npy_that_says((4, 2, 2), bytes(16), "|O"), "cannot be read|Python objects|should be"),
        (b"not an array", "cannot be read"),
        (b"", "cannot be read"),
        (npy_that_says((4, 2, 2), bytes(16)).replace(b"}", b"("), "cannot be read"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b" " * 70_000, "cannot be read"),
    ],
)
def test_lying_headers(tmp_path: Path, images: bytes, words: str, kind: int) -> None:
    file = written(tmp_path, "a.npz", zip_of({"labels.npy": npy(LABELS), "images.npy": images}, kind))
    with pytest.raises(InputError, match=words):
        read_npz(file, "train")


def test_not_a_zip(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"hello")
    with pytest.raises(InputError, match=r"a\.npz: cannot be read as an \.npz file"):
        read_npz(tmp_path / "a.npz", "train")
