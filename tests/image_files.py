"""Folders of small photographs and tar shards of them, made on the fly."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image


def photograph(number: int, size: tuple[int, int] = (24, 20), color: str = "RGB") -> Image.Image:
    """Smooth, so that a JPEG of it has few surprises."""
    coarse = np.random.default_rng(number).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).convert(color)


def encoded(image: Image.Image, kind: str = "JPEG") -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def image_folder(root: Path, *, train: int = 36, test: int = 12, classes: int = 3, mixed: bool = True) -> Path:
    """Of so many JPEGs, of mixed sizes or all alike."""
    for part, count in (("train", train), ("test", test)):
        for number in range(count):
            size = (18 + 3 * (number % 5), 16 + 4 * (number % 4)) if mixed else (16, 16)
            folder = root / part / f"class{number % classes}"
            folder.mkdir(parents=True, exist_ok=True)
            noise = photograph(number + 1000 * (part == "test"), size)
            shade = Image.new("RGB", size, (250 * (number % classes) // (classes - 1),) * 3)
            image = Image.blend(noise, shade, 0.6)  # a class is told by its brightness
            (folder / f"{number:03d}.jpg").write_bytes(encoded(image))
    return root


def tar_shards(folder: Path, root: Path, *, shards: int = 2, labels: str = "cls") -> Path:
    """The images of a folder as WebDataset lays them out."""
    for part in ("train", "test"):
        files = sorted((folder / part).glob("*/*.jpg"))
        (root / part).mkdir(parents=True, exist_ok=True)
        for shard in range(shards):
            with tarfile.open(root / part / f"{shard:06d}.tar", "w") as archive:
                for number in range(len(files) * shard // shards, len(files) * (shard + 1) // shards):
                    label = int(files[number].parent.name[-1])
                    text = str(label) if labels == "cls" else json.dumps({"label": label, "width": 1})
                    for ending, content in (("jpg", files[number].read_bytes()), (labels, text.encode())):
                        member = tarfile.TarInfo(f"some/{number:05d}.{ending}")
                        member.size = len(content)
                        archive.addfile(member, io.BytesIO(content))
    return root
