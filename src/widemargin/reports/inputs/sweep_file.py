"""``sweep.json``: a grid of settings and the score of each point that is done."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from widemargin.errors import InputError
from widemargin.records import shortened
from widemargin.reports.inputs.fields import Fields, read_json
from widemargin.reports.inputs.run_folder import CONFIG, read_config

SWEEP, POINTS = "sweep.json", "points"
SETTINGS = 50
"""A grid over more settings is none that anybody swept."""


@dataclass(frozen=True)
class ScoredPoint:
    """One point of the grid."""

    point: Mapping[str, str]
    score: float


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep; ``config`` is the configuration of one of its runs, where there is one."""

    folder: Path
    recipe: str
    grid: Mapping[str, Sequence[str]]
    points: Sequence[ScoredPoint]
    scored: str
    config: Mapping[str, Any]

    @property
    def size(self) -> int:
        """How many points the grid has."""
        size = 1
        for values in self.grid.values():
            size *= len(values)
        return size


def read_sweep(folder: Path) -> Sweep | None:
    """Read a sweep; None where ``sweep.json`` is somebody else's."""
    path = folder / SWEEP
    content = read_json(path, "give the same widemargin sweep again, which writes it anew")
    if not isinstance(content, dict) or not {"grid", "points"} <= content.keys():
        return None
    file = Fields(path, content)
    grid = {key: file.table("grid").texts(key) for key in file.table("grid").values}
    if not 1 <= len(grid) <= SETTINGS or not all(grid.values()):
        raise InputError(f"{path}: grid must have values for 1 to {SETTINGS} settings")
    rows = file.tables("points")
    values = {key: frozenset(grid[key]) for key in grid}
    scored = [row.table("results").text("scored") for row in rows]
    return Sweep(
        folder=folder,
        recipe=file.text("recipe", folder.name),
        grid=grid,
        points=[point for row in rows if (point := _point(row, values)) is not None],
        scored=next(filter(None, scored), "score"),
        config=_config_of_a_point(folder / POINTS),
    )


def _said(point: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in point.items())


def _config_of_a_point(points: Path) -> Mapping[str, Any]:
    """Of the first that has a readable one."""
    for path in sorted(points.glob(f"*/{CONFIG}")):
        with suppress(InputError):
            return read_config(path.parent)
    return {}


def _point(row: Fields, grid: Mapping[str, Collection[str]]) -> ScoredPoint | None:
    score = row.table("results").number("score")
    point = row.table("point").words()
    if point.keys() != grid.keys() or any(point[key] not in grid[key] for key in grid):
        raise InputError(f"{row.path}: {row.prefix}point is not a point of the grid: {shortened(_said(point))}")
    return None if score is None else ScoredPoint(point, score)
