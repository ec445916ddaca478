"""What decoding streamed images costs: ours against a plain torch DataLoader over the same folder, in turn."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from widemargin.core.checks import check_count
from widemargin.core.randomness import derived
from widemargin.core.screen import console_for, say, show_table
from widemargin.data.batches import Batches
from widemargin.data.datasets import open_images
from widemargin.data.decoding import RandomResizedCrop
from widemargin.data.image_stream import ImageStream, usable_cpus

SIZES = ((500, 375), (375, 500), (500, 333), (320, 240), (256, 256))


class PlainFolder(Dataset[tuple[Tensor, int]]):
    """What people write: open, convert, crop, resize, mirror, to a float tensor; one image at a time."""

    def __init__(self, root: Path, size: int) -> None:
        files = sorted((root / "train").glob("*/*.jpg"))
        classes = sorted({file.parent.name for file in files})
        self.files = [(str(file), classes.index(file.parent.name)) for file in files]
        self.size, self.crop = size, RandomResizedCrop()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.files[index]
        with Image.open(path) as image:
            box, flipped = self.crop.draw(*image.size, derived(0, "crop", 0, index))
            part = image.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        if flipped:
            part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return torch.from_numpy(np.array(part)).permute(2, 0, 1).contiguous().float().div(255), label


def photographs(root: Path, count: int) -> None:
    """A folder of so many JPEGs of mixed sizes, with as much detail as photographs of that many bytes have."""
    draws = np.random.default_rng(0)
    noise = Image.fromarray(draws.integers(0, 256, (500, 500, 3), dtype=np.uint8))
    smooth = [Image.fromarray(draws.integers(0, 256, (12, 12, 3), dtype=np.uint8)) for _ in range(16)]
    pictures = [Image.blend(picture.resize(noise.size, Image.Resampling.BICUBIC), noise, 0.12) for picture in smooth]
    for number in range(count):
        folder = root / "train" / f"class{number % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        width, height = SIZES[number % len(SIZES)]
        pictures[number % len(pictures)].crop((0, 0, width, height)).save(folder / f"{number:06d}.jpg", quality=85)


def cpu_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def streaming(
    images: Annotated[int, typer.Option(help="JPEGs, of mixed sizes, in a folder made for this.")] = 2000,
    size: Annotated[int, typer.Option(help="Pixels to which they are cropped and resized.")] = 224,
    batch_size: Annotated[int, typer.Option(help="Images in a batch.")] = 128,
    workers: Annotated[int | None, typer.Option(help="Processes that decode; one per CPU.", show_default=False)] = None,
    rounds: Annotated[int, typer.Option(help="Epochs of each, in turn.")] = 5,
) -> None:
    """Images a second of an epoch of streamed batches, and of a plain DataLoader over the same folder, in turn."""
    for name, value in (("--images", images), ("--rounds", rounds), ("--size", size), ("--batch-size", batch_size)):
        check_count(name, value)
    workers = usable_cpus() if workers is None else workers
    with tempfile.TemporaryDirectory() as folder:
        say(console_for(stderr=True), f"writing {images} JPEGs")
        photographs(Path(folder), images)
        stream = open_images(folder, "train", image_size=size, streaming=True, workers=workers)
        assert isinstance(stream, ImageStream)
        batches = Batches(data=stream, batch_size=batch_size, seed=0, augmentation=RandomResizedCrop())
        plain = DataLoader(PlainFolder(Path(folder), size), batch_size, shuffle=True, num_workers=workers)
        variants: dict[str, Callable[[int], Iterator[Any]]] = {
            "streamed": batches.epoch,
            "plain DataLoader": lambda _: iter(plain),
        }
        seconds: dict[str, list[float]] = {name: [] for name in variants}
        busy: dict[str, list[float]] = {name: [] for name in variants}
        for number in range(rounds + 1):  # the first is a warm-up
            for name, epoch in variants.items():
                began, before = time.perf_counter(), cpu_seconds()
                for _ in epoch(number):
                    pass
                took = time.perf_counter() - began
                if number:
                    seconds[name].append(took)
                    busy[name].append((cpu_seconds() - before) / took)
            say(console_for(stderr=True), f"round {number} of {rounds}")
    ratios = sorted(own / other for own, other in zip(*seconds.values(), strict=True))
    rows = [
        (
            name,
            f"{images / statistics.median(found):.0f}",
            f"{images / max(found):.0f} to {images / min(found):.0f}",
            f"{statistics.median(busy[name]):.2f}",
            f"{1000 * statistics.median(busy[name]) * statistics.median(found) / images:.2f}",
        )
        for name, found in seconds.items()
    ]
    show_table(console_for(), ("", "images/s", "range", "CPUs busy", "CPU ms an image"), rows)
    say(
        console_for(),
        f"time of an epoch, streamed over plain: {statistics.median(ratios):.3f} ({ratios[0]:.3f} to "
        f"{ratios[-1]:.3f}); {images} JPEGs to {size} pixels, batches of {batch_size}, {workers} processes",
    )
