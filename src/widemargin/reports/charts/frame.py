"""What every chart shares: the SVG around it, its axes, and its name for those who do not see it."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from widemargin.reports.charts.scale import Scale, Tick

WIDTH, HEIGHT = 360.0, 236.0
LEFT, RIGHT, TOP, BOTTOM = 42.0, 14.0, 26.0, 38.0


@dataclass(frozen=True, kw_only=True)
class Text:
    """A chart's name, what it shows in words, and what its axes measure."""

    id: str
    title: str
    description: str
    x: str
    y: str


@dataclass(frozen=True)
class Axes:
    """Both scales with their ticks."""

    x: Scale
    y: Scale
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]


def axes(x_range: tuple[float, float], x_ticks: Sequence[Tick], y_ticks: Sequence[Tick]) -> Axes:
    """Axes over the usual plot area; the y axis goes from its first to its last tick."""
    x = Scale(*x_range, LEFT, WIDTH - RIGHT)
    y = Scale(y_ticks[0].value, y_ticks[-1].value, HEIGHT - BOTTOM, TOP)
    return Axes(x, y, x_ticks, y_ticks)


def svg(text: Text, body: Markup, *, height: float = HEIGHT) -> Markup:
    """The picture: a named image for a screen reader, scaled to the width there is."""
    return Markup(
        '<svg class="chart" viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="{id}-t {id}-d">'
        '<title id="{id}-t">{title}</title><desc id="{id}-d">{description}</desc>{body}</svg>'
    ).format(width=WIDTH, height=height, id=text.id, title=text.title, description=text.description, body=body)


def framed(text: Text, on: Axes, body: Markup) -> Markup:
    """A chart with axes: quiet horizontal lines, numbers, units."""
    return svg(text, _y_axis(on) + _x_axis(on) + body + _units(text))


def _y_axis(on: Axes) -> Markup:
    row = Markup(
        '<line class="grid" x1="{left:g}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        '<text class="tick" x="{at:g}" y="{y:.1f}" dy="3.5" text-anchor="end">{text}</text>'
    )
    rows = [
        row.format(left=LEFT, right=WIDTH - RIGHT, y=on.y(t.value), at=LEFT - 6, text=minus(t.text)) for t in on.y_ticks
    ]
    return Markup("").join(rows)


def _x_axis(on: Axes) -> Markup:
    bottom = HEIGHT - BOTTOM
    line = Markup('<line class="axis" x1="{0:g}" x2="{1:g}" y1="{2:g}" y2="{2:g}"/>').format(
        LEFT, WIDTH - RIGHT, bottom
    )
    mark = Markup(
        '<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{y:g}" y2="{end:g}"/>'
        '<text class="tick" x="{x:.1f}" y="{at:g}" text-anchor="middle">{text}</text>'
    )
    marks = [
        mark.format(x=on.x(t.value), y=bottom, end=bottom + 4, at=bottom + 16, text=minus(t.text)) for t in on.x_ticks
    ]
    return line + Markup("").join(marks)


def minus(text: str) -> str:
    """A number with a true minus sign, as wide as the digits."""
    return text.replace("-", "\N{MINUS SIGN}")


def _units(text: Text) -> Markup:
    return Markup(
        '<text class="unit" x="{x:g}" y="{y:g}" text-anchor="end">{across}</text>'
        '<text class="unit" x="0" y="11">{up}</text>'
    ).format(x=WIDTH - RIGHT, y=HEIGHT - 5, across=text.x, up=text.y)
