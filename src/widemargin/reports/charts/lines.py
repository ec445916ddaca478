"""Lines over epochs or over eps, with a band where there is a spread."""

from collections.abc import Sequence

from markupsafe import Markup

from widemargin.reports.charts.frame import Axes, Text, axes, framed
from widemargin.reports.charts.scale import Tick, span, ticks, whole_ticks
from widemargin.reports.charts.series import Series, color_class

FEW = 25
"""Up to so many points each is marked and says its value when pointed at."""


def line_chart(
    text: Text,
    series: Sequence[Series],
    *,
    percent: bool = False,
    zero: bool = False,
    x_ticks: Sequence[Tick] | None = None,
) -> Markup:
    """A chart of one or more lines; in percent the axis stays within 0..100."""
    on = _axes(series, percent=percent, zero=zero, x_ticks=x_ticks)
    bands = Markup("").join(_band(line, on) for line in series if line.spread)
    lines = Markup("").join(_line(line, on) for line in series)
    return framed(text, on, bands + lines)


def _axes(series: Sequence[Series], *, percent: bool, zero: bool, x_ticks: Sequence[Tick] | None) -> Axes:
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for y in _extent(line)]
    low, high = span(ys, zero=zero)
    if percent:
        low, high = max(low, 0.0), min(high, 100.0)
    x_range = span([*xs, *(tick.value for tick in x_ticks or ())])
    return axes(x_range, whole_ticks(*x_range) if x_ticks is None else x_ticks, ticks(low, high))


def _extent(line: Series) -> list[float]:
    spread = line.spread or [0.0] * len(line.points)
    return [y + sign * half for (_, y), half in zip(line.points, spread, strict=True) for sign in (-1, 1)]


def _band(line: Series, on: Axes) -> Markup:
    pairs = list(zip(line.points, line.spread, strict=True))
    upper = [f"{on.x(x):.1f} {on.y(y + half):.1f}" for (x, y), half in pairs]
    lower = [f"{on.x(x):.1f} {on.y(y - half):.1f}" for (x, y), half in reversed(pairs)]
    return Markup('<path class="band {}" d="M{}Z"/>').format(color_class(line.color), "L".join([*upper, *lower]))


def _line(line: Series, on: Axes) -> Markup:
    places = [f"{on.x(x):.1f} {on.y(y):.1f}" for x, y in line.points]
    path = Markup('<path class="line" d="M{}"/>').format("L".join(places))
    dots = Markup("").join(_dot(line, x, y, on) for x, y in line.points) if len(line.points) <= FEW else Markup("")
    return Markup('<g class="{}">{}{}</g>').format(color_class(line.color), path, dots)


def _dot(line: Series, x: float, y: float, on: Axes) -> Markup:
    return Markup(
        '<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="2.4"><title>{}: {:.4g} at {:g}</title></circle>'
    ).format(on.x(x), on.y(y), line.label, y, x)
