"""Records on disk, JSON as a whole or in lines, that show whether they still are what was written.

A record carries a digest of itself, and of what it belongs to, so that one of another place does not fit. Records of
earlier versions have none and are taken as they are. The digest is of the values: line ends, indentation and a
byte-order mark do not matter.

Every reader has a bound, so that no file can take more time or memory than what it should hold.
"""

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeVar

from widemargin.core.schema import LiteralFloat
from widemargin.errors import InputError

MIB = 2**20
TEXT, LINES, LINE = 8 * MIB, 128 * MIB, MIB // 4
"""Bytes of a file that is read as a whole, of one that is read line by line, and of one of its lines."""
ENTRIES, DEPTH, WORDS = 100_000, 40, 4096
"""Entries of a list or a table, tables inside each other, characters of a text."""
DIGEST = "digest"
LARGEST = 1e30
"""No number that we measure is larger, and no chart could show one."""
Record = dict[str, Any]
T = TypeVar("T")


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


def read_json(path: Path, remedy: str = "Write it again, or move it away") -> Any:
    """A whole JSON file, of ours or not, that is fit to be shown; a table of ours must fit its digest."""
    content = sound(path, parsed(path, read_text(path), remedy))
    return unsealed(content, path=path, remedy=remedy) if isinstance(content, dict) else content


def read_table(path: Path, remedy: str) -> Record:
    """The same of a file that is a table of ours."""
    content = read_json(path, remedy)
    if not isinstance(content, dict):
        raise InputError(f"{path} must be a table; {remedy}")
    return content


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


_RARE = re.compile(r"[^\x20-\x7e]")


def visible(text: str, *, lines: bool = False) -> str:
    """The text with all that steers a terminal, turns the direction of writing or is no character written out:
    ``\\u001b``. Line ends, tabs and wide blanks are left as they are in a text of several ``lines``.
    """

    def shown(found: re.Match[str]) -> str:
        char, short = found[0], {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
        blank = lines and (char in "\n\t\u200c\u200d" or unicodedata.category(char) == "Zs")
        if blank or char.isprintable():
            return char
        return short.get(char) or (f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}")

    return _RARE.sub(shown, text)


@dataclass(frozen=True)
class Fields:
    """A table that anybody may have written: what is missing is left out, what is wrong is refused by its name."""

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""

    def text(self, key: str, default: str = "") -> str:
        """Words, or a number as one; ``default`` where there are none."""
        value = self.values.get(key)
        return default if value is None else self._words(key, value)

    def number(self, key: str) -> float | None:
        """A finite number, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number", value)
        if not math.isfinite(value):
            return None
        if abs(value) > LARGEST:
            raise self._wrong(key, f"a number of at most {LARGEST:g}", value)
        return float(value)

    def size(self, key: str) -> float | None:
        """A number that may be written as "8/255", or None."""
        value = self.values.get(key)
        if not isinstance(value, str):
            return self.number(key)
        try:
            return Fields(self.path, {key: float(LiteralFloat(value))}, self.prefix).number(key)
        except InputError as error:
            raise InputError(f"{self.path}: {self.prefix}{key}: {error}") from None

    def percent(self, key: str) -> float | None:
        """A share in percent, or None."""
        value = self.number(key)
        if value is not None and not 0 <= value <= 100:
            raise self._wrong(key, "between 0 and 100", value)
        return value

    def whole(self, key: str) -> int | None:
        """A whole number, or None."""
        value = self.number(key)
        if value is not None and not value.is_integer():
            raise self._wrong(key, "a whole number", value)
        exact = self.values.get(key)
        return None if value is None else exact if isinstance(exact, int) else int(value)

    def count(self, key: str) -> int | None:
        """How many, or None."""
        value = self.whole(key)
        if value is not None and value < 0:
            raise self._wrong(key, "a count", value)
        return value

    def table(self, key: str) -> "Fields":
        """A table inside this one; empty where there is none."""
        value = self.values.get(key)
        return self._inside(key, {} if value is None else value)

    def _inside(self, key: str, value: Any) -> "Fields":
        if not isinstance(value, dict):
            raise self._wrong(key, "a table", value)
        return Fields(self.path, value, f"{self.prefix}{key}.")

    def tables(self, key: str) -> list["Fields"]:
        """A list of tables."""
        items = {f"{key}[{number}]": item for number, item in enumerate(self.list(key))}
        return [self._inside(name, item) for name, item in items.items()]

    def texts(self, key: str) -> list[str]:
        """A list of words."""
        return [self._words(f"{key}[{number}]", item) for number, item in enumerate(self.list(key))]

    def list(self, key: str) -> list[Any]:
        """A list; empty where there is none."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, list):
            raise self._wrong(key, "a list", value)
        return value or []

    def numbers(self) -> dict[str, float]:
        """Every finite number of the table, by name."""
        return self._each(self.number)

    def percents(self) -> dict[str, float]:
        """The same of shares in percent."""
        return self._each(self.percent)

    def _each(self, read: Callable[[str], float | None]) -> dict[str, float]:
        found = {key: read(key) for key in self.values}
        return {key: value for key, value in found.items() if value is not None}

    def words(self) -> dict[str, str]:
        """Every entry of the table as words."""
        return {key: self._words(key, value) for key, value in self.values.items() if value is not None}

    def _words(self, key: str, value: Any) -> str:
        if isinstance(value, dict | list):
            raise self._wrong(key, "words", value)
        return str(value).lower() if isinstance(value, bool) else str(value)

    def _wrong(self, key: str, wanted: str, value: Any) -> InputError:
        return InputError(f"{self.path}: {self.prefix}{key} must be {wanted}, got {shortened(repr(value))}")


def attempted(read: Callable[[Path], T], path: Path, faults: list[str] | None) -> T | None:
    """What a reader makes of a file; None where it cannot be shown: why is kept, or raised where nobody keeps it."""
    try:
        return read(path)
    except InputError as error:
        if faults is None:
            raise
        faults.append(visible(str(error)))
        return None


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
