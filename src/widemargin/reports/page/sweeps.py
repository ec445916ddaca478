"""Sweeps as heat maps: a table whose cells are colored by their number, so it can be read, copied and scrolled."""

from collections.abc import Mapping
from dataclasses import dataclass

from widemargin.reports.inputs.search import Findings
from widemargin.reports.inputs.sweep_file import Sweep
from widemargin.reports.page.section import Section
from widemargin.reports.tables import Entry, Head, TextTable

LOW, HIGH = (232, 241, 250), (8, 60, 110)
TILES, PLACES = 2500, 500
"""A larger grid is no picture any more, and a longer ranking none that anybody reads."""


Point = tuple[str, ...]
"""The values of the grid's settings, in order."""


@dataclass(frozen=True)
class Tile:
    """A cell: its number and its colors."""

    text: str
    background: str = ""
    color: str = ""


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """A grid of one or two settings."""

    title: str
    caption: str
    down: str
    across: str
    columns: list[str]
    rows: list[tuple[str, list[Tile]]]


def sweeps(found: Findings) -> Section | None:
    """A heat map for each sweep over one or two settings, a ranking for those over more."""
    if not found.sweeps:
        return None
    return Section(
        id="sweeps",
        title="Sweeps",
        tables=[_grid(sweep) if _is_map(sweep) else _ranking(sweep) for sweep in found.sweeps],
        template="sweeps.html",
        more={
            "maps": [heat_map(sweep) for sweep in found.sweeps if _is_map(sweep)],
            "rankings": [_ranking(sweep) for sweep in found.sweeps if not _is_map(sweep)],
        },
    )


def _is_map(sweep: Sweep) -> bool:
    return len(sweep.grid) <= 2 and sweep.size <= TILES


def heat_map(sweep: Sweep) -> HeatMap:
    """The grid with a tile for each point; a point not done is blank."""
    down, across, columns = _sides(sweep)
    scores = _scores(sweep)
    return HeatMap(
        title=_title(sweep),
        caption=_caption(sweep),
        down=down,
        across=across,
        columns=columns,
        rows=[
            (value, [_tile(scores, _point(sweep, value, column)) for column in columns]) for value in sweep.grid[down]
        ],
    )


def _sides(sweep: Sweep) -> tuple[str, str, list[str]]:
    down, *rest = sweep.grid
    return (down, rest[0], list(sweep.grid[rest[0]])) if rest else (down, "", ["score"])


def _caption(sweep: Sweep) -> str:
    return f"{_scored(sweep)}, %. {len(sweep.points):,} of {sweep.size:,} points are done."


def _point(sweep: Sweep, row: str, column: str) -> Point:
    return (row, column) if len(sweep.grid) > 1 else (row,)


def _scores(sweep: Sweep) -> dict[Point, float]:
    """By point; of a point that is there twice the first."""
    return {tuple(scored.point[key] for key in sweep.grid): scored.score for scored in reversed(sweep.points)}


def _tile(scores: Mapping[Point, float], point: Point) -> Tile:
    score = scores.get(point)
    if score is None:
        return Tile("-")
    low, high = min(scores.values()), max(scores.values())
    share = (score - low) / (high - low) if high > low else 0.5
    mixed = [round(a + (b - a) * share) for a, b in zip(LOW, HIGH, strict=True)]
    return Tile(
        f"{score:.2f}", f"rgb({mixed[0]}, {mixed[1]}, {mixed[2]})", "#000" if luminance(mixed) > 0.179 else "#fff"
    )


def luminance(color: list[int]) -> float:
    """Relative luminance as WCAG defines it; black and white text are equally readable at 0.179."""
    linear = [(c / 255 / 12.92) if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _scored(sweep: Sweep) -> str:
    """validation_robust -> Validation robust accuracy."""
    return f"{sweep.scored.replace('_', ' ')} accuracy".capitalize() if "_" in sweep.scored else "Score"


def _title(sweep: Sweep) -> str:
    return f"{sweep.recipe} over {' and '.join(sweep.grid)}"


def _grid(sweep: Sweep) -> TextTable:
    down, across, columns = _sides(sweep)
    scores = _scores(sweep)
    heads = [Head(down), *(Head(f"{across} = {column}" if across else column) for column in columns)]
    rows = [
        (Entry(value), [_entry(scores.get(_point(sweep, value, column))) for column in columns])
        for value in sweep.grid[down]
    ]
    return TextTable(title=_title(sweep), heads=heads, rows=rows, notes=[_caption(sweep)])


def _ranking(sweep: Sweep) -> TextTable:
    best = sorted(sweep.points, key=lambda scored: -scored.score)[:PLACES]
    rows = [
        (Entry(str(place)), [*(Entry(scored.point[key]) for key in sweep.grid), _entry(scored.score)])
        for place, scored in enumerate(best, start=1)
    ]
    heads = [Head("Place"), *map(Head, sweep.grid), Head(_scored(sweep), "%")]
    said = f" The best {PLACES} are listed." if len(sweep.points) > PLACES else ""
    return TextTable(title=_title(sweep), heads=heads, rows=rows, notes=[_caption(sweep) + said])


def _entry(score: float | None) -> Entry:
    return Entry("-" if score is None else f"{score:.2f}")
