"""A cloud of points and the line on which both numbers would be equal."""

from collections.abc import Sequence

from markupsafe import Markup

from widemargin.reports.charts.frame import Axes, Text, axes, framed
from widemargin.reports.charts.scale import Tick, span, ticks
from widemargin.reports.charts.series import color_class

MOST = 3000
"""More points than these only blacken the picture; every so-many-th is drawn."""


def scatter(text: Text, points: Sequence[tuple[float, float]], color: int) -> Markup:
    """One cloud; both axes start at zero, or below where there are negative values."""
    on = _axes(points)
    shown = points[:: -(-len(points) // MOST)]
    dots = "".join(f"M{on.x(x):.1f} {on.y(y):.1f}h0" for x, y in shown)
    cloud = Markup('<path class="cloud {}" d="{}"/>').format(color_class(color), dots)
    return framed(text, on, _diagonal(on) + cloud)


def _axes(points: Sequence[tuple[float, float]]) -> Axes:
    x_ticks = ticks(*span([x for x, _ in points], zero=True), 5)
    y_ticks = ticks(*span([y for _, y in points], zero=True), 5)
    return axes((x_ticks[0].value, x_ticks[-1].value), x_ticks, y_ticks)


def _diagonal(on: Axes) -> Markup:
    low = max(_first(on.x_ticks), _first(on.y_ticks))
    high = min(on.x_ticks[-1].value, on.y_ticks[-1].value)
    return Markup('<line class="equal" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
        on.x(low), on.y(low), on.x(high), on.y(high)
    )


def _first(marked: Sequence[Tick]) -> float:
    return marked[0].value
