"""A sweep over two settings as the paper draws it: a heat map with the number in each cell."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from widemargin.errors import InputError
from widemargin.reports.style import styled

Scored = Sequence[tuple[Mapping[str, str], float]]


def heat_map(grid: Mapping[str, Sequence[str]], scores: Scored, *, title: str, unit: str) -> Figure:
    """One cell per point of a grid over one or two settings; a point not done is left blank."""
    if len(grid) > 2:
        raise InputError(f"a heat map shows one or two settings, got {', '.join(grid)}")
    (down, rows), *rest = grid.items()
    across, columns = rest[0] if rest else ("", [""])
    values = np.full((len(rows), len(columns)), np.nan)
    for point, score in scores:
        values[list(rows).index(point[down]), list(columns).index(point[across]) if across else 0] = score
    with styled():
        figure = Figure(figsize=(1.6 + 1.1 * len(columns), 1.6 + 0.7 * len(rows)), layout="constrained")
        axes = figure.subplots()
        picture = axes.imshow(values, cmap="viridis", aspect="auto")
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.set_xlabel(across)
        axes.set_ylabel(down)
        axes.spines[:].set_visible(False)
        _write_numbers(axes, values)
        figure.colorbar(picture, ax=axes, label=unit)
        axes.set_title(title)
    return figure


def _write_numbers(axes: Any, values: "np.ndarray[Any, np.dtype[np.float64]]") -> None:
    shown = values[np.isfinite(values)]
    middle = (shown.min() + shown.max()) / 2 if shown.size else 0.0
    for (row, column), value in np.ndenumerate(values):
        text = "-" if np.isnan(value) else f"{value:.1f}"
        color = "black" if np.isnan(value) or value > middle else "white"
        axes.text(column, row, text, ha="center", va="center", color=color)
