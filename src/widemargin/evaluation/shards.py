"""Data cut into shards, and what an evaluation writes down of each, so that it can be killed anywhere and go on.

``parts/`` holds one small file for each finished piece of a shard (an attack, the margins), ``shards/`` the finished
shards as JSON lines, made anew where pieces are added later. Every file is whole or not there, and carries a digest of
itself, the settings that the folder was begun with and the images it is of: another one is refused by its name. Without
a folder everything stays in memory. A folder is locked while an evaluation works there.
"""

import dataclasses
import hashlib
import io
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from widemargin.core.checks import check_batch, check_count, check_range, check_tensor
from widemargin.core.files import folder_lock, make_folder, write_atomic, write_text_atomic
from widemargin.core.records import (
    DIGEST,
    LINES,
    Record,
    digest_of_file,
    parsed,
    read_text,
    sealed,
    unsealed,
)
from widemargin.data.batches import in_order
from widemargin.data.image_set import as_images, is_square
from widemargin.data.image_stream import ImageStream, StoredImages
from widemargin.data.unpacking import is_batch, unpack
from widemargin.errors import InputError
from widemargin.evaluation.columns import CLEAN, Column, columns_of_settings
from widemargin.evaluation.examples import parsed_shard, shard_lines
from widemargin.evaluation.folder import SETTINGS, SHARDS
from widemargin.evaluation.identity import bound
from widemargin.evaluation.judged_shard import JudgedShard


@dataclass(frozen=True)
class Shard:
    """Examples from ``first`` on: images float32 in [0, 1], where the data has them, and their labels, on the CPU.

    The images are contiguous, whatever layout they came in: the backend views them flat.
    """

    number: int
    first: int
    images: Tensor
    labels: Tensor
    flat: bool = False
    """Whether the inputs came flat, (N, D), and ``images`` shows them as squares."""

    def first_images(self, count: int) -> "Shard":
        """As it would be with so many of its images."""
        return dataclasses.replace(self, images=self.images[:count], labels=self.labels[:count])

    @property
    def shows_images(self) -> bool:
        """Whether they are images (N, C, H, W), and not signals or rows of numbers."""
        return self.images.dim() == 4

    def digest(self) -> str:
        """What tells these examples from others."""
        digest = hashlib.sha256(str(tuple(self.images.shape)).encode())
        digest.update(self.images.cpu().numpy().tobytes())
        digest.update(self.labels.numpy().tobytes())
        return digest.hexdigest()


def size_of(data: object) -> int | None:
    """How many examples the data has; None where only reading it all would tell."""
    if isinstance(data, StoredImages):
        return len(data)
    if not is_batch(data):
        return None
    _, labels = unpack("evaluate", data)
    return len(labels) if labels.dim() else None


def shards(data: StoredImages | Iterable[Any], size: int, *, limit: int | None = None) -> Iterator[Shard]:
    """Cut the data into shards of ``size`` examples; only one is held at a time, and each example copied once."""
    if limit is not None:
        check_count("limit", limit)
        data = data.first(limit) if isinstance(data, ImageStream) else data  # no more are decoded
    collected: list[tuple[Tensor, Tensor]] = []
    number, room = 0, size
    for images, labels in _limited(_batches(data, size), limit):
        start = 0
        while start < len(labels):
            part = slice(start, start + room)
            collected.append((images[part], labels[part]))
            start, room = start + room, room - len(labels[part])
            if not room:
                yield _shard(number, size, collected)
                collected, number, room = [], number + 1, size
    if collected:
        yield _shard(number, size, collected)


def _shard(number: int, size: int, batches: list[tuple[Tensor, Tensor]]) -> Shard:
    x, y = torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches])
    return Shard(number, number * size, as_images(x.contiguous()), y.cpu(), flat=is_square(x))


def _batches(data: StoredImages | Iterable[Any], size: int) -> Iterator[tuple[Tensor, Tensor]]:
    if isinstance(data, StoredImages):
        yield from in_order(data, size)
    elif is_batch(data):
        yield _checked(*unpack("evaluate", data))
    else:
        _check_batched(data)
        yield from _of_batches(data)


def _of_batches(batches: Iterable[object]) -> Iterator[tuple[Tensor, Tensor]]:
    for batch in batches:
        images, labels = unpack("evaluate", batch)
        if images.shape[:1] != (0,) or labels.shape != (0,):  # an empty batch has nothing to judge
            yield _checked(images, labels)


