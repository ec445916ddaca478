"""The four kinds of charts, each drawn once: lines, histograms, a cloud of points, bars that divide a whole.

Lines may have a band around them. Histograms have common bins and outlines, so that they can be told apart where they
overlap; each mean is marked. A cloud has the line on which both numbers would be equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from widemargin.report.svg import (
    BOTTOM,
    HEIGHT,
    TOP,
    WIDTH,
    Axes,
    Series,
    Text,
    Tick,
    axes,
    color_class,
    edges,
    framed,
    span,
    svg,
    ticks,
    whole_ticks,
)

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
    xs = [x for line in series for x, _ in line.points]
    low, high = span([y for line in series for edge in line.edges() for _, y in edge], zero=zero)
    if percent:
        low, high = max(low, 0.0), min(high, 100.0)
    x_range = span([*xs, *(tick.value for tick in x_ticks or ())])
    on = axes(x_range, whole_ticks(*x_range) if x_ticks is None else x_ticks, ticks(low, high))
    bands = Markup("").join(_band(line, on) for line in series if line.spread)
    return framed(text, on, bands + Markup("").join(_line(line, on) for line in series), alive=True)


def _band(line: Series, on: Axes) -> Markup:
    lower, upper = line.edges()
    places = "L".join(f"{on.x(x):.1f} {on.y(y):.1f}" for x, y in [*upper, *reversed(lower)])
    return Markup('<path class="band {}" data-of="{}" d="M{}Z"/>').format(color_class(line.color), line.label, places)


def _line(line: Series, on: Axes) -> Markup:
    places = "L".join(f"{on.x(x):.1f} {on.y(y):.1f}" for x, y in line.points)
    dot = Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="2.4"><title>{}: {:.4g} at {:g}</title></circle>')
    few = line.points if len(line.points) <= FEW else ()
    dots = Markup("").join(dot.format(on.x(x), on.y(y), line.label, y, x) for x, y in few)
    values = " ".join(f"{x:.6g},{y:.4g}" for x, y in line.points)
    path = Markup('<path class="line" d="M{}" data-values="{}"/>').format(places, values)
    return Markup('<g class="{}" data-of="{}">{}{}</g>').format(color_class(line.color), line.label, path, dots)


BINS = 40


@dataclass(frozen=True)
class Sample:
    """Values with a name and a color."""

    label: str
    color: int
    values: Sequence[float]


def histogram(text: Text, samples: Sequence[Sample]) -> Markup:
    """The share of values in each bin, in percent; the few beyond the outer bins are counted in them."""
    low, high = np.quantile(np.concatenate([sample.values for sample in samples]), [0.001, 0.999])
    bounds = edges(float(low), float(high), BINS)
    shares = [_shares(sample, bounds) for sample in samples]
    top = span([value for share in shares for value in share], zero=True)[1]
    x_ticks = [tick for tick in ticks(bounds[0], bounds[-1]) if bounds[0] <= tick.value <= bounds[-1]]
    on = axes((bounds[0], bounds[-1]), x_ticks, ticks(0.0, top, 4))
    bars = [_outline(sample, share, bounds, on) for sample, share in zip(samples, shares, strict=True)]
    return framed(text, on, _upright("zero", on.x(0.0)) + Markup("").join(bars))


def _shares(sample: Sample, bounds: Sequence[float]) -> list[float]:
    counts, _ = np.histogram(np.clip(sample.values, bounds[0], bounds[-1]), bins=list(bounds))
    return [100.0 * float(count) / len(sample.values) for count in counts]


def _upright(style: str, x: float) -> Markup:
    return Markup('<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="{:g}" y2="{:g}"/>').format(
        style, x, x, TOP, HEIGHT - BOTTOM
    )


def _outline(sample: Sample, share: Sequence[float], bounds: Sequence[float], on: Axes) -> Markup:
    steps = [f"V{on.y(value):.1f}H{on.x(right):.1f}" for value, right in zip(share, bounds[1:], strict=True)]
    path = f"M{on.x(bounds[0]):.1f} {on.y(0):.1f}{''.join(steps)}V{on.y(0):.1f}"
    mean = float(np.clip(np.mean(sample.values), bounds[0], bounds[-1]))
    body = Markup('<g class="{}" data-of="{}"><path class="area" d="{}Z"/><path class="line thin" d="{}"/>{}</g>')
    return body.format(color_class(sample.color), sample.label, path, path, _upright("mean", on.x(mean)))


MOST_POINTS = 3000
"""More points than these only blacken the picture; every so-many-th is drawn."""


def scatter(text: Text, points: Sequence[tuple[float, float]], color: int) -> Markup:
    """One cloud; both axes start at zero, or below where there are negative values."""
    x_ticks, y_ticks = (ticks(*span(values, zero=True), 5) for values in zip(*points, strict=True))
    on = axes((x_ticks[0].value, x_ticks[-1].value), x_ticks, y_ticks)
    low, high = max(x_ticks[0].value, y_ticks[0].value), min(x_ticks[-1].value, y_ticks[-1].value)
    equal = Markup('<line class="equal" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
        on.x(low), on.y(low), on.x(high), on.y(high)
    )
    dots = "".join(f"M{on.x(x):.1f} {on.y(y):.1f}h0" for x, y in points[:: -(-len(points) // MOST_POINTS)])
    return framed(text, on, equal + Markup('<path class="cloud {}" d="{}"/>').format(color_class(color), dots))


ROW, BAR = 44.0, 18.0


def stacked(text: Text, rows: Sequence[tuple[str, Sequence[tuple[str, str, int]]]]) -> Markup:
    """Each row is a name and its parts: (name, style class, count)."""
    bodies = [_bar(label, parts, number * ROW) for number, (label, parts) in enumerate(rows)]
    return svg(text, Markup("").join(bodies), height=ROW * len(rows))


def _bar(label: str, parts: Sequence[tuple[str, str, int]], top: float) -> Markup:
    total = sum(count for _, _, count in parts) or 1
    bars, left = Markup(""), 0.0
    for name, style, count in parts:
        width = WIDTH * count / total
        bars += Markup(
            '<rect class="{style}" x="{x:.2f}" y="{y:g}" width="{w:.2f}" height="{h:g}">'
            "<title>{name}: {count:,}</title></rect>"
        ).format(style=style, x=left, y=top + 18, w=width, h=BAR, name=name, count=count)
        left += width
    return Markup('<text class="rowname" x="0" y="{:g}">{}</text>{}').format(top + 12, label, bars)
