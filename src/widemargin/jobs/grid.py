"""A grid of settings over a recipe: its points, their runs and folders. ``sweep`` works it off."""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from widemargin.config.run import RunConfig
from widemargin.config.toml import to_dict, with_overrides
from widemargin.core.schema import split_list
from widemargin.errors import InputError

SWEEP, POINTS = "sweep.json", "points"
"""The scores of a sweep, and the folder of its runs."""
Point = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A recipe, the grid over it, and where results are shared."""

    config: RunConfig
    grid: Mapping[str, Sequence[str]]
    out: Path
    storage: str
    heartbeat: int = 60

    def points(self) -> list[Point]:
        """Every combination; each is checked before anything runs."""
        points = [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
        first: dict[str, Point] = {}
        for point in points:
            other = first.setdefault(json.dumps(to_dict(self.configure(point)), sort_keys=True), point)
            if other is not point:
                raise InputError(f"--grid: {words(other)} and {words(point)} are the same run; leave one out")
        return points

    def configure(self, point: Point) -> RunConfig:
        """The run of one point."""
        return with_overrides(self.config, [f"{path}={value}" for path, value in point.items()])

    def folder(self, point: Point) -> Path:
        """The run folder of one point."""
        return self.out / POINTS / words(point).replace("/", "-")


def words(point: Point) -> str:
    """For people and for folders."""
    return ",".join(f"{path}={value}" for path, value in point.items())


def parse_grid(texts: Sequence[str]) -> dict[str, list[str]]:
    """``["emr.weight=0.1,0.3", ...]`` as path -> values."""
    grid: dict[str, list[str]] = {}
    for text in texts:
        path, equals, values = text.partition("=")
        found = [value.strip() for value in split_list(values) if value.strip()]
        if not equals or not path.strip() or not found:
            raise InputError(f"--grid {text!r}: write path=value,value,..., for example emr.weight=0.1,0.3,1")
        if path.strip() in grid or len(set(found)) != len(found):
            raise InputError(f"--grid {text!r}: {path.strip()!r} or one of its values is given twice")
        grid[path.strip()] = found
    if not grid:
        raise InputError("--grid is missing; give at least one, for example --grid emr.weight=0.1,0.3,1")
    return grid
