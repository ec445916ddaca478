"""SVHN's MATLAB files, written as the format describes them; and such as say what is not true."""

import base64
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from data_files import mat, mat_array, mat_element, written
from widemargin.data import ImageSet, read_svhn
from widemargin.errors import InputError

COUNT = 12
PIXELS = np.random.default_rng(0).integers(0, 256, (32, 32, 3, COUNT), dtype=np.uint8)
LABELS = np.array([[1 + i % 10] for i in range(COUNT)], dtype=np.uint8)
HEADER = mat({})


def read(folder: Path, content: bytes) -> ImageSet:
    return read_svhn(written(folder, "test_32x32.mat", content))


# scipy 1.17.1: savemat({"X": X, "y": [[10], [1], [7]], "z": [[1 + 2j]]}, do_compression=True), from byte 116 on, where
# X is zeros but for X[5, 7, 1, 0] = 200, X[31, 0, 2, 1] = 9, X[:, :, 0, 2] = 255
OF_SCIPY = """
AAAAAAAAAAAAAUlNDwAAAF0AAAB4nO3UvQ2DQAyAUSdRUGhQRqC4IRiFkdkKjEKfjuPnPeuTGxdXXRcRQ4locn+yNn7e2Tfrt15bj5wx93M9KgFw
bVPtBwAAAMChtf9PgLOagduq/f8AAPtbAHXN/lsPAAAAKgAAAHic42NgYDAAYjYg5gBiTgYIYIXymYGYEYwZGSqBNBNQhIuRnQEAGPEA+Q8AAAAr
AAAAeJzjY2Bg8ABiNiDmANEgAghYoXxGOGZkqALSnFBxCPhgj8pncAAATiECjw==
"""


def test_a_file_of_scipys(tmp_path: Path) -> None:
    data = read(tmp_path, b"MATLAB 5.0 MAT-file Platform: posix".ljust(116) + base64.b64decode(OF_SCIPY))
    images = np.zeros((3, 3, 32, 32), np.uint8)
    images[0, 1, 5, 7], images[1, 2, 31, 0], images[2, 0] = 200, 9, 255
    assert np.array_equal(data.images.numpy(), images)
    assert data.labels.tolist() == [0, 1, 7]


@pytest.mark.parametrize("deflated", [True, False])
@pytest.mark.parametrize("labels", [LABELS, LABELS.astype(np.float64), LABELS.astype(np.int32), LABELS.T])
def test_images_and_digits(tmp_path: Path, deflated: bool, labels: np.ndarray) -> None:
    """Image by image: columns of rows, and ten for zero."""
    others = {"mean": np.zeros((3, 1), np.float32), "note": np.frombuffer(b"cropped digits", np.uint8)[None]}
    data = read(tmp_path, mat({"mean": others["mean"], "X": PIXELS, "y": labels, **others}, deflated=deflated))
    for n in range(COUNT):
        for channel in range(3):
            assert np.array_equal(data.images[n, channel].numpy(), PIXELS[:, :, channel, n])
    assert data.labels.tolist() == [*range(1, 10), 0, 1, 2]
    assert (data.num_classes, data.name) == (10, "svhn")


def test_four_labels_stand_in_a_tag(tmp_path: Path) -> None:
    content = mat({"X": PIXELS[..., :4], "y": LABELS[:4]}, deflated=False)
    assert struct.pack("<2H4B", 2, 4, 1, 2, 3, 4) in content
    assert read(tmp_path, content).labels.tolist() == [1, 2, 3, 4]


X, Y = mat_array("X", PIXELS, deflated=True), mat_array("y", LABELS, deflated=True)


def inside(*parts: tuple[int, bytes]) -> bytes:
    """A file of one array of these elements."""
    return HEADER + mat_element(list(parts))


