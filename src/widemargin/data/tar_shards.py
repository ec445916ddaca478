"""Tar shards as WebDataset lays them out: ``root/train/*.tar`` and ``root/test/*.tar``, or ``root/*.tar`` as one set.

A sample is the files of one key: ``some/key.jpg`` is the image and ``some/key.cls`` (a number) or ``some/key.json`` (a
table with ``label``) its class; other files are passed over. The headers are read once. After that an image is a place
in a shard, which is read by seeking: nothing is extracted, no name in a shard becomes a path, and links and devices are
passed over like any other file that is no sample.
"""

import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from widemargin.core.files import check_file, readable
from widemargin.data.decoding import EXTENSIONS, ImageForm, common_form
from widemargin.data.image_stream import ImageStream
from widemargin.data.unpacking import LABELS
from widemargin.errors import InputError

MOST_OF_LABEL, MOST_OF_IMAGE = 1 << 20, 1 << 30
"""Bytes."""
_ZEROS = bytes(tarfile.BLOCKSIZE)
_FORM = "root/train/*.tar and root/test/*.tar with KEY.jpg and KEY.cls or KEY.json, as WebDataset writes them"


@dataclass(frozen=True, eq=False)
class TarFiles:
    """Where each image is: its shard, its first byte there and its length."""

    shards: tuple[str, ...]
    which: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    keys: bytes
    """One after the other."""
    ends: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.which)

    def open(self, number: int) -> BinaryIO:
        """The image's bytes."""
        with Path(self.shards[self.which[number]]).open("rb") as shard:
            shard.seek(int(self.offsets[number]))
            return io.BytesIO(shard.read(int(self.sizes[number])))

    def name(self, number: int) -> str:
        """The shard, and the image in it."""
        key = self.keys[self.ends[number - 1] if number else 0 : self.ends[number]]
        return f"{self.shards[self.which[number]]}: {_printable(key.decode(errors='replace'))}"


@dataclass
class _Sample:
    key: str
    image: tuple[int, int] | None = None
    label: int | None = None
    seen: set[str] = field(default_factory=set)


def is_tar(path: Path) -> bool:
    """Whether it is a shard, or a folder of shards."""
    if path.is_file():
        return path.suffix == ".tar"
    return any(next((path / part).glob("*.tar*"), None) for part in ("", "train", "test"))  # packed ones are refused


def is_divided(root: Path) -> bool:
    """Whether there are shards for training or for testing, and not a single set."""
    return root.is_dir() and any(_shards(root / part) for part in ("train", "test"))


def open_tar_shards(
    root: Path,
    split: str,
    *,
    image_size: int | None = None,
    num_classes: int | None = None,
    workers: int | None = None,
) -> ImageStream:
    """The images of one split; shards do not name their classes, so unless told there are as many as labels say."""
    part = root / split if is_divided(root) else root
    shards = _shards(part) if part.is_dir() else [part] * part.is_file()
    if not shards:
        raise InputError(f"{part}: holds no .tar; arrange shards as {_FORM} (packed ones, .tar.gz, must be unpacked)")
    found = [(number, sample) for number, shard in enumerate(shards) for sample in _samples(shard)]
    if not found:
        raise InputError(f"{part}: its shards hold no image; write them as {_FORM}")
    labels = torch.tensor([sample.label for _, sample in found], dtype=torch.int64)
    files = TarFiles(
        shards=tuple(map(str, shards)),
        which=np.array([number for number, _ in found]),
        offsets=np.array([sample.image[0] for _, sample in found if sample.image]),
        sizes=np.array([sample.image[1] for _, sample in found if sample.image]),
        keys=b"".join(sample.key.encode(errors="surrogateescape") for _, sample in found),
        ends=np.cumsum([len(sample.key.encode(errors="surrogateescape")) for _, sample in found]),
    )
    largest = int(labels.max())
    if num_classes is not None and largest >= num_classes:
        where = files.name(int(labels.argmax()))
        raise InputError(f"{where} has the label {largest}, and there are {num_classes} classes, from 0 on; correct it")
    return ImageStream(
        files=files,
        labels=labels,
        num_classes=max(2, largest + 1) if num_classes is None else num_classes,
        name=root.resolve().name or str(root),
        form=common_form(files) if image_size is None else ImageForm(image_size, image_size, "RGB", resized=True),
        rows=np.arange(len(files)),
        workers=workers,
    )


def _shards(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.tar") if not path.name.startswith("."))


def _samples(shard: Path) -> Iterator[_Sample]:
    """In the order of their first files; a sample has an image and a label, or is refused."""
    samples: dict[str, _Sample] = {}
    check_file(shard)
    with (
        readable(f"{shard}: cannot be read as a tar file", "fetch it again; a packed one (.tar.gz) must be unpacked"),
        tarfile.open(shard, "r:") as archive,
        shard.open("rb") as content,
    ):
        whole = shard.stat().st_size
        for member in archive:
            folder, _, name = member.name.rpartition("/")
            stem, _, ending = name.partition(".")
            kind = ending.lower()
            if not stem or not member.isreg() or member.sparse is not None:
                continue
            if f".{kind}" not in EXTENSIONS and kind not in ("cls", "json"):
                continue
            where = f"{shard}: {_printable(member.name)}"
            if not 0 <= member.size <= whole - member.offset_data:
                raise InputError(f"{where} is cut short; fetch the shard again")
            sample = samples.setdefault(f"{folder}/{stem}", _Sample(member.name))
            part = kind if kind in ("cls", "json") else "image"
            if part in sample.seen:
                raise InputError(f"{where}: its key has two of these; give every sample a key of its own")
            sample.seen.add(part)
            if part == "image":
                if member.size > MOST_OF_IMAGE:
                    raise InputError(f"{where} has {member.size} bytes, too many for an image; remove it")
                sample.key, sample.image = member.name, (member.offset_data, member.size)
            elif part == "cls" or sample.label is None:
                sample.label = _label(content, member, part, where)
        content.seek(archive.offset)
        if content.read(tarfile.BLOCKSIZE) not in (b"", _ZEROS):  # tarfile ends there without a word
            raise InputError(f"{shard}: is damaged from byte {archive.offset} on; fetch it again")
    for sample in samples.values():
        if sample.image is None and "cls" not in sample.seen:  # a table of something else
            continue
        if sample.image is None or sample.label is None:
            missing = "label (KEY.cls, or KEY.json with label)" if sample.image else f"image ({', '.join(EXTENSIONS)})"
            raise InputError(f"{shard}: {_printable(sample.key)} has no {missing} beside it; write both, or neither")
        yield sample


def _label(content: BinaryIO, member: tarfile.TarInfo, kind: str, where: str) -> int | None:
    """The class number; None where a table has none."""
    content.seek(member.offset_data)
    text = content.read(min(member.size, MOST_OF_LABEL))
    label: Any = None
    try:
        label = int(text.decode("ascii")) if kind == "cls" else json.loads(text)
    except (ValueError, RecursionError):
        wanted = "class number" if kind == "cls" else "JSON table"
        raise InputError(f"{where} must hold a {wanted}; write it again") from None
    if kind == "json":
        label = next((label[name] for name in LABELS if name in label), None) if isinstance(label, dict) else label
    if label is None:
        return None
    if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < 2**31:
        told = _printable(repr(label))[:50]
        raise InputError(f"{where}: the label must be a class number from 0 on, got {told}; write it again")
    return label


def _printable(text: str) -> str:
    """Names in a shard are anybody's."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
