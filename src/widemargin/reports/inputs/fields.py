"""Files that others wrote: what is missing is left out, what is wrong is refused in one line that names the file.

Every reader has a bound, so that no file can take more time or memory than a page is worth.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from widemargin.errors import InputError
from widemargin.written import Written

MIB = 2**20
TEXT, LINES, LINE = 8 * MIB, 128 * MIB, MIB // 4
"""Bytes of a file that is read as a whole, of one that is read line by line, and of one of its lines."""
ENTRIES, DEPTH, WORDS = 100_000, 40, 4096
"""Entries of a list or a table, tables inside each other, characters of a text."""
LARGEST = 1e30
"""No number that we measure is larger, and no chart could show one."""
T = TypeVar("T")


@dataclass(frozen=True)
class Fields:
    """A table of a file, read field by field."""

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
            return Fields(self.path, {key: float(Written(value))}, self.prefix).number(key)
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
        if value is not None and not isinstance(value, dict):
            raise self._wrong(key, "a table", value)
        return Fields(self.path, value or {}, f"{self.prefix}{key}.")

    def tables(self, key: str) -> list["Fields"]:
        """A list of tables."""
        return [self._inside(key, number, item) for number, item in enumerate(self.list(key))]

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

    def _inside(self, key: str, number: int, item: Any) -> "Fields":
        if not isinstance(item, dict):
            raise self._wrong(f"{key}[{number}]", "a table", item)
        return Fields(self.path, item, f"{self.prefix}{key}[{number}].")

    def _wrong(self, key: str, wanted: str, value: Any) -> InputError:
        return InputError(f"{self.path}: {self.prefix}{key} must be {wanted}, got {shortened(repr(value))}")


def shortened(text: str, length: int = 60) -> str:
    """At most ``length`` characters of a text."""
    return text if len(text) <= length else text[: length - 1] + "…"


_UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def visible(text: str) -> str:
    """What steers a terminal, turns the direction of writing or is no character at all, written out: ``\\x1b``."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def attempted(read: Callable[[Path], T], path: Path, faults: list[str] | None) -> T | None:
    """What a reader makes of a file; None where it cannot be shown: why is kept, or raised where nobody keeps it."""
    try:
        return read(path)
    except InputError as error:
        if faults is None:
            raise
        faults.append(visible(str(error)))
        return None


def read_text(path: Path, most: int = TEXT) -> str:
    """A file's text."""
    try:
        with _opened(path) as stream:
            content = stream.read(most + 1)
        if len(content) > most:
            raise _too_large(path, most)
        return content.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text; was it damaged?") from None
    except OSError as error:
        raise _unreadable(path, error) from None


def read_json(path: Path) -> Any:
    """A whole JSON file."""
    text = read_text(path)
    try:
        return sound(path, json.loads(text))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        place = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else _why(error)
        raise InputError(
            f"{path} is not valid JSON ({place}); was it cut off? Write it again, or move it away"
        ) from None


@dataclass
class Lines:
    """The JSON lines of a file that is being written, one after the other; ``cut_off`` when the last one was."""

    path: Path
    most: int = LINES
    cut_off: bool = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            with _opened(self.path) as stream:
                yield from self._tables(stream)
        except OSError as error:
            raise _unreadable(self.path, error) from None

    def _tables(self, stream: IO[bytes]) -> Iterator[dict[str, Any]]:
        left, number = self.most, 0
        while text := stream.readline(LINE + 1):
            left, number = left - len(text), number + 1
            if len(text) > LINE:
                raise InputError(f"{self.path}: line {number} has more than {LINE:,} bytes; was the file damaged?")
            if left < 0 or number > ENTRIES * 10:
                raise _too_large(self.path, self.most)
            try:
                line = json.loads(text.decode("utf-8", errors="replace"))
            except (ValueError, RecursionError) as error:
                if isinstance(error, json.JSONDecodeError) and not stream.read(1):
                    self.cut_off = True
                    return
                why = "" if isinstance(error, json.JSONDecodeError) else f" ({_why(error)})"
                raise InputError(f"{self.path}: line {number} is not valid JSON{why}; was the file damaged?") from None
            if not isinstance(line, dict):
                raise InputError(f"{self.path}: line {number} must be a table, got {shortened(repr(line))}")
            yield sound(self.path, line)


def read_lines(path: Path) -> tuple[list[dict[str, Any]], bool]:
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


def _opened(path: Path) -> IO[bytes]:
    """A pipe would never end, and a device never begin."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is not a file")
    return path.open("rb")


def _why(error: Exception) -> str:
    return "too deep" if isinstance(error, RecursionError) else "a number too long"


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot read {path}: {error.strerror or error}")


def _too_large(path: Path, most: int) -> InputError:
    return InputError(f"{path} is larger than the {most // MIB} MiB that a report reads of such a file")
