"""What every chart shares: the SVG around it, its scales, axes and legend, and its name for those who do not see it.

A chart stands inside the page; its colors come from the page's style, so they follow light and dark.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from widemargin.report.wording import minus

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
TINY = 1e-200
"""A range below is none: steps in it would be lost in the last bits of a float."""


@dataclass(frozen=True)
class Scale:
    """A linear scale from ``low``..``high`` to ``start``..``end`` in the units of the picture."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Where a value lies."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


@dataclass(frozen=True)
class Tick:
    """A marked value and what is written there."""

    value: float
    text: str


def span(values: Sequence[float], *, zero: bool = False) -> tuple[float, float]:
    """The range of the values, never empty."""
    low, high = min(values), max(values)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    size = max(abs(low), abs(high))
    if high - low <= max(1e-9 * size, TINY):
        pad = abs(high) * 0.05 if size > TINY else 0.5
        return low - pad, high + pad
    return low, high


def ticks(low: float, high: float, wanted: int = 5) -> list[Tick]:
    """Round values that cover low..high; the first and last are the ends of the axis."""
    step = nice_step((high - low) / wanted)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [Tick(number * step, _tick_text(number * step, step)) for number in range(first, last + 1)]


def _tick_text(value: float, step: float) -> str:
    """A value with as many digits as its step needs; very large and very small ones with an exponent."""
    if not 5e-4 <= step < 2e4:
        return f"{value:.3g}"
    power = math.floor(math.log10(step) + 1e-9)
    is_quarter = math.isclose(step / 10**power, 2.5)  # 2.5, 0.25 and so on need a digit more
    return f"{value:.{max(0, is_quarter - power)}f}"


def whole_ticks(low: float, high: float, wanted: int = 5) -> list[Tick]:
    """Whole numbers inside low..high, for epochs."""
    step = max(1, round(nice_step((high - low) / wanted)))
    first = math.ceil(low / step) * step
    inside = range(first, math.floor(high) + 1, step)
    values = [low, *(v for v in inside if v - low >= step / 2)] if low == 1 and step > 1 else list(inside)
    return [Tick(float(value), f"{value:g}") for value in values]


def nice_step(rough: float) -> float:
    """The round number just above."""
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next((step * power for step in STEPS if rough <= step * power * (1 + 1e-9)), 10 * power)


WIDTH, HEIGHT = 360.0, 236.0
LEFT, RIGHT, TOP, BOTTOM = 42.0, 14.0, 26.0, 38.0


@dataclass(frozen=True, kw_only=True)
class Text:
    """A chart's name, what it shows in words, and what its axes measure."""

    id: str
    title: str
    description: str
    x: str = ""
    y: str = ""


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


def svg(text: Text, body: Markup, *, height: float = HEIGHT, axes: str = "") -> Markup:
    """The picture: a named image for a screen reader, scaled to the width there is; ``axes`` are for the script."""
    return Markup(
        '<svg class="chart" viewBox="0 0 {width:g} {height:g}" role="img" aria-labelledby="{id}-t {id}-d"{axes}>'
        '<title id="{id}-t">{title}</title><desc id="{id}-d">{description}</desc>{body}</svg>'
    ).format(
        width=WIDTH,
        height=height,
        id=text.id,
        title=text.title,
        description=text.description,
        body=body,
        axes=Markup(' data-axes="{}"').format(axes) if axes else "",
    )


def framed(text: Text, on: Axes, body: Markup, *, alive: bool = False) -> Markup:
    """A chart with axes: quiet horizontal lines, numbers, units.

    An ``alive`` one says what its axes are, so that the script can tell values, and draw it anew.
    """
    row = Markup(
        '<line class="grid" x1="{left:g}" x2="{right:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        '<text class="tick" x="{at:g}" y="{y:.1f}" dy="3.5" text-anchor="end">{text}</text>'
    )
    mark = Markup(
        '<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{y:g}" y2="{end:g}"/>'
        '<text class="tick" x="{x:.1f}" y="{at:g}" text-anchor="middle">{text}</text>'
    )
    left, right, bottom = LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM
    rows = (row.format(left=left, right=right, y=on.y(t.value), at=left - 6, text=minus(t.text)) for t in on.y_ticks)
    axis = Markup('<line class="axis" x1="{0:g}" x2="{1:g}" y1="{2:g}" y2="{2:g}"/>').format(left, right, bottom)
    marks = (
        mark.format(x=on.x(t.value), y=bottom, end=bottom + 4, at=bottom + 16, text=minus(t.text)) for t in on.x_ticks
    )
    units = Markup(
        '<text class="unit" x="{:g}" y="{:g}" text-anchor="end">{}</text><text class="unit" x="0" y="11">{}</text>'
    ).format(right, HEIGHT - 5, text.x, text.y)
    ends = (on.x.low, on.x.high, on.x.start, on.x.end, on.y.low, on.y.high, on.y.start, on.y.end)
    told = " ".join(f"{end:.6g}" for end in ends) if alive else ""
    return svg(text, Markup("").join([*rows, axis, *marks, body, units]), axes=told)


COLORS = 8
"""How many colors the page's style has; further series repeat them dashed."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points with a name and a color; ``spread`` is the half-width of a band around each point."""

    label: str
    color: int
    points: Points
    spread: Sequence[float] = ()

    def edges(self) -> tuple[Points, Points]:
        """The lower and the upper edge of the band; without one, the line itself."""
        spread = self.spread or [0.0] * len(self.points)
        lower, upper = ([(x, y + sign * s) for (x, y), s in zip(self.points, spread, strict=True)] for sign in (-1, 1))
        return lower, upper


def color_class(number: int) -> str:
    """The style's class for the color of this number."""
    dashes = ("", " dashed", " dotted")[number // COLORS % 3]
    return f"c{number % COLORS}{dashes}"


def legend(entries: Sequence[tuple[str, int]]) -> Markup:
    """Which color is whose; nothing where there are none."""
    line = Markup('<g class="{}"><path class="line" d="M1 4H21"/></g>')
    return _legend([(label, line.format(color_class(color))) for label, color in entries])


def part_legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """The same of bars, by the style's class."""
    bar = Markup('<rect class="{}" width="22" height="8"/>')
    return _legend([(label, bar.format(style)) for label, style in entries])


def _legend(entries: Sequence[tuple[str, Markup]]) -> Markup:
    entry = Markup('<li data-of="{1}"><svg class="swatch" viewBox="0 0 22 8" aria-hidden="true">{0}</svg>{1}</li>')
    items = Markup("").join(entry.format(swatch, label) for label, swatch in entries)
    return Markup('<ul class="legend">{}</ul>').format(items) if entries else items


BINS = 60


def edges(low: float, high: float, bins: int = BINS) -> list[float]:
    """Bins of equal width from low to high with an edge at 0, so that no bar mixes right and wrong."""
    low, high = min(low, 0.0), max(high, 0.0)
    width = (high - low) / bins if high - low > TINY else 1.0 / bins
    first, last = int(np.floor(low / width)), max(int(np.ceil(high / width)), 1)
    return [number * width for number in range(first, last + 1)]
