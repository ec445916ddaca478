"""Margin histograms: how far the boundary is, for one model or several on the same axes."""

from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from widemargin.reports.bins import edges
from widemargin.reports.style import COLORS, styled

Values = np.ndarray[tuple[int], np.dtype[np.float64]]


def draw_margins(axes: Axes, margins: dict[str, Tensor], *, unit: str) -> None:
    """One outline per model over common bins, its mean marked; misclassified images lie left of zero."""
    values = {name: tensor[tensor.isfinite()].double().numpy() for name, tensor in margins.items()}
    together = np.concatenate([v for v in values.values() if len(v)] or [np.zeros(1)])
    bounds = edges(*np.quantile(together, [0.001, 0.999]))
    for (name, data), color in zip(values.items(), cycle(COLORS), strict=False):
        axes.hist(np.clip(data, bounds[0], bounds[-1]), bins=bounds, color=color, alpha=0.45, label=_label(name, data))
        axes.hist(np.clip(data, bounds[0], bounds[-1]), bins=bounds, color=color, histtype="step", linewidth=1.2)
        if len(data):
            axes.axvline(float(data.mean()), color=color, linestyle="--", linewidth=1.2)
    axes.axvline(0.0, color="black", linewidth=0.8)
    beyond = "; beyond the axis: in the last bars" if _is_beyond(together, bounds) else ""
    axes.set_xlabel(f"effective margin ({unit}); left of 0: misclassified{beyond}")
    axes.set_ylabel("images")
    axes.legend(loc="upper right")


def _is_beyond(data: Values, bounds: list[float]) -> bool:
    """Whether some margin is outside the bars, by more than rounding."""
    slack = 1e-6 * (bounds[1] - bounds[0])
    return bool(data.min() < bounds[0] - slack or data.max() > bounds[-1] + slack)


def _label(name: str, data: Values) -> str:
    return f"{name}: mean {data.mean():.2f}" if len(data) else f"{name}: none"


def margin_figure(margins: dict[str, Tensor], *, title: str, unit: str) -> Figure:
    """The histogram as a figure of its own."""
    with styled():
        figure = Figure(figsize=(7, 4))
        axes = figure.subplots()
        draw_margins(axes, margins, unit=unit)
        axes.set_title(title)
    return figure
