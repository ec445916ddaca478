"""Histograms on common bins: outlines that can be told apart where they overlap, each mean marked."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from widemargin.reports.bins import edges
from widemargin.reports.charts.frame import BOTTOM, HEIGHT, TOP, Axes, Text, axes, framed
from widemargin.reports.charts.scale import Tick, span, ticks
from widemargin.reports.charts.series import color_class

BINS = 40


@dataclass(frozen=True)
class Sample:
    """Values with a name and a color."""

    label: str
    color: int
    values: Sequence[float]


def histogram(text: Text, samples: Sequence[Sample]) -> Markup:
    """The share of values in each bin, in percent; the few beyond the outer bins are counted in them."""
    together = np.concatenate([np.asarray(sample.values, dtype=np.float64) for sample in samples])
    low, high = np.quantile(together, [0.001, 0.999])
    bounds = edges(float(low), float(high), BINS)
    shares = [_shares(sample, bounds) for sample in samples]
    top = span([value for share in shares for value in share], zero=True)[1]
    on = axes((bounds[0], bounds[-1]), _inside(bounds), ticks(0.0, top, 4))
    zero = Markup('<line class="zero" x1="{0:.1f}" x2="{0:.1f}" y1="{1:g}" y2="{2:g}"/>').format(
        on.x(0.0), TOP, HEIGHT - BOTTOM
    )
    bars = [_outline(sample, share, bounds, on) for sample, share in zip(samples, shares, strict=True)]
    return framed(text, on, zero + Markup("").join(bars))


def _inside(bounds: Sequence[float]) -> list[Tick]:
    return [tick for tick in ticks(bounds[0], bounds[-1]) if bounds[0] <= tick.value <= bounds[-1]]


def _shares(sample: Sample, bounds: Sequence[float]) -> list[float]:
    counts, _ = np.histogram(np.clip(sample.values, bounds[0], bounds[-1]), bins=list(bounds))
    return [100.0 * float(count) / len(sample.values) for count in counts]


def _outline(sample: Sample, share: Sequence[float], bounds: Sequence[float], on: Axes) -> Markup:
    steps = [f"M{on.x(bounds[0]):.1f} {on.y(0):.1f}"]
    steps += [f"V{on.y(value):.1f}H{on.x(right):.1f}" for value, right in zip(share, bounds[1:], strict=True)]
    path = "".join([*steps, f"V{on.y(0):.1f}"])
    mean = float(np.clip(np.mean(sample.values), bounds[0], bounds[-1]))
    return Markup(
        '<g class="{color}"><path class="area" d="{path}Z"/><path class="line thin" d="{path}"/>'
        '<line class="mean" x1="{x:.1f}" x2="{x:.1f}" y1="{top:g}" y2="{bottom:g}"/></g>'
    ).format(color=color_class(sample.color), path=path, x=on.x(mean), top=TOP, bottom=HEIGHT - BOTTOM)
