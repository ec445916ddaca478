"""From a name to images, wherever they lie."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from widemargin.data import DATASETS, data_folder, load
from widemargin.data.datasets import FIRST_LABELS
from widemargin.errors import InputError, WidemarginWarning


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test may reach the network or the user's own folders."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", refuse)
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "cache" / name)
    monkeypatch.delenv("WIDEMARGIN_DATA", raising=False)


def write_idx(folder: Path, labels: list[int], images: str, names: str, pack=bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    n = len(labels)
    (folder / images).write_bytes(pack(struct.pack(">4I", 2051, n, 2, 2) + bytes(4 * n)))
    (folder / names).write_bytes(pack(struct.pack(">2I", 2049, n) + bytes(labels)))
    return folder


@pytest.mark.parametrize(
    ("images", "labels", "pack"),
    [
        ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz", gzip.compress),
        ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", bytes),
        ("t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte", bytes),
        ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte.gz", bytes),
    ],
)
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("nested", [False, True])
def test_idx_spellings(tmp_path: Path, images: str, labels: str, pack, name: str, nested: bool) -> None:
    write_idx(tmp_path / name if nested else tmp_path, [3, 1], images, labels, pack)
    data = load(name, "test", data_dir=tmp_path)
    assert (data.labels.tolist(), data.name, data.num_classes) == ([3, 1], name, 10)
    assert len(load(name, "test", data_dir=tmp_path, limit=1)) == 1


def test_own_folder_comes_first(tmp_path: Path) -> None:
    write_idx(tmp_path, [1], "train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    write_idx(tmp_path / "mnist", [2], "train-images-idx3-ubyte", "train-labels-idx1-ubyte")
    assert load("mnist", "train", data_dir=tmp_path).labels.tolist() == [2]


def test_one_data_set_is_not_taken_for_another(tmp_path: Path) -> None:
    labels = list(FIRST_LABELS["mnist"]["test"])
    write_idx(tmp_path, labels, "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    assert len(load("mnist", "test", data_dir=tmp_path)) == 10
    with pytest.raises(InputError, match="holds mnist, not fashion-mnist"):
        load("fashion-mnist", "test", data_dir=tmp_path)


def test_images_and_labels_must_match(tmp_path: Path) -> None:
    write_idx(tmp_path, [1, 2], "t10k-images-idx3-ubyte", "other")
    write_idx(tmp_path, [1], "other", "t10k-labels-idx1-ubyte")
    with pytest.raises(InputError, match=r"2 images.* 1 labels"):
        load("mnist", "test", data_dir=tmp_path)


def test_cifar10_full_size(tmp_path: Path) -> None:
    table = np.zeros((10_000, 3073), dtype=np.uint8)
    table[:, 0] = np.arange(10_000) % 10
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "test_batch.bin").write_bytes(table.tobytes())
    data = load("cifar10", "test", data_dir=tmp_path)
    assert (len(data), data.image_shape) == (10_000, (3, 32, 32))


def test_embedded_is_balanced_everywhere() -> None:
    for split, per_class in (("train", 1_200), ("test", 300)):
        data = load("mnist-embedded", split)  # type: ignore[arg-type]
        assert data.labels.bincount().tolist() == [per_class] * 10
        assert data.image_shape == (1, 28, 28)
        assert len(set(data.labels[:37].bincount().tolist()) | {3, 4}) == 2  # a prefix too
        assert len(torch.unique(data.images.flatten(1), dim=0)) >= len(data) - 5
        assert 0.1 < data.floats().mean() < 0.16
    folder = Path(__file__).parents[2] / "src" / "widemargin" / "data" / "embedded"
    assert sum(file.stat().st_size for file in folder.iterdir()) < 3_000_000


@pytest.mark.parametrize("name", [name for name in DATASETS if not name.endswith("-embedded")])
@pytest.mark.parametrize("download", [True, False])
def test_missing_data(tmp_path: Path, name: str, download: bool) -> None:
    with pytest.raises(InputError) as caught:
        load(name, "train", data_dir=tmp_path, download=download)
    message = str(caught.value)
    assert ("no network" if download else "downloading is off") in message
    assert f"at {tmp_path / name}/" in message
    assert "put http" in message
    assert "\n" not in message


def test_where_data_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert data_folder() == tmp_path / "cache" / "widemargin"
    monkeypatch.setenv("WIDEMARGIN_DATA", str(tmp_path / "env"))
    assert data_folder() == tmp_path / "env"
    assert data_folder(tmp_path / "arg") == tmp_path / "arg"
    monkeypatch.chdir(tmp_path)
    assert data_folder("rel") == tmp_path / "rel"


def test_cache_without_pooch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pooch", None)
    assert data_folder() == Path.home() / ".cache" / "widemargin"


def test_npz_and_folder_by_path(tmp_path: Path) -> None:
    images, labels = np.zeros((2, 4, 4), np.uint8), np.array([0, 1])
    np.savez(tmp_path / "parts.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    np.savez(tmp_path / "one.npz", images=images, labels=labels)
    for name in "ab":
        (tmp_path / "pictures" / name).mkdir(parents=True)
        Image.fromarray(images[0]).save(tmp_path / "pictures" / name / "1.png")
    assert len(load(tmp_path / "parts.npz", "test")) == 2
    assert len(load(str(tmp_path / "one.npz"), "train")) == 2
    assert len(load(tmp_path / "pictures", "train")) == 2
    for single in ("one.npz", "pictures"):
        with pytest.warns(WidemarginWarning, match="holds one set"):
            load(tmp_path / single, "test")


@pytest.mark.parametrize("name", ["imagenet", "absent.npz", "/no/such/folder", ""])
def test_unknown_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"mnist-embedded, mnist, fashion-mnist, cifar10|one sub-folder per class"):
        load(name, "train")


def test_bad_arguments() -> None:
    with pytest.raises(InputError, match="split must be one of train, test, got 'val'"):
        load("mnist-embedded", "val")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="limit"):
        load("mnist-embedded", "test", limit=0)
