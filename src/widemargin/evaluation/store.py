"""What an evaluation writes down, so that it can be killed anywhere and go on.

``parts/`` holds one small file for each finished piece of a shard (an attack, the margins), ``shards/`` the finished
shards as JSON lines. Every file is whole or not there, and carries a digest of itself, the settings and the images it
is of: another one is refused by its name. Without a folder everything stays in memory. A folder is held while an
evaluation works there.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from widemargin.errors import InputError
from widemargin.evaluation.shards import Shard
from widemargin.files import held, make_folder, write_text_whole
from widemargin.records import DIGEST, LINES, Record, parsed, parsed_shard, read_text, sealed, shard_lines, unsealed

SETTINGS, PARTS, SHARDS = "settings.json", "parts", "shards"
AGAIN = "remove it, and the same command makes it again"


class Store:
    """Pieces and shards, on disk or in memory."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._memory: dict[str, str] = {}
        self._settings: Any = None
        self.without_digest: set[int] = set()
        """Finished shards of versions that kept no digest."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """The folder is this evaluation's alone inside; a second one is refused. A kill lets go of it."""
        if self.folder is None:
            yield
            return
        with suppress(OSError):  # only made: what another evaluation may be writing there is not ours to sweep away
            self.folder.mkdir(parents=True, exist_ok=True)
        if not self.folder.is_dir():
            make_folder(self.folder)  # which says why there can be none
        with held(self.folder):
            yield

    def claim(self, settings: Record) -> None:
        """Write the settings, or see that the evaluation found here has the same."""
        text = json.dumps(settings, indent=2, sort_keys=True)
        if self.folder is not None:
            make_folder(self.folder)
        found = self._table(SETTINGS, "put back a copy of it, or choose another --out")
        if found is None:
            self._write(SETTINGS, text)
        elif found != json.loads(text):
            ours, theirs = json.loads(text), found
            keys = [key for key in dict.fromkeys([*ours, *theirs]) if ours.get(key) != theirs.get(key)]
            told = "; ".join(f"{key}: {ours.get(key)!r} here, {theirs.get(key)!r} there" for key in keys)
            hint = ", or give the --step-size it was begun with" if keys == ["step_size"] else ""
            raise InputError(f"{self.folder} holds another evaluation ({told}); choose another --out{hint}")

    def part(self, shard: int, name: str) -> Record | None:
        """A finished piece of a shard."""
        return self._unsealed(_part(shard, name), name, self._owner(shard))

    def write_part(self, shard: int, name: str, piece: Record) -> None:
        """Write a finished piece."""
        self._write(_part(shard, name), json.dumps(sealed(piece, name, self._owner(shard))))

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

    def finished(self, shard: Shard) -> bool:
        """Whether the shard of these examples is finished; refuses to go on with one of others."""
        name, digest = _images(shard.number), shard.digest()
        found = self._read(name)
        if found is None:
            self._write(name, digest)
        elif found.strip() != digest:
            raise InputError(
                f"{self.folder} holds an evaluation on other images (shard {shard.number} has others: another data "
                "set, or another --limit); give what it was begun with, or choose another --out"
            )
        if self._read(_shard(shard.number)) is None:
            return False
        header, rows = self.shard(shard.number)
        ours = list(enumerate(shard.labels.tolist(), start=shard.first))
        if header["first"] != shard.first or [(row["index"], row["label"]) for row in rows] != ours:
            raise self._misfit(_shard(shard.number), "does not hold the examples of its images, one line each")
        return True

    def write_shard(self, number: int, header: Record, examples: list[Record]) -> None:
        """Write a finished shard: a header line, then a line per example; its pieces are no longer needed."""
        self._write(_shard(number), shard_lines(header, examples, *self._owner(number)))
        if self.folder is not None:
            shutil.rmtree(self.folder / PARTS / f"{number:05d}", ignore_errors=True)

    def shard(self, number: int) -> tuple[Record, list[Record]]:
        """(header, examples) of a finished shard."""
        name = _shard(number)
        text = self._read(name)
        if text is None:
            raise InputError(f"{self.folder}: shard {number} is missing; run the same command again")
        header, rows = parsed_shard(self._path(name), text, *self._owner(number))
        if DIGEST not in header:
            self.without_digest.add(number)
        return header, rows

    def _owner(self, shard: int) -> tuple[Any, Any]:
        """What the records of a shard belong to: the settings and the images."""
        return self._of(), (self._read(_images(shard)) or "").strip()

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
        write_text_whole(path, text)


def _part(shard: int, name: str) -> str:
    return f"{PARTS}/{shard:05d}/{name.replace('/', '-')}.json"


def _images(number: int) -> str:
    return f"{SHARDS}/{number:05d}.sha256"


def _shard(number: int) -> str:
    return f"{SHARDS}/{number:05d}.jsonl"
