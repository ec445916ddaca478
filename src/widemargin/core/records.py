"""Records on disk, JSON as a whole or in lines, that show whether they still are what was written.

A record carries a digest of itself, and of what it belongs to, so that one of another place does not fit. Records of
earlier versions have none and are taken as they are. The digest is of the values: line ends, indentation and a
byte-order mark do not matter.

Every reader has a bound, so that no file can take more time or memory than what it should hold.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

from widemargin.errors import InputError

MIB = 2**20
TEXT, LINES, LINE = 8 * MIB, 128 * MIB, MIB // 4
"""Bytes of a file that is read as a whole, of one that is read line by line, and of one of its lines."""
ENTRIES, DEPTH, WORDS = 100_000, 40, 4096
"""Entries of a list or a table, tables inside each other, characters of a text."""
DIGEST = "digest"
SHARD_AGAIN = "remove it, and the same evaluation judges its images again"
Record = dict[str, Any]


def digest_of(*values: Any) -> str:
    """What tells these values from all others."""
    plain = json.loads(json.dumps(values))  # what a reader will see: lists for tuples, words as keys
    return hashlib.sha256(_canonical(plain)).hexdigest()


def digest_of_file(path: Path, most: int = LINES) -> str:
    """What tells the bytes of this file from all others."""
    try:
        with _opened(path) as stream:
            if path.stat().st_size > most:
                raise _too_large(path, most)
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, error) from None


@dataclass
class Digested:
    """Records that are passed on one after the other, and the digest of those so far."""

    records: Iterable[Mapping[str, Any]]
    _sum: Any = field(default_factory=hashlib.sha256)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for record in self.records:
            self._sum.update(_canonical(record) + b"\n")
            yield record

    @property
    def digest(self) -> str:
        """Of all that went by."""
        return str(self._sum.hexdigest())


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


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


def read_text(path: Path, most: int = TEXT) -> str:
    """A file's text, without a byte-order mark."""
    try:
        with _opened(path) as stream:
            content = stream.read(most + 1)
        if len(content) > most:
            raise _too_large(path, most)
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text; was it damaged?") from None
    except OSError as error:
        raise _unreadable(path, error) from None


def parsed(path: Path, text: str, remedy: str) -> Any:
    """What a whole JSON file of this text says."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        place = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else _why(error)
        told = remedy[:1].upper() + remedy[1:]
        raise InputError(f"{path} is not valid JSON ({place}); was it cut off? {told}") from None


def read_table(path: Path, remedy: str) -> Record:
    """A whole JSON file that holds a table of ours, which fits its digest."""
    content = parsed(path, read_text(path), remedy)
    if not isinstance(content, dict):
        raise InputError(f"{path} must be a table; {remedy}")
    return unsealed(content, path=path, remedy=remedy)


@dataclass
class Lines:
    """The tables that the lines of a file hold, one after the other.

    The first line that holds none is refused, or, where there is a list of ``bad`` ones, its number goes there.
    """

    path: Path
    most: int = LINES
    bad: list[int] | None = None
    cut_off: bool = False
    """Whether the last line has no end, as its writer was interrupted."""

    def __iter__(self) -> Iterator[Record]:
        return (table for _, table in self.numbered())

    def numbered(self) -> Iterator[tuple[int, Record]]:
        """The same with the number of each line."""
        try:
            with _opened(self.path) as stream:
                for number, text in self._texts(stream):
                    table = self._table(number, text) if text.strip() else None
                    if table is not None:
                        yield number, table
        except OSError as error:
            raise _unreadable(self.path, error) from None

    def _texts(self, stream: BufferedReader) -> Iterator[tuple[int, bytes]]:
        """Each line; of one that is too long no more than shows it."""
        left, number = self.most, 0
        while text := stream.readline(LINE + 1):
            left, number = left - len(text), number + 1
            if left < 0 or number > ENTRIES * 10:
                raise _too_large(self.path, self.most)
            yield number, text.removeprefix(b"\xef\xbb\xbf") if number == 1 else text
            while len(text) > LINE and not text.endswith(b"\n"):
                text = stream.readline(LINE + 1)
                left -= len(text)

    def _table(self, number: int, text: bytes) -> Record | None:
        """What a line holds; None where it is bad, or cut off."""
        try:
            if len(text) > LINE:
                raise InputError(f"{self.path}: line {number} has more than {LINE:,} bytes; was the file damaged?")
            line = json.loads(text.decode())
            if not isinstance(line, dict):
                raise InputError(f"{self.path}: line {number} must be a table, got {shortened(repr(line))}")
            sound(self.path, line)
        except (ValueError, RecursionError) as error:
            plain = isinstance(error, json.JSONDecodeError | UnicodeDecodeError)
            if plain and not text.endswith(b"\n"):
                self.cut_off = True
            elif self.bad is not None:
                self.bad.append(number)
            elif isinstance(error, InputError):
                raise
            else:
                why = "" if plain else f" ({_why(error)})"
                raise InputError(f"{self.path}: line {number} is not valid JSON{why}; was the file damaged?") from None
            return None
        return line


def read_lines(path: Path) -> tuple[list[Record], bool]:
    """All JSON lines of a file that is being written, and whether the last one is cut off."""
    lines = Lines(path)
    return list(lines), lines.cut_off


def sound(path: Path, value: Any, depth: int = 0) -> Any:
    """The same; refused where it is too deep, too long or holds a whole number that no machine counts with."""
    if depth > DEPTH:
        raise InputError(f"{path} holds tables more than {DEPTH} deep; was it damaged?")
    if isinstance(value, dict | list):
        if len(value) > ENTRIES:
            raise InputError(f"{path} holds {len(value):,} entries in one place, more than {ENTRIES:,}")
        for inner in [*value, *value.values()] if isinstance(value, dict) else value:
            sound(path, inner, depth + 1)
    elif isinstance(value, str) and len(value) > WORDS:
        raise InputError(f"{path} holds a text of {len(value):,} characters, more than {WORDS:,}")
    elif isinstance(value, int) and abs(value) >= 2**64:
        raise InputError(f"{path} holds a whole number of more than 64 bits; was it damaged?")
    return value


def shortened(text: str, length: int = 60) -> str:
    """At most ``length`` characters of a text."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _opened(path: Path) -> BufferedReader:
    """A pipe would never end, and a device never begin."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a file")
    return path.open("rb")


def _why(error: Exception) -> str:
    return "too deep" if isinstance(error, RecursionError) else "a number too long"


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot read {path}: {error.strerror or error}")


def _too_large(path: Path, most: int) -> InputError:
    return InputError(f"{path} is larger than the {most // MIB} MiB that are read of such a file")


def shard_lines(header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *of: Any) -> str:
    """A finished shard of an evaluation: a header line, which carries the digest of all, and a line per example."""
    head = {**header, DIGEST: digest_of(header, rows, *of)}
    return "".join(json.dumps(line) + "\n" for line in (head, *rows))


def parsed_shard(path: Path, text: str, *of: Any) -> tuple[Record, list[Record]]:
    """The same of the text of a shard."""
    return check_shard(path, [parsed(path, line, SHARD_AGAIN) for line in text.splitlines()], *of)


def check_shard(path: Path, lines: Sequence[Any], *of: Any) -> tuple[Record, list[Record]]:
    """(header, examples); refused where its digest does not fit, or, without one, where the lines cannot be a shard."""
    remedy = SHARD_AGAIN
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
