"""CIFAR-10 and CIFAR-100 in their four packings, and python batches that would rather do something else."""

import gzip
import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest

from data_files import cifar100_binary, cifar_binary, cifar_python2, tar_of, written
from widemargin.data import ImageSet, read_cifar10, read_cifar100
from widemargin.data.cifar import CIFAR10, CIFAR100, find_cifar, read_python_batch
from widemargin.errors import InputError

RECORDS = 4


def pixels(stem: str) -> np.ndarray:
    return np.random.default_rng(list(stem.encode())).integers(0, 256, (RECORDS, 3072), dtype=np.uint8)


def labels(stem: str) -> list[int]:
    return [(len(stem) + int(stem[-1], 36) + i) % 10 for i in range(RECORDS)]


def binary(stem: str) -> bytes:
    return cifar_binary(pixels(stem), labels(stem))


def python2(stem: str) -> bytes:
    return cifar_python2(pixels(stem), labels(stem))


def python3(protocol: int):
    return lambda stem: pickle.dumps({b"data": pixels(stem), b"labels": labels(stem)}, protocol)


def all_files(write, suffix: str) -> dict[str, bytes]:
    return {f"{stem}{suffix}": write(stem) for stems in CIFAR10.stems.values() for stem in stems}


def as_folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        written(path, name, content)
    return path


def as_tar(path: Path, files: dict[str, bytes], prefix: str = "cifar-10-batches-bin/") -> Path:
    members = {prefix + name: content for name, content in {"readme.html": b"hello", **files}.items()}
    return written(path.parent, path.name, tar_of(members), packed=True)


def read(place: Path, split: str) -> ImageSet:
    return read_cifar10(place, split, records_per_batch=RECORDS)


def check(place: Path, split: str) -> None:
    """Against the images built one record at a time."""
    data = read(place, split)
    rows = [row.reshape(3, 32, 32) for stem in CIFAR10.stems[split] for row in pixels(stem)]
    assert np.array_equal(data.images.numpy(), np.stack(rows))
    assert data.labels.tolist() == [y for stem in CIFAR10.stems[split] for y in labels(stem)]


def test_the_oracle_itself_is_a_python_batch() -> None:
    assert max(code.proto for code, _, _ in pickletools.genops(python2("test_batch"))) == 2
    with_numpy = pickle.loads(python2("test_batch"), encoding="bytes")
    assert np.array_equal(with_numpy[b"data"], pixels("test_batch"))


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    ("write", "suffix", "inner", "archive"),
    [
        (binary, ".bin", "cifar-10-batches-bin", "cifar-10-binary.tar.gz"),
        (python2, "", "cifar-10-batches-py", "cifar-10-python.tar.gz"),
        (python3(2), "", "cifar-10-batches-py", "cifar-10-python.tar.gz"),
        (python3(4), "", "cifar-10-batches-py", "cifar-10-python.tar.gz"),
    ],
)
def test_every_packing(tmp_path: Path, write, suffix: str, inner: str, archive: str, split: str) -> None:
    files = all_files(write, suffix)
    folder = as_folder(tmp_path / "a" / inner, files)
    assert find_cifar(CIFAR10, tmp_path / "a", split) == tmp_path / "a"
    check(tmp_path / "a", split)
    check(folder, split)
    packed = as_tar(tmp_path / "b" / archive, files, prefix=f"{inner}/")
    assert find_cifar(CIFAR10, tmp_path / "b", split) == packed
    check(packed, split)
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [archive]  # nothing was unpacked


def test_incomplete(tmp_path: Path) -> None:
    files = all_files(binary, ".bin")
    del files["data_batch_3.bin"]
    folder = as_folder(tmp_path / "x", files)
    assert find_cifar(CIFAR10, folder, "train") is None
    assert find_cifar(CIFAR10, folder, "test") == folder
    with pytest.raises(InputError, match=r"data_batch_3\.bin"):
        read(folder, "train")
    with pytest.raises(InputError, match=r"members data_batch_1\.bin.*found"):
        read(as_tar(tmp_path / "t.tar.gz", files), "train")


@pytest.mark.parametrize("place", ["folder", "tar"])
@pytest.mark.parametrize("content", [b"", binary("test_batch")[:-1], binary("test_batch") + b"x"])
def test_wrong_size(tmp_path: Path, content: bytes, place: str) -> None:
    files = {"test_batch.bin": content}
    where = as_folder(tmp_path / "x", files) if place == "folder" else as_tar(tmp_path / "x.tar.gz", files)
    with pytest.raises(InputError, match=rf"test_batch\.bin: expected {RECORDS * 3073} bytes, got {len(content)}"):
        read(where, "test")


def test_wrong_label(tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "x", {"test_batch.bin": b"\x0a" + binary("test_batch")[1:]})
    with pytest.raises(InputError, match="labels must be 0 to 9, found 10"):
        read(folder, "test")


def test_a_changed_pixel_is_noticed(tmp_path: Path) -> None:
    file = as_tar(tmp_path / "x.tar.gz", {"test_batch.bin": binary("test_batch")})
    stored = bytearray(gzip.compress(gzip.decompress(file.read_bytes()), compresslevel=0))
    stored[5000] ^= 1
    file.write_bytes(stored)
    with pytest.raises(InputError, match="CRC"):
        read(file, "test")