def _check_batched(data: object) -> None:
    """Refuse what gives one example at a time, and what gives none."""
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        raise InputError(
            f"evaluate: data must give batches, got a {type(data).__name__} of single examples; wrap it in a "
            "torch.utils.data.DataLoader"
        )
    if not isinstance(data, Iterable) and not hasattr(data, "__getitem__"):
        raise InputError(
            "evaluate: data must be (images, labels), a data set or its name, or batches of pairs, got "
            f"{type(data).__name__}"
        )


def _checked(images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    check_batch("evaluate", images)
    check_range("evaluate", images)
    check_tensor("evaluate", "labels", labels)
    if labels.shape != (len(images),) or labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputError(
            f"evaluate: labels must be ({len(images)},) integers, got {labels.dtype} {tuple(labels.shape)}"
        )
    return images.detach().float(), labels.long()


def _limited(batches: Iterator[tuple[Tensor, Tensor]], limit: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    left = limit
    for images, labels in batches:
        yield images[:left], labels[:left]
        if left is not None and (left := left - len(labels)) <= 0:
            return


PARTS, ADVERSARIAL = "parts", "adversarial"
AGAIN = "remove it, and the same command makes it again"


class Store:
    """Pieces and shards, on disk or in memory."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._memory: dict[str, str] = {}
        self._settings: Any = None
        self._used: defaultdict[int, set[str]] = defaultdict(set)
        self.without_digest: set[int] = set()
        """Finished shards of versions that kept no digest."""

    @contextmanager
    def locked(self, *, shared: bool = False) -> Iterator[None]:
        """The folder is this evaluation's alone inside; a second one is refused. A kill lets go of it."""
        if self.folder is None:
            yield
            return
        with suppress(OSError):  # only made: what another evaluation may be writing there is not ours to sweep away
            self.folder.mkdir(parents=True, exist_ok=True)
        if not self.folder.is_dir():
            make_folder(self.folder)  # which says why there can be none
        with folder_lock(self.folder, shared=shared):
            yield

    def claim(self, settings: Record) -> None:
        """Write the settings, or see that the evaluation found here is of the same model, data and so on."""
        text = json.dumps(settings, indent=2, sort_keys=True)
        if self.folder is not None:
            make_folder(self.folder)
        found = self._table(SETTINGS, "put back a copy of it, or choose another --out")
        if found is None:
            self._write(SETTINGS, text)
        elif (theirs := bound(found)) != (ours := bound(json.loads(text))):
            keys = [key for key in ours if ours[key] != theirs[key]]
            changes = "; ".join(f"{key}: {ours[key]!r} here, {theirs[key]!r} there" for key in keys)
            raise InputError(f"{self.folder} holds another evaluation ({changes}); choose another --out")

    def begun_with(self) -> Record:
        """The settings of the evaluation found here; empty where there is none yet."""
        return self._of() or {}

    def part(self, shard: int, name: str, column: Column | None = None) -> Record | None:
        """A finished piece of a shard: of that name, or, of that column, by the name that earlier versions gave it."""
        former = next((label for label, old in columns_of_settings(self.begun_with()).items() if old == column), name)
        for known in dict.fromkeys((name, former)):
            found = self._unsealed(_part_file(shard, known), known, self._owner(shard))
            if found is not None:
                self._used[shard].add(_part_file(shard, known))
                return found
        return None

    def write_part(self, shard: int, name: str, piece: Record) -> None:
        """Write a finished piece."""
        self._write(_part_file(shard, name), json.dumps(sealed(piece, name, self._owner(shard))))
        self._used[shard].add(_part_file(shard, name))

    def note(self, name: str) -> Record | None:
        """Something found out once for the whole evaluation."""
        return self._unsealed(f"{name}.json", name, self._of())

    def write_note(self, name: str, content: Record) -> None:
        """Write it down."""
        self._write(f"{name}.json", json.dumps(sealed(content, name, self._of())))

    @property
    def begun(self) -> bool:
        """Whether something of it is on disk already."""
        return self.folder is not None and any((self.folder / name).is_dir() for name in (PARTS, SHARDS))

    def judged(self, shard: Shard) -> JudgedShard | None:
        """What is known of a finished shard of these examples; refuses to go on with one of others."""
        name, digest = _images_file(shard.number), shard.digest()
        found = self._read(name)
        if found is not None and found.strip() != digest:
            self._forget_fewer(shard, found.strip())
            found = None
        if found is None:
            self._write(name, digest)
        if self._read(_shard_file(shard.number)) is None:
            return None
        judged = self.shard(shard.number)
        if judged.first != shard.first or judged.labels != shard.labels.tolist():
            raise self._misfit(_shard_file(shard.number), "does not hold the examples of its images, one line each")
        return judged

    def _forget_fewer(self, shard: Shard, digest: str) -> None:
        """Remove what was found of the first images of this shard, which has more now: random numbers are the shard's.

        A shard of other images is refused.
        """
        count = self._count(shard.number)
        if count is not None and (count >= len(shard.labels) or shard.first_images(count).digest() != digest):
            raise InputError(
                f"{self.folder} holds an evaluation on other images (shard {shard.number} has others: another data "
                "set, or a smaller --limit); give what it was begun with, or choose another --out"
            )
        if self.folder is not None:
            (self.folder / _shard_file(shard.number)).unlink(missing_ok=True)
            for kind in (PARTS, ADVERSARIAL):
                shutil.rmtree(self.folder / kind / f"{shard.number:05d}", ignore_errors=True)

    def _count(self, number: int) -> int | None:
        """How many images of a shard were judged; None where none was."""
        if self._read(_shard_file(number)) is not None:
            return len(self.shard(number).labels)
        clean = self.part(number, CLEAN)
        return None if clean is None else len(clean["predictions"])

    def write_shard(self, number: int, header: Record, examples: list[Record]) -> None:
        """Write a finished shard: a header line, then a line per example; the pieces it was made of go.

        Pieces that an interrupted evaluation left there, and that were not asked for now, stay.
        """
        self._write(_shard_file(number), shard_lines(header, examples, *self._owner(number)))
        if self.folder is not None:
            for name in self._used.pop(number, ()):
                (self.folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # where some stay
                (self.folder / PARTS / f"{number:05d}").rmdir()

    def shard(self, number: int) -> JudgedShard:
        """A finished shard."""
        name = _shard_file(number)
        text = self._read(name)
        if text is None:
            raise InputError(f"{self.folder}: shard {number} is missing; run the same command again")
        header, rows = parsed_shard(self._path(name), text, *self._owner(number))
        if DIGEST not in header:
            self.without_digest.add(number)
        return JudgedShard.from_lines(header, rows, self.begun_with())

    def write_images(self, shard: int, name: str, arrays: Mapping[str, "np.ndarray[Any, Any]"]) -> str:
        """Write adversarial images of a shard, and give the digest of their file."""
        path = self.images_file(shard, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
        write_atomic(path, lambda partial: partial.write_bytes(content.getvalue()))
        return digest_of_file(path)

    def images_file(self, shard: int, name: str) -> Path:
        """Where the adversarial images of that piece are."""
        return self._path(f"{ADVERSARIAL}/{shard:05d}/{_file_name(name)}.npz")

    def _owner(self, shard: int) -> tuple[Any, Any]:
        """What the records of a shard belong to: the settings and the images."""
        return self._of(), (self._read(_images_file(shard)) or "").strip()

    def _of(self) -> Any:
        if self._settings is None:
            self._settings = self._table(SETTINGS, "put back a copy of it, or choose another --out")
        return self._settings

    def _unsealed(self, name: str, *of: Any) -> Record | None:
        table = self._table(name, AGAIN)
        return None if table is None else unsealed(table, *of, path=self._path(name), remedy=AGAIN)

    def _table(self, name: str, remedy: str) -> Record | None:
        text = self._read(name)
        if text is None:
            return None
        table = parsed(self._path(name), text, remedy)
        if not isinstance(table, dict):
            raise InputError(f"{self._path(name)} must be a table; {remedy}")
        return table

    def _misfit(self, name: str, what: str) -> InputError:
        return InputError(f"{self._path(name)} {what}; {AGAIN}")

    def _path(self, name: str) -> Path:
        return (self.folder or Path()) / name

    def _read(self, name: str) -> str | None:
        if self.folder is None:
            return self._memory.get(name)
        path = self.folder / name
        return read_text(path, LINES) if path.is_file() else None

    def _write(self, name: str, text: str) -> None:
        if self.folder is None:
            self._memory[name] = text
            return
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomic(path, text)


def _part_file(shard: int, name: str) -> str:
    return f"{PARTS}/{shard:05d}/{_file_name(name)}.json"


def _file_name(name: str) -> str:
    """That of a piece; attacks of the user's own may be called anything."""
    plain = name.replace("/", "-")
    if re.fullmatch(r"[\w.@=+-]{1,100}", plain, flags=re.ASCII):
        return plain
    return f"{re.sub(r'[^A-Za-z0-9_.@=+-]', '-', plain)[:60]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def _images_file(number: int) -> str:
    return f"{SHARDS}/{number:05d}.sha256"


def _shard_file(number: int) -> str:
    return f"{SHARDS}/{number:05d}.jsonl"
