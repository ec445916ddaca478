"""Pictures drawn with matplotlib: margin histograms for one model or several, and the demo's.

Quiet axes, and two colors that survive gray printing and color blindness. The demo's picture has the histograms of both
models above digits with their adversarial twins.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from widemargin.core.files import write_atomic
from widemargin.report.svg import edges

COLORS = ("#8a8d91", "#1768ac", "#d1495b", "#2e933c", "#edae49", "#5f4b8b")

_SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "figure.dpi": 150,
    "legend.frameon": False,
    "svg.hashsalt": "widemargin",
}


@contextmanager
def styled() -> Iterator[None]:
    """Our settings within, the user's own outside."""
    with mpl.rc_context(_SETTINGS):
        yield


def save_picture(figure: Figure, path: Path) -> None:
    """Write the figure as what the file is named (.png, .pdf or .svg), whole or not at all; the same bytes again."""
    kind = path.suffix.removeprefix(".")
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    with styled():
        write_atomic(path, lambda partial: figure.savefig(partial, format=kind, bbox_inches="tight", metadata=undated))


def draw_margins(axes: Axes, margins: dict[str, Tensor], *, unit: str) -> None:
    """One outline per model over common bins, its mean marked; misclassified images lie left of zero."""
    values = {name: tensor[tensor.isfinite()].double().numpy() for name, tensor in margins.items()}
    together = np.concatenate([v for v in values.values() if len(v)] or [np.zeros(1)])
    bounds = edges(*np.quantile(together, [0.001, 0.999]))
    slack = 1e-6 * (bounds[1] - bounds[0])  # beyond the axis by more than rounding
    is_beyond = together.min() < bounds[0] - slack or together.max() > bounds[-1] + slack
    for (name, data), color in zip(values.items(), cycle(COLORS), strict=False):
        label = f"{name}: mean {data.mean():.2f}" if len(data) else f"{name}: none"
        shown = np.clip(data, bounds[0], bounds[-1])
        axes.hist(shown, bins=bounds, color=color, alpha=0.45, label=label)
        axes.hist(shown, bins=bounds, color=color, histtype="step", linewidth=1.2)
        if len(data):
            axes.axvline(float(data.mean()), color=color, linestyle="--", linewidth=1.2)
    axes.axvline(0.0, color="black", linewidth=0.8)
    beyond = "; beyond the axis: in the last bars" if is_beyond else ""
    axes.set_xlabel(f"effective margin ({unit}); left of 0: misclassified{beyond}")
    axes.set_ylabel("images")
    axes.legend(loc="upper right")


def margin_figure(margins: dict[str, Tensor], *, title: str, unit: str) -> Figure:
    """The histogram as a figure of its own."""
    with styled():
        figure = Figure(figsize=(7, 4))
        axes = figure.subplots()
        draw_margins(axes, margins, unit=unit)
        axes.set_title(title)
    return figure


RIGHT, WRONG = "#2e933c", "#d1495b"
CHECK, CROSS = "✓", "✗"
"""Beside the colors, for those who cannot tell red from green."""


@dataclass(frozen=True)
class Twins:
    """One model's adversarial images (N, C, H, W), what it calls them (N,), and its accuracy on all, in percent."""

    images: Tensor
    predictions: Tensor
    accuracy: float


def demo_figure(
    margins: dict[str, Tensor], clean: Tensor, labels: Tensor, twins: dict[str, Twins], *, attack: str, eps: float
) -> Figure:
    """Histograms on top; below, a row of clean digits and, for each model, a row of their adversarial twins."""
    columns = len(clean)
    with styled():
        figure = Figure(figsize=(9, 4.2 + 1.05 * (1 + len(twins))), layout="constrained")
        top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=[3.6, 1.05 * (1 + len(twins))])[:, 0]
        axes = top.subplots()
        draw_margins(axes, margins, unit="L2, pixels in [0, 1]")
        axes.set_title("Effective margin: distance to the linearized boundary")
        grid = bottom.subplots(1 + len(twins), columns, squeeze=False)
        _row(grid[0], clean, "clean\n(true label)", [(str(int(label)), "black") for label in labels])
        for row, (name, twin) in zip(grid[1:], twins.items(), strict=True):
            pairs = zip(twin.predictions.tolist(), labels.tolist(), strict=True)
            said = [(f"{p} {CHECK}", RIGHT) if p == y else (f"{p} {CROSS}", WRONG) for p, y in pairs]
            _row(row, twin.images, f"{name},\n{attack}: {twin.accuracy:.1f}%\nof all test digits", said)
        bottom.suptitle(
            f"Digits, their adversarial twins ({attack}, L∞ eps {eps:g}), and what each model calls them",
            x=0.02,
            ha="left",
            fontweight="bold",
            fontsize=11,
        )
    return figure


def _row(row: "list[Axes]", images: Tensor, name: str, captions: list[tuple[str, str]]) -> None:
    for axes, image, (caption, color) in zip(row, images, captions, strict=True):
        axes.imshow(image.permute(1, 2, 0).squeeze(-1).cpu().numpy(), cmap="gray", vmin=0, vmax=1)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_title(caption, color=color, fontsize=10, loc="center", pad=2)
    row[0].set_ylabel(name, rotation=0, ha="right", va="center", labelpad=8)