@pytest.mark.parametrize(
    "program",
    [
        b"cnumpy\nload\n(U\x01aR.",  # another numpy name
        b"cnumpy\nndarray.__class__\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x0edtype.__init__\x93.",
        b"cnumpy\ndtype\n}U\x06dottedU\x01xsb.",  # change a stand-in
        b"cnumpy\ndtype\n(}}U\x06dottedU\x01xstb.",
        b"}}U\x01aNsb.",  # change a dict
        b"\x80\x02r\xff\xff\xff\x7f.",  # a memo number that would fill the memory
        b"\x80\x02Nr\xff\xff\xff\x7f.",
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x00.",  # a bytearray of 2**56 bytes
        b"T\xff\xff\xff\x7f.",
        b"B\xff\xff\xff\xff.",
        b"\x82\x01.",  # extension registry
        b"Pabc\n.",  # persistent id
        b"(i__main__\nx\n.",
        b"(c_codecs\nencode\n(X\x01\x00\x00\x00aX\x04\x00\x00\x00utf8tR.",
        b"(" * 100_000 + b".",
        b"]q\x01h\x01a.",  # a list that holds itself
        b"N.",
        b"",
    ],
)
def test_hostile_programs(program: bytes) -> None:
    with pytest.raises(InputError, match="batch: not a CIFAR-10 python batch"):
        read_python_batch(program, "batch", records=RECORDS)


def test_stand_ins_are_new_each_time() -> None:
    for _ in range(2):
        with pytest.raises(InputError):
            read_python_batch(b"cnumpy\ndtype\n(}}U\x06dottedU\x01xstb.", "batch", records=RECORDS)
    assert len(read_python_batch(python2("test_batch"), "batch", records=RECORDS)[0]) == RECORDS


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({b"data": pixels("test_batch")[:2]}, "shape"),
        ({b"data": pixels("test_batch").astype(np.int32)}, "uint8"),
        ({b"data": np.asfortranarray(pixels("test_batch"))}, "C-ordered"),
        ({b"data": 3}, "not an array"),
        ({b"labels": [0, 1]}, "list of 4"),
        ({b"labels": [0, 1, 2, 10]}, "0 to 9"),
        ({b"labels": [0, 1, 2, True]}, "0 to 9"),
        ({b"labels": None}, "list of 4"),
    ],
)
def test_wrong_contents(change: dict[bytes, object], words: str) -> None:
    content = {b"data": pixels("test_batch"), b"labels": [0, 1, 2, 3], **change}
    with pytest.raises(InputError, match=words):
        read_python_batch(pickle.dumps(content, 2), "batch", records=RECORDS)


# CIFAR-100


def wanted_of_100(split: str) -> tuple[np.ndarray, list[int]]:
    """Pixels and fine labels; ``train`` counts as five batches."""
    count = RECORDS * (5 if split == "train" else 1)
    source = np.random.default_rng(count)
    return source.integers(0, 256, (count, 3072), dtype=np.uint8), source.integers(0, 100, count).tolist()


def written_3(images: np.ndarray, labels: list[int]) -> bytes:
    coarse = [label // 5 for label in labels]
    return pickle.dumps({b"data": images, b"coarse_labels": coarse, b"fine_labels": labels}, 2)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    ("write", "suffix", "version"),
    [
        (cifar100_binary, ".bin", "binary"),
        (lambda images, labels: cifar_python2(images, labels, b"fine_labels"), "", "python"),
        (written_3, "", "python"),
    ],
)
def test_every_packing_of_cifar100(tmp_path: Path, write, suffix: str, version: str, split: str) -> None:
    images, labels = wanted_of_100(split)
    files = {f"{split}{suffix}": write(images, labels)}
    folder = as_folder(tmp_path / "a" / f"cifar-100-{version}", files)
    packed = as_tar(tmp_path / "b" / f"cifar-100-{version}.tar.gz", files, prefix=f"cifar-100-{version}/")
    assert find_cifar(CIFAR100, tmp_path / "a", split) == tmp_path / "a"
    assert find_cifar(CIFAR100, tmp_path / "b", split) == packed
    for place in (tmp_path / "a", folder, packed):
        data = read_cifar100(place, split, records_per_batch=RECORDS)
        assert np.array_equal(data.images.numpy().reshape(-1, 3072), images)
        assert (data.labels.tolist(), data.num_classes, data.name) == (labels, 100, "cifar100")


def test_one_cifar_is_not_taken_for_the_other(tmp_path: Path) -> None:
    folder = as_folder(tmp_path / "x", {"test.bin": binary("test_batch")})
    with pytest.raises(InputError, match=rf"test\.bin: expected {RECORDS * 3074} bytes, got {RECORDS * 3073}"):
        read_cifar100(folder, "test", records_per_batch=RECORDS)
    assert find_cifar(CIFAR10, folder, "test") is None
    with pytest.raises(InputError, match=r"batch: not a CIFAR-100 python batch \(it has no entry 'fine_labels'\)"):
        read_python_batch(python2("test_batch"), "batch", records=RECORDS, kind=CIFAR100)


def test_wrong_fine_label(tmp_path: Path) -> None:
    content = cifar100_binary(pixels("test_batch"), [0, 1, 2, 100])
    with pytest.raises(InputError, match="labels must be 0 to 99, found 100"):
        read_cifar100(as_folder(tmp_path / "x", {"test.bin": content}), "test", records_per_batch=RECORDS)
