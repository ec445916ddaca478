"""The metrics of a run: one JSON line per epoch, on disk as soon as the epoch ends.

Checkpoints hold a digest of each line, without its times, so a line that is no longer what this run measured is seen.
"""

import json
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from widemargin.errors import InputError, WidemarginWarning
from widemargin.files import refused, write_text_whole, write_whole
from widemargin.records import Lines, digest_of

METRICS = "metrics.jsonl"
Line = dict[str, Any]
Digests = dict[int, int]
"""Of the line of each epoch."""


def read_metrics(folder: Path) -> list[Line]:
    """The lines that read; the others are told, but for one cut off by a crash."""
    lines, trouble = _read(folder)
    if trouble:
        warnings.warn(f"{folder / METRICS}: {'; '.join(trouble)}", WidemarginWarning, stacklevel=2)
    return [line for _, line in lines]


def read_whole(folder: Path) -> list[Line]:
    """The lines of a run that has nothing to make them again from: every epoch has one, or it is refused."""
    lines, trouble = _read(folder)
    trouble = trouble or _gaps([line["epoch"] for _, line in lines])
    if trouble:
        raise InputError(
            f"{folder / METRICS}: {'; '.join(trouble)}, and there is no checkpoint to go on from; put back a copy of "
            "it, or choose another --out"
        )
    return [line for _, line in lines]


def digest_line(line: Line) -> int:
    """A number that tells what was measured from all else; how long it took is left out."""
    return int(digest_of({key: value for key, value in line.items() if not key.endswith("seconds")})[:15], 16)


def keep_until(folder: Path, epoch: int, digests: Mapping[int, int] | None = None) -> Digests:
    """Drop the lines after ``epoch``: they belong to work that is about to be done again.

    A file that lacks one of the lines before, or holds other ones, is set aside and told; every good line is kept.
    Returns the digests of those.
    """
    lines, trouble = _read(folder)
    kept: dict[int, Line] = {}
    for number, line in ((number, line) for number, line in lines if line["epoch"] <= epoch):
        if digests is not None and digests.get(line["epoch"]) != digest_line(line):
            trouble.append(f"line {number} is not what this run measured in epoch {line['epoch']}")
        elif line["epoch"] in kept:
            trouble.append(f"line {number} repeats epoch {line['epoch']}")
        else:
            kept[line["epoch"]] = line
    if epoch == 0 and len(lines) > 1:  # a crash before the first checkpoint leaves one
        trouble.append(f"there is no checkpoint to go on from after its {len(lines)} epochs, so the run begins anew")
    ordered = sorted(kept)
    if ordered != list(kept):
        trouble.append("its lines are out of order")
    lost = [number for number in (range(1, epoch + 1) if digests is None else digests) if number not in kept]
    text = "".join(json.dumps(kept[number]) + "\n" for number in ordered)
    if trouble or lost:
        _set_aside(folder, [*trouble, *([f"nothing is left of {_epochs(lost)}"] if lost else [])], text)
    write_text_whole(folder / METRICS, text)
    return {number: digest_line(kept[number]) for number in ordered}


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


def _read(folder: Path) -> tuple[list[tuple[int, Line]], list[str]]:
    """The lines with their numbers, and what is wrong with the others."""
    path = folder / METRICS
    if not path.is_file():
        return [], []
    unread: list[int] = []
    whole: list[tuple[int, Line]] = []
    strange: list[int] = []
    for number, line in Lines(path, bad=unread).numbered():
        if type(line.get("epoch")) is int and line["epoch"] > 0:
            whole.append((number, line))
        else:
            strange.append(number)
    trouble = [f"line {number} cannot be read" for number in unread]
    return whole, trouble + [f"line {number} is not a metrics line" for number in strange]


def _gaps(epochs: Sequence[int]) -> list[str]:
    """What is wrong where lines are not one for each epoch in order."""
    return [] if list(epochs) == list(range(1, len(epochs) + 1)) else ["its lines are not one for each epoch in order"]


def _set_aside(folder: Path, trouble: Sequence[str], goes_on: str) -> None:
    path, place = folder / METRICS, "put back a copy of it, if there is one"
    if path.is_file() and path.read_bytes() != goes_on.encode():
        aside = _free(folder / f"{METRICS}.damaged")
        write_whole(aside, partial(shutil.copyfile, path))
        place = f"the file as it was is now {aside.name}, and what could be read goes on"
    warnings.warn(f"{path}: {'; '.join(trouble)}; {place}", WidemarginWarning, stacklevel=4)


def _free(path: Path) -> Path:
    """This name, or the first with a number that nothing has."""
    number, free = 1, path
    while free.exists():
        number, free = number + 1, path.with_name(f"{path.name}-{number + 1}")
    return free


def _epochs(numbers: Sequence[int]) -> str:
    """Runs of them as people say them: "epochs 1-4, 7"."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return f"epoch{'s' * (len(numbers) > 1)} {', '.join('-'.join(map(str, part)) for part in parts)}"
