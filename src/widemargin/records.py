"""Records on disk, JSON as a whole or in lines, that show whether they still are what was written.

A record carries a digest of itself, and of what it belongs to, so that one of another place does not fit. Records of
earlier versions have none and are taken as they are. The digest is of the values: line ends, indentation and a
byte-order mark do not matter.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from widemargin.errors import InputError

DIGEST = "digest"
Record = dict[str, Any]


def digest_of(*values: Any) -> str:
    """What tells these values from all others."""
    plain = json.loads(json.dumps(values))  # what a reader will see: lists for tuples, words as keys
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def sealed(record: Mapping[str, Any], *of: Any) -> Record:
    """The record with its digest; ``of`` is what it belongs to."""
    return {**record, DIGEST: digest_of(record, *of)}


def unsealed(record: Mapping[str, Any], *of: Any, path: Path, remedy: str) -> Record:
    """The record without its digest; refused where that does not fit."""
    content = {key: value for key, value in record.items() if key != DIGEST}
    if DIGEST in record and record[DIGEST] != digest_of(content, *of):
        raise changed(path, remedy)
    return content


def changed(path: Path, remedy: str) -> InputError:
    """The refusal of a file that is not what was written."""
    return InputError(
        f"{path} does not fit its digest, so it was changed, damaged, or brought from elsewhere; {remedy}"
    )


def read_text(path: Path) -> str:
    """A file's text, without a byte-order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text; was it damaged?") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def parsed(path: Path, text: str, remedy: str = "Write it again, or move it away") -> Any:
    """What a whole JSON file of this text says."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        place = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "too deep"
        raise InputError(f"{path} is not valid JSON ({place}); was it cut off? {remedy}") from None


def read_table(path: Path, remedy: str) -> Record:
    """A whole JSON file that holds a table of ours, which fits its digest."""
    content = parsed(path, read_text(path), remedy)
    if not isinstance(content, dict):
        raise InputError(f"{path} must be a table; {remedy}")
    return unsealed(content, path=path, remedy=remedy)


@dataclass(frozen=True)
class Lines:
    """The tables that the lines of a file hold, by their numbers, and the numbers of those that hold none."""

    found: Sequence[tuple[int, Record]]
    bad: Sequence[int]
    cut_off: bool
    """Whether the only bad line is the last one, and has no end: its writer was interrupted."""


def read_lines(path: Path) -> Lines:
    """What can be read of a file of JSON lines."""
    try:
        content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    found: list[tuple[int, Record]] = []
    bad: list[int] = []
    texts = content.split(b"\n")
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text.decode())
        except (ValueError, RecursionError):
            line = None
        if isinstance(line, dict):
            found.append((number, line))
        else:
            bad.append(number)
    return Lines(found, bad, cut_off=bad == [len(texts)])


def shard_lines(header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *of: Any) -> str:
    """A finished shard of an evaluation: a header line, which carries the digest of all, and a line per example."""
    head = {**header, DIGEST: digest_of(header, rows, *of)}
    return "".join(json.dumps(line) + "\n" for line in (head, *rows))


def read_shard(path: Path, text: str, *of: Any) -> tuple[Record, list[Record]]:
    """(header, examples); refused where its digest does not fit, or, without one, where the lines cannot be a shard."""
    remedy = "remove it, and the same evaluation judges its images again"
    lines = [parsed(path, line, remedy) for line in text.splitlines()]
    try:
        header, *rows = lines
        content = {key: value for key, value in header.items() if key != DIGEST}
        if DIGEST in header and header[DIGEST] != digest_of(content, rows, *of):
            raise changed(path, remedy)
        if header["count"] != len(rows) or not _is_shard(header["first"], rows):
            raise InputError(f"{path} lacks lines, or has too many or other ones; {remedy}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} holds lines that are no records of examples; {remedy}") from None
    return header, rows


def _is_shard(first: int, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these are examples one after the other, each with the same verdicts and a clean one that is true."""
    names = rows[0]["verdicts"].keys() if rows else ()
    return all(
        row["index"] == first + place
        and row["verdicts"].keys() == names
        and all(type(verdict) is bool for verdict in row["verdicts"].values())
        and row["verdicts"]["clean"] == (row["prediction"] == row["label"])
        for place, row in enumerate(rows)
    )
