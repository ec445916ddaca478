"""Every setting of a run, its values and its default: ``python scripts/configuration_page.py > docs/configuration.md``.

The page is made from the dataclasses themselves, so it cannot disagree with them. What a setting means is in the
``.toml`` file beside this one; a setting without a meaning, or a meaning without a setting, is an error.
"""

import dataclasses
import inspect
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union

from widemargin.attacks import ATTACK_KINDS
from widemargin.config import RunConfig, kinds
from widemargin.config.run import ANNEALINGS, MODEL_KINDS
from widemargin.core.schema import REGISTRY, table_fields, to_table
from widemargin.data import AUGMENTATIONS, DATASETS
from widemargin.heads import HEADS
from widemargin.objectives import OBJECTIVES
from widemargin.optimizers import OPTIMIZERS
from widemargin.schedules import SCHEDULES

INTRODUCTION = Path(__file__).with_suffix(".md")
MEANINGS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
EVERYWHERE = "everywhere"
FRACTIONS = ("eps", "step_size")
"""Numbers that people write as fractions."""
REGISTRIES: dict[str, tuple[str, Mapping[str, type]]] = {
    "Models": ("`[model]`, and `[teacher]` for LBGAT", MODEL_KINDS),
    "Heads": ("`[head]`: the last layer", HEADS),
    "Objectives": ("`[objective]`: what is minimized", OBJECTIVES),
    "Attacks": ("`attack` in an objective or in `[watch]`", ATTACK_KINDS),
    "Schedules": ("`schedule` in `[optimizer]` and in a penalty's table: a factor by epochs passed", SCHEDULES),
    "Augmentations": ("`augmentation` in `[data]`; its name alone means its defaults", AUGMENTATIONS),
    "Optimizers": ("`[optimizer]`: how weights are updated; without a `kind` it is `sgd`", OPTIMIZERS),
    "Annealings": ("`annealing` in a large-margin head", ANNEALINGS),
}
NAMED: dict[str, Mapping[str, object]] = {"data.name": DATASETS, "data.augmentation": AUGMENTATIONS}
"""Settings that are words, of which these are known."""
LISTS: dict[Any, str] = {
    int: "a list of whole numbers",
    float: "a list of numbers",
    str: "a list of words",
    tuple[float, ...]: "a list of lists of numbers",
}


def _parts() -> dict[str, Any]:
    """The tables of a run that are of one class, by name, in its order."""
    hints, chosen = (
        typing.get_type_hints(RunConfig),
        {f.name for f in table_fields(RunConfig) if REGISTRY in f.metadata},
    )
    options = {name: [hint, *typing.get_args(hint)] for name, hint in hints.items() if name not in chosen}
    return {name: part for name, found in options.items() for part in found if dataclasses.is_dataclass(part)}


PARTS = _parts()


def page() -> str:
    """The whole page, as Markdown."""
    _check_meanings()
    sections = [INTRODUCTION.read_text(encoding="utf-8").rstrip(), "## A run", _table("", RunConfig)]
    for name, part in PARTS.items():
        sections += [f"## `[{name}]`", _about(part), _table(name, part)]
    for title, (where, registry) in REGISTRIES.items():
        sections += [f"## {title}", f"{where}. A table with a `kind`:"]
        for kind, part in registry.items():
            sections += [f"### `{kind}`", _about(part), _table(_section(title, kind), part)]
    return "\n\n".join(section for section in sections if section) + "\n"


def _section(title: str, kind: str) -> str:
    return f"{title.lower()}.{kind}"


def _check_meanings() -> None:
    sections: dict[str, Any] = {"": RunConfig, **PARTS}
    sections |= {_section(title, kind): p for title, (_, found) in REGISTRIES.items() for kind, p in found.items()}
    told = {(place, name) for place, meanings in MEANINGS.items() for name in meanings}
    used = {(_where(path, field.name), field.name) for path, part in sections.items() for field in table_fields(part)}
    if told != used:
        raise SystemExit(f"settings without a meaning, or meanings without a setting: {sorted(told ^ used)}")


def _where(path: str, name: str) -> str:
    """The section that says what this setting means."""
    section = path or "run"
    return section if name in MEANINGS.get(section, {}) else EVERYWHERE


def _about(part: type) -> str:
    return inspect.cleandoc(part.__doc__ or "").replace("``", "`")


def _table(path: str, part: type) -> str:
    rows = list(_rows(path, part))
    if not rows:
        return "No settings."
    head = ["| setting | meaning | values | default |", "|---|---|---|---|"]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows)])


def _rows(path: str, part: type) -> Iterator[tuple[str, str, str, str]]:
    hints = typing.get_type_hints(part)
    for field in table_fields(part):
        values = _named(f"{path}.{field.name}") or _values(hints[field.name], field.metadata.get(REGISTRY))
        values += ', or a fraction such as `"8/255"`' * (field.name in FRACTIONS and "optimizers" not in path)
        yield f"`{field.name}`", MEANINGS[_where(path, field.name)][field.name], values, _default(field)


def _named(path: str) -> str:
    known = ", ".join(f"`{name}`" for name in NAMED.get(path, ()))
    besides = {"data.name": ", or a path", "data.augmentation": ", a table, or a list of them"}
    return f"{known}{besides[path]}" if known else ""


def _values(hint: Any, registry: Mapping[str, type] | None) -> str:
    """What may be written."""
    if registry is not None:
        return "a table, its `kind` one of " + ", ".join(f"`{kind}`" for kind in registry)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{_written(value)}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return _either([argument for argument in arguments if argument is not types.NoneType])
    if origin is tuple:
        return LISTS.get(arguments[0]) or f"a list of {_values(arguments[0], None)}"
    if dataclasses.is_dataclass(hint):
        return _tables([hint])
    return {int: "a whole number", float: "a number", bool: "`true`, `false`", str: "a word"}.get(hint, str(hint))


def _either(choices: list[Any]) -> str:
    tables = [choice for choice in choices if dataclasses.is_dataclass(choice)]
    rest = [_values(choice, None) for choice in choices if choice not in tables]
    return " or ".join([*rest, *([_tables(tables)] if tables else [])])


def _tables(parts: list[Any]) -> str:
    tags = {part: kind for kind, part in kinds().items()}
    named = [f"`{tags[part]}`" for part in parts if part in tags]
    if named:
        return f"a table, its `kind` one of {', '.join(named)}"
    inside = [f"`{field.name}`" for part in parts if part not in PARTS.values() for field in dataclasses.fields(part)]
    return f"a table of {' and '.join(inside)}" if inside else "a table, see below"


def _default(field: "dataclasses.Field[Any]") -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f"`{_written(field.default_factory())}`"
    if field.default is dataclasses.MISSING:
        return "must be given"
    return "none" if field.default is None else f"`{_written(field.default)}`"


def _written(value: Any) -> str:
    """As in TOML."""
    if dataclasses.is_dataclass(value):
        table = to_table(value, kinds())
        return "its defaults" if "kind" not in table else f'kind = "{table["kind"]}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    print(page(), end="")
