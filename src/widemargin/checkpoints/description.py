"""What a reader must know about weights, as the JSON table inside the checkpoint's header."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch

from widemargin.config import RunConfig
from widemargin.config_files import from_dict
from widemargin.versions import own_version

FORMAT = "widemargin-checkpoint-1"
Which = Literal["last", "best"]


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a reader must know about these weights."""

    which: Which
    selection: str
    config: dict[str, Any]
    image_shape: tuple[int, int, int]
    num_classes: int
    epoch: int
    step: int
    scores: dict[str, float]
    versions: dict[str, str] = field(default_factory=dict)
    format: str = FORMAT

    def run_config(self) -> RunConfig:
        """The configuration of the run that made them."""
        return from_dict(self.config)


def other_version(table: Mapping[str, Any], *, sealed: bool) -> str | None:
    """Why only another version can read the description, and what to do; None where this one can.

    What this one does not know in a file that is not ``sealed`` by its checksum may as well be damage.
    """
    found, known = table.get("format", FORMAT), {field.name for field in fields(Description)}
    unknown = [name for name in table if name not in known and sealed]
    if found == FORMAT and not unknown:
        return None
    what = f"says {unknown[0][:80]!r} of itself" if found == FORMAT else f"has the format {str(found)[:80]!r}"
    versions = table.get("versions")
    writer = str(versions.get("widemargin", "unknown") if isinstance(versions, dict) else "unknown")[:80]
    return (
        f"{what}; this version reads {FORMAT!r}; use the version of widemargin that wrote it ({writer}), or choose "
        "another checkpoint"
    )


def read_description(table: Mapping[str, Any]) -> Description:
    """The description a table holds; a ValueError names the first field that no checkpoint of ours has so."""
    for name, fits in _FITS.items():
        if name in table and not fits(table[name]):
            raise ValueError(f"its {name} is {str(table[name])[:80]!r}")
    return Description(**(dict(table) | {"image_shape": tuple(table["image_shape"])}))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(_is_count(side) for side in value)


def _are_scores(value: object) -> bool:
    return isinstance(value, dict) and all(type(score) in (int, float) for score in value.values())


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


_FITS: dict[str, Callable[[object], bool]] = {
    "which": lambda value: value in ("last", "best"),
    "selection": _is_text,
    "config": _is_table,
    "image_shape": _is_shape,
    "num_classes": _is_count,
    "epoch": _is_count,
    "step": _is_count,
    "scores": _are_scores,
    "versions": _is_table,
    "format": _is_text,
}


def software_versions() -> dict[str, str]:
    """The versions that made a number."""
    return {
        "widemargin": own_version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
