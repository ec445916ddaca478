"""Run configurations on disk (TOML) and on the command line (dotted overrides)."""

import tomllib
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import tomli_w

from widemargin.config.run import FORM_OF, RunConfig, kinds
from widemargin.core.files import check_file
from widemargin.core.schema import Kinds, Table, from_table, registry_at, to_table
from widemargin.errors import InputError

MAX_BYTES = 2**16  # ours have a few thousand


def to_dict(config: RunConfig) -> Table:
    """The configuration as plain tables."""
    table: Table = to_table(config, kinds())
    return table


def from_dict(table: Table) -> RunConfig:
    """The configuration that the tables describe."""
    try:
        _check_whole_numbers(table)
        return from_table(RunConfig, table, kinds())
    except RecursionError:
        raise InputError("the configuration is nested too deeply; a run has tables of tables, no more") from None


def _check_whole_numbers(value: Any, path: str = "") -> None:
    """Refuse whole numbers beyond 64 bits, which TOML does not have; Python's may be too long even to print."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InputError(f"{path} must be a whole number of at most 64 bits; write a smaller one")
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, part in parts:
        _check_whole_numbers(part, f"{path}.{key}" if path else str(key))


def to_toml(config: RunConfig) -> str:
    """The configuration as TOML."""
    return tomli_w.dumps(to_dict(config))


def read_toml(path: Path) -> RunConfig:
    """Read a configuration file."""
    check_file(path)
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError(
                f"{path} is more than {MAX_BYTES} bytes, too long for a run configuration; is it another file?"
            )
        table = tomllib.loads(content.decode("utf-8-sig"))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # TOML's errors, those of UTF-8, and numbers of thousands of digits
        raise InputError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    try:
        return from_dict(table)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def with_overrides(config: RunConfig, overrides: Iterable[str]) -> RunConfig:
    """The configuration with each ``path.to.key=value`` set; the value is TOML, or text where that does not parse.

    A table that gets another ``kind`` keeps the settings which that kind has too, and those that were set before it.
    """
    table, given = to_dict(config), set[tuple[str, ...]]()
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip():
            raise InputError(f"--set {override!r}: write path=value, for example emr.weight=0.3")
        keys = path.strip().split(".")
        last = _put(table, keys, _parse(text.strip()), override)
        if keys[-1] == "kind" and "kind" in last:
            path_to = (*keys[:-1],)
            own = {names[len(path_to)] for names in given if names[: len(path_to)] == path_to}
            known = {**kinds(), **registry_at(RunConfig, table, path_to)}
            _drop_settings_of_other_kinds(last, own, known, is_emr=path_to == ("emr",))
        given.add((*keys,))
    return from_dict(table)


def _put(table: Table, keys: list[str], value: Any, override: str) -> Table:
    """Returns the table that the last key is in."""
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise InputError(f"--set {override!r}: {key!r} is a value, not a table")
    if value == "none":
        table.pop(keys[-1], None)
    else:
        table[keys[-1]] = value
    return table


def _drop_settings_of_other_kinds(table: Table, given: set[str], known: Kinds, *, is_emr: bool) -> None:
    """From a table that has become another kind, what that kind does not have; ``given`` settings are checked later."""
    foreign: set[str] = set()
    kind = known.get(table["kind"]) if isinstance(table["kind"], str) else None
    if is_emr:  # one class for its three forms
        foreign = {name for name, form in FORM_OF.items() if form != table["kind"]}
    elif kind is not None and is_dataclass(kind):
        foreign = set(table) - {"kind", *(field.name for field in fields(kind))}
    for name in foreign - given:
        table.pop(name, None)


def _parse(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def differences(ours: RunConfig, theirs: RunConfig) -> list[str]:
    """The dotted keys in which two configurations differ, as "key: ours, theirs"."""
    left, right = flat(to_dict(ours)), flat(to_dict(theirs))
    keys = [key for key in [*left, *(k for k in right if k not in left)] if left.get(key) != right.get(key)]
    return [f"{key}: {left.get(key)!r} here, {right.get(key)!r} there" for key in keys]


def flat(table: Table, prefix: str = "") -> dict[str, Any]:
    """The values of tables of tables by their dotted keys."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
