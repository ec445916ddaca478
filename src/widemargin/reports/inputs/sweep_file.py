"""``sweep.json``: a grid of settings and the score of each point that is done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from widemargin.errors import InputError
from widemargin.reports.inputs.fields import Fields, read_json
from widemargin.reports.inputs.run_folder import CONFIG, read_run

SWEEP, POINTS = "sweep.json", "points"


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
    grid = {key: [str(value) for value in file.table("grid").list(key)] for key in file.table("grid").values}
    rows = file.tables("points")
    scored = [row.table("results").text("scored") for row in rows]
    return Sweep(
        folder=folder,
        recipe=file.text("recipe", folder.name),
        grid=grid,
        points=[point for row in rows if (point := _point(row, grid)) is not None],
        scored=next(filter(None, scored), "score"),
        config=next((read_run(c.parent).config for c in sorted((folder / POINTS).glob(f"*/{CONFIG}"))), {}),
    )


def _point(row: Fields, grid: Mapping[str, Sequence[str]]) -> ScoredPoint | None:
    score = row.table("results").number("score")
    point = row.table("point").words()
    if point.keys() != grid.keys() or any(point[key] not in grid[key] for key in grid):
        raise InputError(f"{row.path}: {row.prefix}point is not a point of the grid: {point}")
    return None if score is None else ScoredPoint(point, score)
