"""From a name to images, wherever they lie; downloads from a server on this machine: whole files or none."""

import hashlib
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data_files import idx, mat, tiny_imagenet, written, zip_of
from widemargin.data import DATASETS, data_folder, load, read_tiny_imagenet
from widemargin.data.datasets import FIRST_LABELS, SOURCES, OfficialFile, fetch
from widemargin.errors import InputError, WidemarginWarning

CONTENT = bytes(range(256)) * 600


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test may reach the user's own folders, or the network by a proxy."""
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "cache" / name)
    monkeypatch.delenv("WIDEMARGIN_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("pooch.HTTPDownloader.__call__", refuse)


def write_idx(folder: Path, labels: list[int], images: str, names: str, *, packed: bool = False) -> None:
    written(folder, images, idx(np.zeros((len(labels), 2, 2), np.uint8)), packed=packed)
    written(folder, names, idx(np.array(labels, np.uint8)), packed=packed)


@pytest.mark.parametrize(
    ("images", "labels", "packed"),
    [
        ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz", True),
        ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte", False),
        ("t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte", False),
        ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte.gz", False),
    ],
)
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("nested", [False, True])
def test_idx_spellings(tmp_path: Path, images: str, labels: str, packed: bool, name: str, nested: bool) -> None:
    write_idx(tmp_path / name if nested else tmp_path, [3, 1], images, labels, packed=packed)
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


def test_cifar100_full_size(tmp_path: Path) -> None:
    table = np.zeros((10_000, 3074), dtype=np.uint8)
    table[:, 1] = np.arange(10_000) % 100
    (tmp_path / "test.bin").write_bytes(table.tobytes())
    data = load("cifar100", "test", data_dir=tmp_path)
    assert (len(data), data.image_shape, data.num_classes) == (10_000, (3, 32, 32), 100)
    assert data.labels.bincount().tolist() == [100] * 100


@pytest.mark.parametrize("place", ["svhn/", ""])
def test_svhn(tmp_path: Path, place: str) -> None:
    for split, labels in (("train", [1, 10, 3]), ("test", [9, 2])):
        arrays = {"X": np.zeros((32, 32, 3, len(labels)), np.uint8), "y": np.array([labels], np.uint8).T}
        written(tmp_path, f"{place}{split}_32x32.mat", mat(arrays))
    assert load("svhn", "train", data_dir=tmp_path).labels.tolist() == [1, 0, 3]
    assert load("svhn", "test", data_dir=tmp_path).labels.tolist() == [9, 2]


@pytest.mark.parametrize("place", ["tiny-imagenet/", ""])
@pytest.mark.parametrize("unpacked", [False, True])
def test_tiny_imagenet(tmp_path: Path, place: str, unpacked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    small = partial(read_tiny_imagenet, classes=2, per_class=2)
    monkeypatch.setattr("widemargin.data.datasets.read_tiny_imagenet", small)
    files = tiny_imagenet(["n2", "n1"], np.zeros((2, 2, 64, 64, 3), np.uint8), val=2)
    for name, content in files.items() if unpacked else [("tiny-imagenet-200.zip", zip_of(files))]:
        written(tmp_path, f"{place}{name}", content)
    assert load("tiny-imagenet", "train", data_dir=tmp_path).labels.tolist() == [0, 0, 1, 1]
    assert load("tiny-imagenet", "test", data_dir=tmp_path).labels.tolist() == [0, 1, 0, 1]


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


@pytest.mark.usefixtures("no_network")
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
    monkeypatch.delenv("WIDEMARGIN_DATA")
    monkeypatch.setitem(sys.modules, "pooch", None)
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


def test_the_sample_is_balanced_and_real() -> None:
    for split, per_class in (("train", 10), ("test", 6)):
        data = load("cifar10-embedded", split)
        assert data.image_shape == (3, 32, 32)
        assert data.labels.bincount().tolist() == [per_class] * 10
        # Real photographs: neighboring pixels agree far better than distant ones.
        images = data.floats()
        neighbors = (images[..., 1:] - images[..., :-1]).abs().mean()
        distant = (images[..., 16:] - images[..., :16]).abs().mean()
        assert neighbors < distant / 2
    assert load("cifar10-embedded", "train", limit=20).labels.bincount().tolist() == [2] * 10


# Downloads


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/absent":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[: len(CONTENT) // 2] if self.path == "/cut" else CONTENT)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    served = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{served.server_port}"
    served.shutdown()
    served.server_close()


def official(*urls: str, content: bytes = CONTENT, name: str = "x.gz") -> OfficialFile:
    return OfficialFile(name, urls, hashlib.md5(content).hexdigest(), hashlib.sha256(content).hexdigest())


def test_fetches_once(tmp_path: Path, server: str) -> None:
    files = [official(f"{server}/x.gz"), official(f"{server}/y", name="y")]
    paths = fetch(files, tmp_path / "new" / "folder", dataset="toy")
    assert [path.read_bytes() == CONTENT for path in paths] == [True, True]
    paths[0].write_bytes(b"the user's own")  # what is there is not fetched or hashed again
    assert fetch(files, tmp_path / "new" / "folder", dataset="toy")[0].read_bytes() == b"the user's own"


def test_second_address_is_tried(tmp_path: Path, server: str) -> None:
    (path,) = fetch([official(f"{server}/absent", f"{server}/x")], tmp_path, dataset="toy")
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("address", "content"),
    [
        ("{server}/absent", CONTENT),
        ("{server}/cut", CONTENT),
        ("{server}/x", b"something else"),
        ("http://127.0.0.1:1/x", CONTENT),
    ],
)
def test_failures_leave_nothing_and_say_what_to_do(tmp_path: Path, server: str, address: str, content: bytes) -> None:
    url = address.format(server=server)
    with pytest.raises(InputError) as caught:
        fetch([official(url, content=content), official("http://h/y", name="y")], tmp_path / "d", dataset="toy")
    message = str(caught.value)
    assert "\n" not in message
    assert f"put {url} (md5" in message
    assert f"at {tmp_path / 'd' / 'x.gz'}" in message
    assert f"at {tmp_path / 'd' / 'y'}" in message
    assert list((tmp_path / "d").iterdir()) == []


def test_interruption_leaves_nothing(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("widemargin.data.datasets._ProgressBar.update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch([official(f"{server}/x")], tmp_path, dataset="toy")
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written(tmp_path: Path, server: str) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot download"):
        fetch([official(f"{server}/x")], tmp_path / "file", dataset="toy")


def test_without_pooch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(InputError, match=r"pooch, which downloads them, is not installed.*x\.gz"):
        fetch([official("http://h/x.gz")], tmp_path, dataset="toy")


def test_sources_are_well_formed() -> None:
    for splits in SOURCES.values():
        assert set(splits) == {"train", "test"}
        for file in (file for files in splits.values() for file in files):
            assert (len(file.md5), len(file.sha256)) == (32, 64)
            int(file.md5 + file.sha256, 16)
            assert all(url.endswith("/" + file.name) for url in file.urls)
