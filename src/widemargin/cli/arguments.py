"""Arguments that several verbs share, and how people write numbers and durations."""

import importlib
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from widemargin.errors import InputError
from widemargin.written import Written

TargetArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN_OR_CHECKPOINT", help="A run folder (what train --out named) or a .safetensors file."),
]
DataDir = Annotated[
    str | None,
    typer.Option(help="Folder with the data files; default $WIDEMARGIN_DATA, else a cache folder.", show_default=False),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
EngineOption = Annotated[
    str, typer.Option("--engine", help="auto (fast on a GPU), eager (the float32 reference) or fast.")
]
OnNonfinite = Annotated[
    str, typer.Option(help="At a NaN or an infinity: stop, and keep that step; or skip it and go on.")
]
Limit = Annotated[int | None, typer.Option(help="Use only the first N images.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


IMPORTED: list[str] = []
"""What this command was given with --import."""


def import_own(name: str) -> None:
    """Import a user's module, from the current folder too, so that what it adds to the registries is known."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    if not all(part.isidentifier() for part in name.split(".")):
        raise InputError(f"--import {name!r} is no module's name; give it as Python imports it, such as package.module")
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"--import {name!r}: {error}; give a module's name as Python imports it") from None
    IMPORTED.append(name)


def number(option: str, text: str | None) -> Written | None:
    """A number such as 0.031 or 8/255, as written."""
    if text is None:
        return None
    try:
        return Written(text)
    except InputError as error:
        raise InputError(f"{option}: {error}") from None


def seconds(option: str, text: str | None) -> float:
    """A duration such as 90s, 25m, 1.5h or 1h30m; without one, forever."""
    if text is None:
        return float("inf")
    if not re.fullmatch(r"[0-9.]+|([0-9.]+[smhd])+", text.strip()):
        raise InputError(f"{option}: {text!r} is not a duration; write 90s, 25m or 1h30m")
    parts = re.findall(r"([0-9.]+)([smhd]?)", text)
    try:
        total = sum(float(value) * _UNITS[unit] for value, unit in parts)
    except ValueError:
        raise InputError(f"{option}: {text!r} is not a duration; write 90s, 25m or 1h30m") from None
    if total <= 0:
        raise InputError(f"{option}: {text!r} is no time at all; write 90s, 25m or 1h30m")
    return total
