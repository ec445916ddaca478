"""Files that others wrote: what is missing is left out, what is wrong is refused in one line that names the file."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from widemargin.core.records import parsed, read_text, shortened, sound, unsealed
from widemargin.core.schema import LiteralFloat
from widemargin.errors import InputError

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


def read_json(path: Path, remedy: str = "Write it again, or move it away") -> Any:
    """A whole JSON file that is fit to be shown; a table of ours must fit its digest."""
    content = sound(path, parsed(path, read_text(path), remedy))
    return unsealed(content, path=path, remedy=remedy) if isinstance(content, dict) else content
