"""What an evaluation writes down, so that it can be killed anywhere and go on.

``parts/`` holds one small file for each finished piece of a shard (an attack, the margins), ``shards/`` the finished
shards as JSON lines. Every file is whole or not there. Without a folder everything stays in memory. A folder is held
while an evaluation works there.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from widemargin.errors import InputError
from widemargin.files import held, make_folder, write_text_whole

SETTINGS, PARTS, SHARDS = "settings.json", "parts", "shards"
Record = dict[str, Any]


class Store:
    """Pieces and shards, on disk or in memory."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._memory: dict[str, str] = {}

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
        found = self._read(SETTINGS)
        if found is None:
            self._write(SETTINGS, text)
        elif json.loads(found) != json.loads(text):
            ours, theirs = json.loads(text), json.loads(found)
            keys = [key for key in dict.fromkeys([*ours, *theirs]) if ours.get(key) != theirs.get(key)]
            told = "; ".join(f"{key}: {ours.get(key)!r} here, {theirs.get(key)!r} there" for key in keys)
            hint = ", or give the --step-size it was begun with" if keys == ["step_size"] else ""
            raise InputError(f"{self.folder} holds another evaluation ({told}); choose another --out{hint}")

    def part(self, shard: int, name: str) -> Record | None:
        """A finished piece of a shard."""
        text = self._read(_part(shard, name))
        return None if text is None else json.loads(text)

    def write_part(self, shard: int, name: str, piece: Record) -> None:
        """Write a finished piece."""
        self._write(_part(shard, name), json.dumps(piece))

    def note(self, name: str) -> Record | None:
        """Something found out once for the whole evaluation."""
        text = self._read(f"{name}.json")
        return None if text is None else json.loads(text)

    def write_note(self, name: str, content: Record) -> None:
        """Write it down."""
        self._write(f"{name}.json", json.dumps(content))

    def finished(self, number: int, digest: str) -> bool:
        """Whether a shard of these examples is finished; refuses to go on with one of others."""
        name = f"{SHARDS}/{number:05d}.sha256"
        found = self._read(name)
        if found is None:
            self._write(name, digest)
        elif found != digest:
            raise InputError(
                f"{self.folder} holds an evaluation on other images (shard {number} has others: another data set, or "
                "another --limit); give what it was begun with, or choose another --out"
            )
        return self._read(_shard(number)) is not None

    def write_shard(self, number: int, header: Record, examples: list[Record]) -> None:
        """Write a finished shard: a header line, then a line per example; its pieces are no longer needed."""
        lines = [json.dumps(header), *(json.dumps(example) for example in examples)]
        self._write(_shard(number), "\n".join(lines) + "\n")
        if self.folder is not None:
            shutil.rmtree(self.folder / PARTS / f"{number:05d}", ignore_errors=True)

    def shard(self, number: int) -> tuple[Record, Iterator[Record]]:
        """(header, examples) of a finished shard."""
        text = self._read(_shard(number))
        if text is None:
            raise InputError(f"{self.folder}: shard {number} is missing; run the same command again")
        lines = text.splitlines()
        return json.loads(lines[0]), (json.loads(line) for line in lines[1:])

    def _read(self, name: str) -> str | None:
        if self.folder is None:
            return self._memory.get(name)
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def _write(self, name: str, text: str) -> None:
        if self.folder is None:
            self._memory[name] = text
            return
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_whole(path, text)


def _part(shard: int, name: str) -> str:
    return f"{PARTS}/{shard:05d}/{name.replace('/', '-')}.json"


def _shard(number: int) -> str:
    return f"{SHARDS}/{number:05d}.jsonl"
