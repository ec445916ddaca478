"""The demo's picture: margin histograms of both models above digits with their adversarial twins."""

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from widemargin.reports.margin_histogram import draw_margins
from widemargin.reports.style import styled

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
            said = [_said(int(p), int(y)) for p, y in zip(twin.predictions, labels, strict=True)]
            _row(row, twin.images, f"{name},\n{attack}: {twin.accuracy:.1f}%\nof all test digits", said)
        bottom.suptitle(
            f"Digits, their adversarial twins ({attack}, L∞ eps {eps:g}), and what each model calls them",
            x=0.02,
            ha="left",
            fontweight="bold",
            fontsize=11,
        )
    return figure


def _said(prediction: int, label: int) -> tuple[str, str]:
    """(what the model calls the digit, with a mark; the color)"""
    mark, color = (CHECK, RIGHT) if prediction == label else (CROSS, WRONG)
    return f"{prediction} {mark}", color


def _row(row: "list[Axes]", images: Tensor, name: str, captions: list[tuple[str, str]]) -> None:
    for axes, image, (caption, color) in zip(row, images, captions, strict=True):
        axes.imshow(image.permute(1, 2, 0).squeeze(-1).cpu().numpy(), cmap="gray", vmin=0, vmax=1)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_title(caption, color=color, fontsize=10, loc="center", pad=2)
    row[0].set_ylabel(name, rotation=0, ha="right", va="center", labelpad=8)
