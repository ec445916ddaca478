"""Files that others wrote: what is missing is left out, what is wrong is refused in one line that names the file."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from widemargin.errors import InputError


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


def read_text(path: Path) -> str:
    """A file's text."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text; was it damaged?") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def read_json(path: Path) -> Any:
    """A whole JSON file."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        place = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "too deep"
        raise InputError(
            f"{path} is not valid JSON ({place}); was it cut off? Write it again, or move it away"
        ) from None


def read_lines(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The JSON lines of a file that is being written, and whether the last one is cut off."""
    lines = read_text_so_far(path).splitlines()
    found: list[dict[str, Any]] = []
    for number, text in enumerate(lines, start=1):
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            if number == len(lines):
                return found, True
            raise InputError(f"{path}: line {number} is not valid JSON; was the file damaged?") from None
        if not isinstance(line, dict):
            raise InputError(f"{path}: line {number} must be a table, got {shortened(text)}")
        found.append(line)
    return found, False


def read_text_so_far(path: Path) -> str:
    """The text of a file whose last character may be cut in half."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
