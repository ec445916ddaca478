"""The metrics of a run: one JSON line per epoch, on disk as soon as the epoch ends."""

import json
import os
from pathlib import Path
from typing import Any

from widemargin.errors import InputError
from widemargin.files import refused, write_text_whole

METRICS = "metrics.jsonl"
Line = dict[str, Any]


def read_metrics(folder: Path) -> list[Line]:
    """The lines written so far; a line cut off by a crash is left out."""
    path = folder / METRICS
    if not path.is_file():
        return []
    lines = []
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
        if not isinstance(lines[-1], dict) or "epoch" not in lines[-1]:
            raise InputError(f"{path}: line {number} is not a metrics line; the file was changed by hand, remove it")
    return lines


def keep_until(folder: Path, epoch: int) -> None:
    """Drop the lines after ``epoch``: they belong to work that is about to be done again."""
    kept = [json.dumps(line) + "\n" for line in read_metrics(folder) if line["epoch"] <= epoch]
    write_text_whole(folder / METRICS, "".join(kept))


def append_line(folder: Path, line: Line) -> None:
    """Add one line and flush it to the disk."""
    path = folder / METRICS
    try:
        with path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        raise refused(f"write {path}", error) from None
