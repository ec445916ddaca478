"""Frozen dataclasses to tables (what TOML and JSON hold) and back, with errors a person can act on.

A field that may be one of several dataclasses (an attack, a schedule, a model) is a table with a ``kind``; the legal
kinds come from the registries that hold those classes. A field left out takes its default; an unknown key is an error
that names the nearest known one.

Numbers keep the form in which people write them (``LiteralFloat``): an eps of "8/255" stays "8/255" on the page and is
0.0313... in the arithmetic. The field confuses 0.031, 0.0314 and 8/255, half a point of robust accuracy apart; a result
that keeps the literal can be compared.
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin

from widemargin.errors import InputError


def split_list(text: str) -> list[str]:
    """At the commas that are in no bracket: a value may be a list or a table."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


class LiteralFloat(float):
    """A float that remembers how it was written."""

    text: str

    def __new__(cls, value: "str | float") -> Self:
        """Read "8/255", "0.031" or a number."""
        number = super().__new__(cls, _parse_number(value) if isinstance(value, str) else value)
        number.text = value.text if isinstance(value, LiteralFloat) else str(value).strip()
        return number

    def __repr__(self) -> str:
        return self.text

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (self.text,)


def _parse_number(text: str) -> float:
    numerator, slash, denominator = text.partition("/")
    try:
        value = float(numerator) / float(denominator) if slash else float(numerator)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{text!r} is not a number; write 0.031 or 8/255") from None
    if not math.isfinite(value):
        raise InputError(f"{text!r} is not a finite number; write 0.031 or 8/255")
    return value


Table = dict[str, Any]
Kinds = Mapping[str, type]
NO_KINDS: Kinds = {}
T = TypeVar("T")
REGISTRY, UNNAMED = "registry", "unnamed"
"""Marks of a field that holds a class of a registry; of the kind that a table of it without a kind is."""
SHORT, NO_TABLE = "short", "no table"
"""Marks of fields: left out of a table at the default; never in a table, since no table can hold such a value."""


def one_of(registry: Mapping[str, type], *, unnamed: str | None = None, **default: Any) -> Any:
    """A field that holds one of a registry's classes; classes added to the registry later are legal too.

    A table without a kind is of the kind ``unnamed``, where there is one, which is left out of tables too. A field
    whose annotation has ``str`` takes a word besides; one whose annotation has a tuple takes a list of either.
    """
    return dataclasses.field(metadata={REGISTRY: registry, UNNAMED: unnamed}, **default)


def added(default: Any) -> Any:
    """A field that a class got after tables of it were written: these stay equal where it has its default."""
    return dataclasses.field(default=default, metadata={SHORT: True})


def outside_tables(default: Any) -> Any:
    """A field for what no table can hold, such as a network."""
    return dataclasses.field(default=default, metadata={NO_TABLE: True})


def table_fields(cls: Any) -> "list[dataclasses.Field[Any]]":
    """The fields that a table of this dataclass may have."""
    return [field for field in dataclasses.fields(cls) if field.init and NO_TABLE not in field.metadata]


def registry_at(cls: Any, table: Any, keys: Iterable[str]) -> Kinds:
    """Where the kind of the table at these keys is looked up; no kinds where it has none, or does not exist."""
    registry = NO_KINDS
    for key in keys:
        fields = {field.name: field for field in table_fields(cls)} if dataclasses.is_dataclass(cls) else {}
        if key not in fields or not isinstance(table, Mapping):
            return NO_KINDS
        registry, table = fields[key].metadata.get(REGISTRY, NO_KINDS), table.get(key)
        parts = [part for part in _options(typing.get_type_hints(cls)[key]) if dataclasses.is_dataclass(part)]
        kind = table.get("kind", fields[key].metadata.get(UNNAMED)) if isinstance(table, Mapping) else None
        cls = registry.get(kind) if isinstance(kind, str) and registry else parts[0] if len(parts) == 1 else None
    return registry


