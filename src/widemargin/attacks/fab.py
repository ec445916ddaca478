"""FAB-T, the third part of AutoAttack: looks for the nearest image of a target class, along the linearized boundary.

At the point x_i, with the plane w . z = b on which the first-order difference of the target's and the label's logit is
zero, d(p) is the shortest step from p onto that plane inside [0, 1] (``project_linf``), and

    x_{i+1} = (1 - a) (x_i + 1.05 d(x_i)) + a (x + 1.05 d(x)),    a = min(|d(x_i)| / (|d(x_i)| + |d(x)|), 0.1)

Where that is adversarial it is noted, and the next step begins nearer to x, at x + 0.9 (x_{i+1} - x) (Croce and Hein,
2020). It draws no random numbers, so rows of different targets can go together.

The arithmetic is the official code's to the bit. What is different is the work: an image leaves as soon as something
adversarial inside eps was found (later steps only come nearer), and pixels are sorted by a faster routine on CPUs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from widemargin.types import Norm

Logits = Callable[[Tensor], Tensor]
Projection = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(points (R, D), normals (R, D), offsets (R,)) -> the steps (R, D) onto the planes."""


@dataclass(frozen=True, kw_only=True)
class FAB:
    """Targeted FAB, without a random start, for images that the model classifies correctly."""

    eps: float
    norm: Norm = "linf"
    steps: int = 100
    overshoot: float = 1.05
    towards_image: float = 0.1
    backward: float = 0.9

    def __call__(
        self,
        model: Logits,
        x: Tensor,
        y: Tensor,
        targets: Tensor,
        *,
        image: Tensor | None = None,
        project: Projection,
        at_once: int = 250,
    ) -> tuple[Tensor, Tensor]:
        """(B,) bool, where something adversarial was found inside eps, and what; the images of x elsewhere.

        ``image``, (B,): rows of one number are of one image, and leave together.
        """
        found, images = torch.zeros_like(y, dtype=torch.bool), x.clone()
        rows = torch.arange(len(x), device=x.device)
        image = rows if image is None else image
        point = x.clone()
        for _ in range(self.steps):
            for part in rows.split(at_once) if len(rows) else ():
                origin, labels = x[part], y[part]
                at = self._step(model, point[part], origin, labels, targets[part], project)
                with torch.no_grad():
                    fooled = model(at).argmax(1) != labels
                    inside = fooled & ~(self._size(at - origin) > self.eps)
                    images[part[inside]], found[part[inside]] = at[inside], True
                    at[fooled] = origin[fooled] + (at[fooled] - origin[fooled]) * self.backward
                    point[part] = at
            if bool(found[rows].any()):
                rows = rows[~torch.isin(image[rows], image[found])]
            if not len(rows):
                break
        return found, images

    def _step(self, model: Logits, point: Tensor, x: Tensor, y: Tensor, targets: Tensor, project: Projection) -> Tensor:
        with torch.enable_grad():
            leaf = point.detach().clone().requires_grad_(True)
            logits = model(leaf)
            rows = torch.arange(len(y), device=y.device)
            lead = -(logits[rows, y] - logits[rows, targets])
            (gradient,) = torch.autograd.grad(lead.sum(), leaf)
        with torch.no_grad():
            normal = gradient.flatten(1)
            offset = -lead.detach() + (gradient * point).flatten(1).sum(-1)
            both = torch.cat([point.flatten(1), x.flatten(1)])
            steps = project(both, torch.cat([normal, normal]), torch.cat([offset, offset]))
            lengths = self._size(steps).clamp_min(1e-8)
            here, there = steps.view(2, *x.shape)
            share = _wide(lengths[: len(x)] / (lengths[: len(x)] + lengths[len(x) :]), x)
            share = share.clamp_min(0.0).clamp_max(self.towards_image)
            mixed = (point + self.overshoot * here) * (1 - share) + (x + there * self.overshoot) * share
            moved: Tensor = mixed.clamp(0.0, 1.0)
            return moved

    def _size(self, delta: Tensor) -> Tensor:
        flat = delta.flatten(1)
        return flat.abs().amax(1) if self.norm == "linf" else (flat**2).sum(-1).sqrt()


def _wide(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.dim() - 1))


def project_linf(points: Tensor, normals: Tensor, offsets: Tensor) -> Tensor:
    """The shortest steps in Linf from the points onto the planes normals . z = offsets, inside [0, 1].

    Each pixel goes as far as all others, or to the end of its room where that is less. The room sorted, one bisection
    tells which pixels have enough. Where the plane does not meet the box, the step to its nearest corner.
    """
    at = (normals * points).sum(1)
    sign = 2 * (at - offsets >= 0) - 1
    normals, offsets = normals * sign.unsqueeze(1), offsets * sign
    missing = offsets - (normals * points).sum(1)
    corner = (normals < 0).float() - points
    weights, room = normals.abs(), corner.abs()
    at_corner = -(weights * room).sum(1)
    order = _descending(room)
    weights_sorted, room_sorted = weights.gather(1, order), room.gather(1, order)
    slopes = weights_sorted.cumsum(1)
    values = (weights_sorted * room_sorted).cumsum(1) + at_corner.unsqueeze(1)
    all_move = missing - (values[:, -1] - slopes[:, -1] * room_sorted[:, -1]) > 0
    some = (missing - at_corner > 0) & ~all_move
    low, high = torch.zeros_like(missing, dtype=torch.long), torch.full_like(missing, points.shape[1] - 1).long()
    for _ in range((points.shape[1] - 1).bit_length()):
        middle = ((low + high) // 2).unsqueeze(1)
        value = values.gather(1, middle) - slopes.gather(1, middle) * room_sorted.gather(1, middle)
        more = missing - value.squeeze(1) > 0
        low, high = torch.where(more, middle.squeeze(1), low), torch.where(more, high, middle.squeeze(1))
    end = torch.where(all_move, points.shape[1] - 1, low).unsqueeze(1)
    size = ((missing.unsqueeze(1) - values.gather(1, end)) / -slopes.gather(1, end)).clamp_min(0)
    limit = torch.where((some | all_move).unsqueeze(1), size, torch.inf)
    steps = torch.clamp(corner, -limit, limit)
    if bool(all_move.any()):
        steps[all_move] = torch.copysign(size[all_move].expand_as(corner[all_move]), -normals[all_move])
    return steps * (normals != 0) if bool(weights.amin() == 0) else steps


def _descending(values: Tensor) -> Tensor:
    """(R, D): the order of each row's values, none below zero, from the largest on; equals from the last on."""
    if values.is_cuda or values.dtype != torch.float32:
        return torch.argsort(values, dim=1, stable=True).flip(1)
    places = torch.arange(values.shape[1])
    keyed = (values.contiguous().view(torch.int32).long() << 32) | places  # bits of such floats sort like them
    keyed.numpy().sort(axis=1)
    return (keyed & 0xFFFFFFFF).flip(1)