FLAGS, SIZES, NAME = (6, struct.pack("<2I", 9, 0)), (5, struct.pack("<2i", 3, 1)), (1, b"y")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "shorter than a header"),
        (HEADER, "holds no array 'X'"),
        (HEADER + X, "holds no array 'y'"),
        (HEADER + X + Y[:-1], "in the middle of an array"),
        (HEADER + X + Y + b"\0" * 4, "in the middle of an array"),
        (mat({"X": PIXELS, "y": LABELS}, order=b"MI"), "another byte order"),
        (b"MATLAB 7.3 MAT-file".ljust(512), "of the newer format 7.3"),
        (HEADER + struct.pack("<2I", 14, 2**32 - 1) + bytes(64), "in the middle of an array"),
        (HEADER + struct.pack("<2I", 2, 4) + bytes(4), "element of type 2 where an array should be"),
        (mat({"X": PIXELS[:31], "y": LABELS}), r"X must be \(32, 32, 3, N\) uint8, got \(31, 32, 3, 12\)"),
        (mat({"X": PIXELS.astype(np.float32), "y": LABELS}), "got .* float32"),
        (mat({"X": PIXELS, "y": LABELS[1:]}), "holds 12 images and 11 labels"),
        (mat({"X": PIXELS, "y": LABELS - 1}), "labels must be 1 to 10"),
        (mat({"X": PIXELS, "y": np.full((COUNT, 1), np.nan)}), "labels must be 1 to 10"),
        (inside(), "ends too early|less than it says"),
        (inside((6, b""), SIZES, NAME), "cannot be read"),
        (inside(FLAGS, (5, b""), NAME), r"has the shape \(\)"),
        (inside(FLAGS, (5, struct.pack("<2i", -1, -1)), NAME), r"has the shape \(-1, -1\)"),
        (inside((6, struct.pack("<2I", 1, 0)), SIZES, NAME), "not a plain array of real numbers"),
        (inside((6, struct.pack("<2I", 6 | 0x800, 0)), SIZES, NAME, (9, bytes(24))), "not a plain array"),
        (inside((9, bytes(8)), SIZES, NAME), "stands in the place of another"),
        (inside(FLAGS, SIZES, NAME, (2, b"\1\2")), "y is 2 bytes, for shape .* they should be 3"),
        (inside(FLAGS, SIZES, NAME, (9, bytes(16))), "y is 16 bytes"),
        (inside(FLAGS, SIZES, NAME, (14, bytes(16))), "an element is of type 14"),
        (inside(FLAGS, SIZES, (1, b"y" * 5000)), "stands in the place of another"),
    ],
)
def test_refusals(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read(tmp_path, content)
    assert "test_32x32.mat" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("deflated", [True, False])
def test_an_array_that_claims_a_terabyte(tmp_path: Path, deflated: bool) -> None:
    array = mat_array("X", PIXELS, deflated=deflated, shape=(2**20, 2**10, 2**10))
    with pytest.raises(InputError, match=r"X: the header promises 1099511627776 bytes, more than \d+ stored bytes"):
        read(tmp_path, HEADER + array)


def deflated_again(change: bytes) -> bytes:
    """An array with something behind it, all deflated."""
    packed = zlib.compress(zlib.decompress(X[8:]) + change)
    return HEADER + struct.pack("<2I", 15, len(packed)) + packed


def test_what_is_deflated_ends_where_it_says(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds more than it says"):
        read(tmp_path, deflated_again(b"x"))
    packed = X[8:] + b"behind"
    with pytest.raises(InputError, match="holds more than it says"):
        read(tmp_path, HEADER + struct.pack("<2I", 15, len(packed)) + packed)
    with pytest.raises(InputError, match="holds no array 'y'"):
        read(tmp_path, deflated_again(b""))


def test_a_changed_pixel_is_noticed(tmp_path: Path) -> None:
    packed = bytearray(zlib.compress(zlib.decompress(X[8:]), 0))
    packed[5000] ^= 1
    with pytest.raises(InputError, match="incorrect data check"):
        read(tmp_path, HEADER + struct.pack("<2I", 15, len(packed)) + packed + Y)