def to_table(value: Any, kinds: Kinds, *, registry: Kinds = NO_KINDS, unnamed: str | None = None) -> Any:
    """A dataclass (or a part of one) as tables, lists and scalars; fields that are None are left out.

    ``registry`` is where its kind is looked up first: several registries may have one of that name.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = {cls: kind for kind, cls in {**kinds, **registry}.items()}.get(type(value))
        table = {} if kind is None or kind == unnamed else {"kind": kind}
        for field in table_fields(value):
            if not _left_out(field, value):
                own, unnamed = field.metadata.get(REGISTRY, NO_KINDS), field.metadata.get(UNNAMED)
                table[field.name] = to_table(getattr(value, field.name), kinds, registry=own, unnamed=unnamed)
        return table
    if isinstance(value, LiteralFloat):
        return value.text if "/" in value.text else float(value)
    if isinstance(value, tuple | list):
        return [to_table(item, kinds, registry=registry, unnamed=unnamed) for item in value]
    return value


def _left_out(field: "dataclasses.Field[Any]", value: Any) -> bool:
    part = getattr(value, field.name)
    return part is None or (SHORT in field.metadata and part == field.default)


def from_table(cls: type[T], table: Any, kinds: Kinds, *, path: str = "", registry: Kinds = NO_KINDS) -> T:
    """Build the dataclass from tables; ``path`` says where we are, for the errors.

    A table has a ``kind`` where its class is one of ``kinds`` or of the ``registry`` it was found in.
    """
    if not isinstance(table, Mapping):
        raise InputError(f"{path or 'the configuration'} must be a table, got {table!r}")
    fields = {field.name: field for field in table_fields(cls)}
    hints = typing.get_type_hints(cls)
    for key in table:
        if key not in fields and not (key == "kind" and cls in (*kinds.values(), *registry.values())):
            elsewhere = _elsewhere(cls, key) if not path else ""
            raise InputError(f"unknown key {_dotted(path, key)!r}{elsewhere or _nearest(key, fields)}")
    values = {
        key: _field_value(fields[key], hints[key], item, kinds, _dotted(path, key))
        for key, item in table.items()
        if key in fields
    }
    missing = [name for name, field in fields.items() if name not in values and required(field)]
    if missing:
        what = _wanted(fields[missing[0]], hints[missing[0]], kinds)
        raise InputError(f"{_dotted(path, missing[0])} is missing; add it: {what}")
    try:
        return cls(**values)
    except InputError as error:
        raise InputError(str(error) if str(error).startswith(path) else f"{path}: {error}") from None


def _field_value(field: "dataclasses.Field[Any]", hint: Any, item: Any, kinds: Kinds, path: str) -> Any:
    registry = field.metadata.get(REGISTRY)
    if registry is None:
        return _value(hint, item, kinds, path)
    if isinstance(item, list | tuple) and any(get_origin(option) is tuple for option in _options(hint)):
        return tuple(_registered(field, hint, part, kinds, f"{path}[{n}]") for n, part in enumerate(item))
    return _registered(field, hint, item, kinds, path)


def _registered(field: "dataclasses.Field[Any]", hint: Any, item: Any, kinds: Kinds, path: str) -> Any:
    """One of the classes of the field's registry, or a word where it takes one."""
    registry = field.metadata[REGISTRY]
    if (item is None and type(None) in _options(hint)) or (isinstance(item, str) and str in _options(hint)):
        return item
    unnamed = field.metadata[UNNAMED]
    if unnamed is not None and isinstance(item, Mapping) and "kind" not in item:
        item = {"kind": unnamed, **item}
    own = "; one of your own needs --import MODULE"
    cls = _class_of_kind(list(registry.values()), item, registry, path, own)
    return from_table(cls, item, kinds, path=path, registry=registry)


def _value(hint: Any, item: Any, kinds: Kinds, path: str) -> Any:
    options = _options(hint)
    classes = [option for option in options if dataclasses.is_dataclass(option)]
    if item is None and type(None) in options:
        return None
    if classes:
        return from_table(_class_of_kind(classes, item, kinds, path), item, kinds, path=path)
    for option in options:
        accepted, value = _scalar(option, item, path)
        if accepted:
            return value
    remedy = _quoted(path, item) if str in options else ""
    raise InputError(f"{path} must be {' or '.join(_describe(o) for o in options)}, got {item!r}{remedy}")


