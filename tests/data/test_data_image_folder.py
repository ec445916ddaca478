"""Folders of images: numbering of classes, one form for all, and files that are not what they seem."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from widemargin.data import image_stream, read_image_folder
from widemargin.errors import InputError


def picture(seed: int, size: tuple[int, int] = (6, 5), channels: int = 3) -> np.ndarray:
    shape = (size[1], size[0]) if channels == 1 else (size[1], size[0], channels)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(path: Path, values: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values).save(path)
    return path


def test_train_and_test_share_class_numbers(tmp_path: Path) -> None:
    for number, name in enumerate(["cat", "ant", "dog"]):
        save(tmp_path / "train" / name / "1.png", picture(number))
        save(tmp_path / "train" / name / "0.PNG", picture(10 + number))
    save(tmp_path / "test" / "dog" / "x.png", picture(7))
    (tmp_path / "train" / "ant" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / ".hidden").mkdir()
    data = read_image_folder(tmp_path, "train")
    assert data.labels.tolist() == [0, 0, 1, 1, 2, 2]
    expected = [picture(seed).transpose(2, 0, 1) for seed in (11, 1, 10, 0, 12, 2)]  # ant, cat, dog
    assert np.array_equal(data.images.numpy(), np.stack(expected))
    test = read_image_folder(tmp_path, "test")
    assert test.labels.tolist() == [2]
    assert test.num_classes == 3


@pytest.mark.parametrize("split", ["train", "test"])
def test_single_set_of_grey_images(tmp_path: Path, split: str) -> None:
    for name in "ab":
        save(tmp_path / name / "1.png", picture(ord(name), channels=1))
    data = read_image_folder(tmp_path, split)
    assert data.image_shape == (1, 5, 6)
    assert np.array_equal(data.images.numpy()[1, 0], picture(ord("b"), channels=1))


def test_jpeg_and_palette(tmp_path: Path) -> None:
    flat = np.full((5, 6, 3), 128, dtype=np.uint8)
    save(tmp_path / "a" / "1.jpg", flat)
    (tmp_path / "b").mkdir()
    Image.fromarray(flat).convert("P").save(tmp_path / "b" / "1.png")
    assert read_image_folder(tmp_path, "train").image_shape == (3, 5, 6)


def two(root: Path, second: np.ndarray, name: str = "1.png") -> Path:
    save(root / "a" / "1.png", picture(0))
    save(root / "b" / name, second)
    return root


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (picture(1, (5, 6)), r"a/1\.png is 6x5 RGB, .*b/1\.png is 5x6 RGB; set data.image_size"),
        (picture(1, channels=1), r"is 6x5 RGB, .* is 6x5 grey"),
        (picture(1, channels=4), "transparency, got mode RGBA"),
        (picture(1, channels=1).astype(np.uint16), "mode I;16"),
    ],
)
def test_images_must_agree(tmp_path: Path, second: np.ndarray, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_image_folder(two(tmp_path, second), "train")


@pytest.mark.parametrize("content", [b"", b"hello", b"\x89PNG\r\n\x1a\n" + bytes(30)])
def test_not_an_image(tmp_path: Path, content: bytes) -> None:
    two(tmp_path, picture(1))
    (tmp_path / "b" / "1.png").write_bytes(content)
    with pytest.raises(InputError, match=r"b/1\.png: cannot be read"):
        read_image_folder(tmp_path, "train")


def test_wrong_arrangements(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one sub-folder per class"):
        read_image_folder(tmp_path, "train")
    save(tmp_path / "train" / "a" / "1.png", picture(0))
    with pytest.raises(InputError, match="at least two"):
        read_image_folder(tmp_path, "train")
    (tmp_path / "train" / "b").mkdir()
    with pytest.raises(InputError, match="b: holds no image"):
        read_image_folder(tmp_path, "train")
    save(tmp_path / "train" / "b" / "1.png", picture(0))
    with pytest.raises(InputError, match="test: cannot be read"):
        read_image_folder(tmp_path, "test")
    (tmp_path / "test").mkdir()
    with pytest.raises(InputError, match="test: holds no images"):
        read_image_folder(tmp_path, "test")
    save(tmp_path / "test" / "c" / "1.png", picture(0))
    with pytest.raises(InputError, match="no class 'c', only a, b"):
        read_image_folder(tmp_path, "test")


def test_hidden_files_and_folders_are_passed_over(tmp_path: Path) -> None:
    two(tmp_path, picture(1))
    (tmp_path / "a" / "._1.png").write_bytes(b"what a Mac leaves beside a file")
    save(tmp_path / ".thumbnails" / "1.png", picture(2, (3, 3)))
    data = read_image_folder(tmp_path, "train")
    assert (data.labels.tolist(), data.num_classes) == ([0, 1], 2)


def test_more_images_than_memory_holds_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 2 * 3 * 6 * 5
    two(tmp_path, picture(1))
    monkeypatch.setattr(image_stream, "memory_limit", lambda: size)
    assert len(read_image_folder(tmp_path, "train")) == 2
    monkeypatch.setattr(image_stream, "memory_limit", lambda: size - 1)
    monkeypatch.delattr(image_stream, "decode")
    with pytest.raises(InputError, match="2 images of 6x5 RGB are 180 bytes, more than half the memory; use fewer, or"):
        read_image_folder(tmp_path, "train")


@pytest.mark.parametrize(("mode", "transparent"), [("RGB", (1, 2, 3)), ("P", 0), ("L", 7)])
def test_a_color_that_stands_for_nothing_is_transparency_too(tmp_path: Path, mode: str, transparent: object) -> None:
    two(tmp_path, picture(1))
    Image.fromarray(picture(1)).convert(mode).save(tmp_path / "b" / "1.png", transparency=transparent)
    with pytest.raises(InputError, match=f"without transparency, got mode {mode}"):
        read_image_folder(tmp_path, "train")
