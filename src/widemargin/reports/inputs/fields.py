"""Files that others wrote: what is missing is left out, what is wrong is refused in one line that names the file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from widemargin.errors import InputError
from widemargin.records import parsed, read_text, unsealed
from widemargin.records import read_lines as lines_of


@dataclass(frozen=True)
class Fields:
    """A table of a file, read field by field."""

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""

    def text(self, key: str, default: str = "") -> str:
        """Words; ``default`` where there are none."""
        value = self.values.get(key)
        return default if value is None else str(value)

    def number(self, key: str) -> float | None:
        """A finite number, or None."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number", value)
        return float(value) if math.isfinite(value) else None

    def whole(self, key: str) -> int | None:
        """A whole number, or None."""
        value = self.number(key)
        return None if value is None else int(value)

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
        found = self.list(key)
        for number, item in enumerate(found):
            if not isinstance(item, str):
                raise self._wrong(f"{key}[{number}]", "words", item)
        return found

    def list(self, key: str) -> list[Any]:
        """A list; empty where there is none."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, list):
            raise self._wrong(key, "a list", value)
        return value or []

    def numbers(self) -> dict[str, float]:
        """Every finite number of the table, by name."""
        found = {key: self.number(key) for key in self.values}
        return {key: value for key, value in found.items() if value is not None}

    def words(self) -> dict[str, str]:
        """Every entry of the table as words."""
        return {key: str(value) for key, value in self.values.items() if value is not None}

    def _inside(self, key: str, number: int, item: Any) -> "Fields":
        if not isinstance(item, dict):
            raise self._wrong(f"{key}[{number}]", "a table", item)
        return Fields(self.path, item, f"{self.prefix}{key}[{number}].")

    def _wrong(self, key: str, wanted: str, value: Any) -> InputError:
        return InputError(f"{self.path}: {self.prefix}{key} must be {wanted}, got {shortened(repr(value))}")


def shortened(text: str, length: int = 60) -> str:
    """At most ``length`` characters of a text."""
    return text if len(text) <= length else text[: length - 1] + "…"


def read_json(path: Path, remedy: str = "write it again, or move it away") -> Any:
    """A whole JSON file; a table of ours must fit its digest."""
    content = parsed(path, read_text(path))
    return unsealed(content, path=path, remedy=remedy) if isinstance(content, dict) else content


def read_lines(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The JSON lines of a file that is being written, and whether the last one is cut off."""
    lines = lines_of(path)
    if lines.bad and not lines.cut_off:
        raise InputError(f"{path}: line {lines.bad[0]} is not valid JSON, or no table; was the file damaged?")
    return [line for _, line in lines.found], lines.cut_off