def _options(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _class_of_kind(classes: list[Any], item: Any, kinds: Kinds, path: str, own: str = "") -> Any:
    """The class that the table's kind names; ``own`` is how to add one, where the field takes those of a registry."""
    tags = {kind: cls for kind, cls in kinds.items() if cls in classes}
    if not tags:
        return classes[0]
    known = f"{path}.kind must be one of {', '.join(sorted(tags))}"
    if not isinstance(item, Mapping):
        raise InputError(f"{path} must be a table, got {item!r}; set its parts, first of all the kind: {known}")
    kind = item.get("kind")
    if not isinstance(kind, str) or kind not in tags:
        told = "it is missing" if kind is None else f"got {kind!r}{own}"
        raise InputError(f"{known}; {told}")
    return tags[kind]


def _scalar(hint: Any, item: Any, path: str) -> tuple[bool, Any]:
    """Whether the item is of the hinted type, and the value it becomes."""
    origin = get_origin(hint)
    if origin is Literal:
        equal = [
            legal for legal in get_args(hint) if legal == item and isinstance(legal, bool) == isinstance(item, bool)
        ]
        return bool(equal), equal[0] if equal else None
    if origin is tuple and isinstance(item, list | tuple):
        pairs = [_scalar(get_args(hint)[0], element, path) for element in item]
        return all(accepted for accepted, _ in pairs), tuple(value for _, value in pairs)
    if hint is float and isinstance(item, str):
        try:
            return True, LiteralFloat(item)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
    if hint is float and isinstance(item, int | float) and not isinstance(item, bool):
        return True, item if isinstance(item, LiteralFloat) else float(item)
    if hint in (int, str, bool):
        return type(item) is hint, item
    return False, None


def _quoted(path: str, item: Any) -> str:
    """How to write text that TOML takes for a number, a truth or a date."""
    if isinstance(item, list | tuple | Mapping):
        return ""
    text = str(item).lower() if isinstance(item, bool) else str(item)
    return f"""; put it in quotes: --set '{path}="{text}"'"""


def _describe(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    if get_origin(hint) is tuple:
        return f"a list, each element {_describe(get_args(hint)[0])}"
    names = {float: "a number", int: "a whole number", bool: "true or false", str: "text", type(None): "left out"}
    return names.get(hint, str(hint))


def _wanted(field: "dataclasses.Field[Any]", hint: Any, kinds: Kinds) -> str:
    """What a missing field takes; of a table an example, with dots for what must be filled in."""
    options = _options(hint)
    registry: Kinds = field.metadata.get(REGISTRY, {})
    classes: list[Any] = [*registry.values()] or [option for option in options if dataclasses.is_dataclass(option)]
    if not classes:
        return " or ".join(_describe(option) for option in options)
    tags = {cls: kind for kind, cls in {**kinds, **registry}.items()}
    kind = tags.get(classes[0])
    inside = [] if kind is None or kind == field.metadata.get(UNNAMED) else [f"kind = {kind!r}"]
    inside += [f"{part.name} = ..." for part in table_fields(classes[0]) if required(part)]
    return f"a table such as {{{', '.join(inside)}}}"


def required(field: "dataclasses.Field[Any]") -> bool:
    """Whether a table must have it."""
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _dotted(path: str, key: str) -> str:
    return f"{path}.{key}" if path else str(key)


def _elsewhere(cls: type, key: str) -> str:
    """Which tables of the configuration have that key, where it has not itself."""
    found = []
    for field in table_fields(cls):
        registered = field.metadata.get(REGISTRY, NO_KINDS).values()
        parts = (*registered, *_options(typing.get_type_hints(cls)[field.name]))
        classes = [part for part in parts if dataclasses.is_dataclass(part)]
        if any(key == inner.name for part in classes for inner in table_fields(part)):
            found.append(f"{field.name}.{key}")
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""


def _nearest(key: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(str(key), list(known), n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known here: {', '.join(known)}" if known else "; there is nothing to set here but the kind"
