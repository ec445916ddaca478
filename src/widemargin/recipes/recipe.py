"""A recipe: a complete run configuration with a name, and the published numbers it is to be held against.

The numbers are data: ``published.json`` beside this file, looked up and never retyped. Its table "modern" is not of the
paper: each row there says where its numbers stand.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from widemargin.config.run import RunConfig

RESULTS = ("clean", "fgsm", "pgd", "pgd10", "pgd20", "pgd100", "autoattack", "margin_train", "margin_test")


@dataclass(frozen=True)
class Published:
    """One row of one table: its name there and its results (percent; mean and standard deviation where there are both).

    ``source`` is where the numbers stand, for those that are not the paper's.
    """

    table: str
    row: str
    results: dict[str, Any]
    source: str = ""


@cache
def _tables() -> dict[str, Any]:
    tables: dict[str, Any] = json.loads(files("widemargin.recipes").joinpath("published.json").read_text("utf-8"))
    return tables


def published(table: str, row: str, *, model: str | None = None, weight_decay: float | None = None) -> Published:
    """The one row of a table that carries this name (and model and weight decay, where the table repeats names)."""
    wanted = {"row": row} | {k: v for k, v in (("model", model), ("weight_decay", weight_decay)) if v is not None}
    rows = [r for r in _tables()[table]["rows"] if all(r.get(key) == value for key, value in wanted.items())]
    if len(rows) != 1:
        raise LookupError(f"{len(rows)} rows of {table} match {wanted}")
    results = {key: rows[0][key] for key in RESULTS if key in rows[0]}
    return Published(table=table, row=row, results=results, source=rows[0].get("source", ""))


def published_step_times() -> dict[str, dict[str, float]]:
    """Row -> standard, igr, he, emr -> seconds of one step of WRN-34-10 at batch 128 on one V100."""
    rows = _tables()["supplement_step_time"]["rows"]
    return {row["row"]: {key: value for key, value in row.items() if key != "row"} for row in rows}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """``note`` says what a reader of the numbers must know."""

    config: RunConfig
    published: Published | None = None
    note: str = ""
    averages_of: str = ""
    """The recipe whose run keeps these weights, its averages, beside its own; a table trains that one for both."""

    starts_from: str = ""
    """The recipe whose weights this one begins with; a table trains that one first, with the same seed."""

    @property
    def name(self) -> str:
        """What the command line calls it."""
        return self.config.name
