"""In which settings a run differs from its recipe, written as the ``--set`` options that make the difference."""

import copy
import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

Table = Mapping[str, Any]


def changes(settings: Table, recipe: Table) -> list[str]:
    """``["epochs=3", "model.hidden=[64]"]``: what turns the recipe into these settings."""
    return _changes(settings, {key: value for key, value in recipe.items() if key != "name"}, "")


def _changes(ours: Table, theirs: Table, prefix: str) -> list[str]:
    found = []
    for key in [*theirs, *(key for key in ours if key not in theirs)]:
        mine, other = ours.get(key), theirs.get(key)
        if mine == other or (prefix + key) == "name":
            continue
        if mine is None:
            found.append(f"{prefix}{key}=none")
        elif isinstance(mine, dict) and isinstance(other, dict) and mine.get("kind") == other.get("kind"):
            found += _changes(mine, other, f"{prefix}{key}.")
        else:
            found.append(f"{prefix}{key}={toml_value(mine)}")
    return found


def toml_value(value: Any) -> str:
    """A value as TOML writes it on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, bool | str):
        return json.dumps(value)
    if value is None:
        return "none"
    return repr(value) if isinstance(value, int | float) else str(value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def lead_to(overrides: list[str], recipe: Table, settings: Table) -> bool:
    """Whether the recipe with these overrides is the run indeed."""
    table = copy.deepcopy(dict(recipe))
    for override in overrides:
        path, _, text = override.partition("=")
        *above, last = path.split(".")
        inside = table
        for key in above:
            inside = inside.setdefault(key, {})
            if not isinstance(inside, dict):
                return False
        if text == "none":
            inside.pop(last, None)
            continue
        try:
            inside[last] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:  # what JSON or a date cannot say in TOML's words
            return False
    return table == dict(settings)
