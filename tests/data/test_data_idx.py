"""The idx reader against a writer that follows the format's description, and what it refuses."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from data_files import idx
from widemargin.data import read_images, read_labels
from widemargin.data.idx import check_claim, memory_limit
from widemargin.errors import InputError

IMAGES = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
LABELS = np.array([7, 0, 9], dtype=np.uint8)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_reads_what_was_written(tmp_path: Path, pack) -> None:
    file = tmp_path / "any name"
    file.write_bytes(pack(idx(IMAGES)))
    assert np.array_equal(read_images(file).numpy(), IMAGES[:, None])
    file.write_bytes(pack(idx(LABELS)))
    assert read_labels(file).tolist() == [7, 0, 9]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "header of 16 bytes, got 0"),
        (idx(IMAGES)[:9], "header of 16 bytes, got 9"),
        (idx(IMAGES)[:-1], "76|promises 76 bytes"),
        (idx(IMAGES) + b"x", "expected 76 bytes.*got more"),
        (idx(LABELS) + bytes(9), "idx file of labels"),
        (b"\x7fELF" + bytes(40), "not an MNIST idx file"),
        (idx(IMAGES[:0]), "holds no values"),
    ],
)
def test_refusals_name_the_file(tmp_path: Path, content: bytes, words: str, pack) -> None:
    file = tmp_path / "digits"
    file.write_bytes(pack(content))
    with pytest.raises(InputError, match=f"(?s)digits.*({words})"):
        read_images(file)


def test_labels_refuse_images_and_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "digits").write_bytes(idx(IMAGES))
    for name, words in (("digits", "idx file of images"), ("absent", "cannot be read")):
        with pytest.raises(InputError, match=words):
            read_labels(tmp_path / name)


def test_claims() -> None:
    check_claim("f", claimed=100, stored=100, deflated=False)
    check_claim("f", claimed=1000, stored=1, deflated=True)
    with pytest.raises(InputError, match="f: the header promises 101 bytes, more than 100"):
        check_claim("f", claimed=101, stored=100, deflated=False)
    with pytest.raises(InputError, match="f: the header promises"):
        check_claim("f", claimed=10_000, stored=1, deflated=True)
    with pytest.raises(InputError, match="memory"):
        check_claim("f", claimed=memory_limit() + 1, stored=memory_limit() * 2, deflated=False)


def test_without_sysconf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sysconf")
    assert memory_limit() == 8 * 2**30
