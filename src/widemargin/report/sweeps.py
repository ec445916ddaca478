"""A sweep, as its folder holds it, and as a table: a heat map over one or two settings, a ranking over more."""

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from widemargin.config.checkpoint import CONFIG
from widemargin.core.records import Fields, read_json, shortened
from widemargin.errors import InputError
from widemargin.jobs.grid import POINTS, SWEEP
from widemargin.report.runs import read_config
from widemargin.report.tables import Entry, Head, Table

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
        return math.prod(map(len, self.grid.values()))


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
    values = {key: frozenset(grid[key]) for key in grid}
    rows = [(_point(row, values), row.table("results")) for row in file.tables("points")]
    scores = [(point, results.number("score")) for point, results in rows]
    return Sweep(
        folder=folder,
        recipe=file.text("recipe", folder.name),
        grid=grid,
        points=[ScoredPoint(point, score) for point, score in scores if score is not None],
        scored=next(filter(None, (results.text("scored") for _, results in rows)), "score"),
        config=_config_of_a_point(folder / POINTS),
    )


def _point(row: Fields, grid: Mapping[str, Collection[str]]) -> Mapping[str, str]:
    point = row.table("point").words()
    if point.keys() != grid.keys() or any(point[key] not in grid[key] for key in grid):
        said = shortened(", ".join(f"{key}={value}" for key, value in point.items()))
        raise InputError(f"{row.path}: {row.prefix}point is not a point of the grid: {said}")
    return point


def _config_of_a_point(points: Path) -> Mapping[str, Any]:
    """Of the first that has a readable one."""
    for path in sorted(points.glob(f"*/{CONFIG}")):
        with suppress(InputError):
            return read_config(path.parent)
    return {}


LOW, HIGH = (232, 241, 250), (8, 60, 110)
TILES, PLACES = 2500, 500
"""A larger grid is no picture any more, and a longer ranking none that anybody reads."""


def sweep_table(sweep: Sweep) -> Table:
    """A heat map of one or two settings, a ranking of more."""
    return _heat_map(sweep) if len(sweep.grid) <= 2 and sweep.size <= TILES else _ranking(sweep)


def _heat_map(sweep: Sweep) -> Table:
    """A cell for each point; one not done is blank. It is a table, so that it can be read, copied and scrolled."""
    (down, rows), *more = sweep.grid.items()
    across, columns = more[0] if more else ("", ["score"])
    # of a point that is there twice the first
    scores = {tuple(scored.point[key] for key in sweep.grid): scored.score for scored in reversed(sweep.points)}
    return Table(
        title=_sweep_title(sweep),
        heads=[Head(down), *map(Head, columns)],
        across=across,
        rows=[[Entry(row), *(_tile(scores, (row, column) if more else (row,)) for column in columns)] for row in rows],
        notes=[_sweep_caption(sweep)],
        kind="heat",
    )


def _tile(scores: Mapping[tuple[str, ...], float], point: tuple[str, ...]) -> Entry:
    score = scores.get(point)
    if score is None:
        return Entry("-")
    low, high = min(scores.values()), max(scores.values())
    return Entry(f"{score:.2f}", style=tile_style((score - low) / (high - low) if high > low else 0.5))


def tile_style(share: float) -> str:
    """The color of a tile, from the lowest (0) to the highest (1), and words that can be read on it."""
    mixed = [round(a + (b - a) * share) for a, b in zip(LOW, HIGH, strict=True)]
    color = "#000" if luminance(mixed) > 0.179 else "#fff"
    return f"background: rgb({', '.join(map(str, mixed))}); color: {color}"


def luminance(color: list[int]) -> float:
    """Relative luminance as WCAG defines it; black and white text are equally readable at 0.179."""
    linear = [(c / 255 / 12.92) if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _ranking(sweep: Sweep) -> Table:
    best = sorted(sweep.points, key=lambda scored: -scored.score)[:PLACES]
    said = f" The best {PLACES} are listed." if len(sweep.points) > PLACES else ""
    return Table(
        title=_sweep_title(sweep),
        heads=[Head("Place"), *map(Head, sweep.grid), Head(_score_title(sweep), "%")],
        rows=[
            [Entry(str(place)), *(Entry(scored.point[key]) for key in sweep.grid), Entry(f"{scored.score:.2f}")]
            for place, scored in enumerate(best, start=1)
        ],
        notes=[_sweep_caption(sweep) + said],
    )


def _sweep_title(sweep: Sweep) -> str:
    return f"{sweep.recipe} over {' and '.join(sweep.grid)}"


def _sweep_caption(sweep: Sweep) -> str:
    return f"{_score_title(sweep)}, %. {len(sweep.points):,} of {sweep.size:,} points are done."


def _score_title(sweep: Sweep) -> str:
    """validation_robust -> Validation robust accuracy."""
    return f"{sweep.scored.replace('_', ' ')} accuracy".capitalize() if "_" in sweep.scored else "Score"
