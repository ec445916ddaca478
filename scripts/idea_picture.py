"""Draw the picture of ``docs/idea.md``: ``python scripts/idea_picture.py docs/idea.png``, half a minute on a CPU.

Two classes of points in a plane stand for images of two pixels, so that boundaries and margins can be looked at. One
small network is trained plainly, one with exact EMR, both for the same steps from the same weights. Points on the left:
the lead of the right class on the way to the boundary, and the straight line that the effective margin takes it for.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor, nn

import widemargin
from widemargin.report.pictures import COLORS, save_picture, styled

POINTS, STEPS, WEIGHT = 120, 1500, 0.0003


def two_moons() -> tuple[Tensor, Tensor]:
    """Points in the unit square, and their classes."""
    generator = torch.Generator().manual_seed(0)
    turn = torch.rand(POINTS, generator=generator) * np.pi
    upper = torch.stack([turn.cos(), turn.sin()], 1)
    lower = torch.stack([1 - turn.cos(), 0.35 - turn.sin()], 1)
    labels = torch.arange(POINTS) % 2
    points = torch.where(labels[:, None] == 0, upper, lower)
    points = points + 0.07 * torch.randn(points.shape, generator=generator)
    return (points - torch.tensor([-1.35, -0.95])) / 3.7 * torch.tensor([1.0, 1.3]), labels


def trained(x: Tensor, y: Tensor, *, weight: float) -> nn.Module:
    """A network of two hidden layers; with a weight, its penalty is exact EMR."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    emr = widemargin.ExactEMR()
    for _ in range(STEPS):
        loss = F.cross_entropy(model(x), y)
        if weight:
            loss = loss + weight * emr(model, x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def draw_plane(axes: Axes, model: nn.Module, x: Tensor, y: Tensor, title: str) -> None:
    """The two regions, the points, and the effective margins of some of them as circles."""
    side = torch.linspace(0, 1, 300)
    grid = torch.cartesian_prod(side, side)
    with torch.no_grad():
        lead = (model(grid)[:, 1] - model(grid)[:, 0]).reshape(300, 300).T
    axes.contourf(side, side, lead, levels=[-1e9, 0, 1e9], colors=["#f2dfe1", "#dde9f4"])
    axes.contour(side, side, lead, levels=[0], colors=["#333333"], linewidths=1.4)
    margins = widemargin.effective_margin(model, x, y)
    for kind, color in ((0, COLORS[2]), (1, COLORS[1])):
        axes.scatter(x[y == kind, 0], x[y == kind, 1], s=9, color=color, zorder=3)
    for point, label, margin in list(zip(x.tolist(), y.tolist(), margins.tolist(), strict=True))[::13]:
        axes.add_patch(Circle(point, margin, fill=False, ec=COLORS[2] if label == 0 else COLORS[1], lw=1))
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[], yticks=[])
    axes.set_title(f"{title}: median margin {float(margins.median()):.3f}")


def draw_lead(axes: Axes, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """The lead of one point's class on the way to the boundary, and its tangent at the point."""
    margins = widemargin.effective_margin(model, x, y)
    chosen = int(margins.argsort()[len(margins) // 2])
    point, label = x[chosen : chosen + 1].clone().requires_grad_(), int(y[chosen])
    lead = model(point)[0, label] - model(point)[0, 1 - label]
    (slope,) = torch.autograd.grad(lead, point)
    way = -slope / slope.norm()
    margin, start, steepness = float(margins[chosen]), float(lead.detach()), float(slope.norm())
    steps = torch.linspace(0, 1.3 * margin, 200)
    with torch.no_grad():
        logits = model(point + steps[:, None] * way)
    axes.axhline(0, color="#333333", lw=0.8)
    axes.plot(steps, logits[:, label] - logits[:, 1 - label], color=COLORS[1], lw=2, label="lead of the right class")
    axes.plot(steps, start - steps * steepness, "--", color=COLORS[0], label="its tangent")
    axes.plot([margin], [0], "o", color=COLORS[2])
    axes.annotate("effective margin = lead / slope", (margin, 0), (0.02 * margin, -0.2 * start), color=COLORS[2])
    axes.set(xlabel="distance from the point, against the gradient", ylabel=r"lead $z_y - z_j$")
    axes.legend(loc="upper right", fontsize=8)
    axes.set_title("One point on its way to the boundary")


def main(path: Path) -> None:
    """Train both networks and write the picture."""
    torch.set_num_threads(1)
    x, y = two_moons()
    plain, wide = trained(x, y, weight=0.0), trained(x, y, weight=WEIGHT)
    with styled():
        figure = Figure(figsize=(12, 3.9))
        left, middle, right = figure.subplots(1, 3, width_ratios=[1.15, 1, 1])
        draw_lead(left, plain, x, y)
        draw_plane(middle, plain, x, y, "Trained plainly")
        draw_plane(right, wide, x, y, "With EMR")
        figure.tight_layout()
    save_picture(figure, path)
    for name, model in (("plain", plain), ("EMR", wide)):
        margins = widemargin.effective_margin(model, x, y)
        print(name, f"median margin {float(margins.median()):.4f}, smallest {float(margins.min()):.4f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
