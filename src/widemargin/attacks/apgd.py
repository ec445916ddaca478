"""APGD, the first two parts of AutoAttack: PGD that halves an image's step where it does not get on.

    z = P(x_i + step u(grad))     x_{i+1} = P(x_i + 3/4 (z - x_i) + 1/4 (x_i - x_{i-1}))

P is the projection onto the threat set and [0, 1], u the sign, in L2 the unit vector. At some steps it is seen, image
by image, whether the loss rose often enough and whether its best has improved; where not, the step is halved and the
image goes back to its best point (Croce and Hein, 2020, section 3).

The arithmetic is the official code's to the bit, whose step checks count one rise too many at the first check. What is
different is the work: an image leaves with the first point at which the model is wrong, and images go through the model
in groups.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from widemargin.types import Norm

Logits = Callable[[Tensor], Tensor]
TINY = 1e-12


def dlr_targeted(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """-(z_y - z_t) / (z_(1) - (z_(3) + z_(4)) / 2): the targeted difference of logits ratio."""
    ordered = logits.sort(dim=1)[0]
    rows = torch.arange(len(y), device=y.device)
    return -(logits[rows, y] - logits[rows, target]) / (ordered[:, -1] - 0.5 * (ordered[:, -3] + ordered[:, -4]) + TINY)


@dataclass
class _Images:
    """The images that are attacked together, and where each is."""

    row: Tensor
    x: Tensor
    y: Tensor
    target: Tensor
    order: Tensor
    point: Tensor
    before: Tensor
    """The point of one step ago."""
    gradient: Tensor
    best: Tensor
    best_gradient: Tensor
    best_loss: Tensor
    best_at_check: Tensor
    halved: Tensor
    """Whether its step was halved at the last check."""
    step: Tensor
    loss: Tensor
    """That of the last step; zero before the first, as in the official code."""
    rises: Tensor

    def where(self, rows: Tensor) -> "_Images":
        return _Images(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True, kw_only=True)
class APGD:
    """APGD on the cross-entropy, or with targets on the targeted DLR, from given starts."""

    eps: float
    norm: Norm = "linf"
    steps: int = 100
    first_check: int = 22
    check_sooner: int = 3
    """By so many steps each check follows sooner than the one before, down to ``fewest_between``."""
    fewest_between: int = 6
    share_of_rises: float = 0.75

    def start(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Where the official attack starts, from its random numbers for these images, uniform or (in L2) normal."""
        direction = 2 * drawn - 1 if self.norm == "linf" else drawn
        return (x + self.eps * torch.ones_like(x) * self._unit(direction)).clamp(0.0, 1.0)

    def __call__(
        self,
        model: Logits,
        x: Tensor,
        y: Tensor,
        start: Tensor,
        *,
        targets: Tensor | None = None,
        order: Tensor | None = None,
        at_once: int = 250,
    ) -> tuple[Tensor, Tensor]:
        """(B,) bool, where the model is fooled, and the images that do, those of x elsewhere.

        ``order``, (B,): with a find of one order nothing needs to be found out about rows of a higher one any more.
        """
        found, images = torch.zeros_like(y, dtype=torch.bool), x.clone()
        order = torch.zeros_like(y) if order is None else order
        rows = torch.arange(len(x), device=x.device)
        groups: list[_Images] = []
        for part in rows.split(at_once) if len(x) else ():
            target = y[part] if targets is None else targets[part]
            group, fooled = self._begin(
                *(model, part, x[part], y[part], target, order[part], start[part], targets is not None)
            )
            found[part[fooled]], images[part[fooled]] = True, start[part[fooled]]
            groups.append(group.where(~fooled))
        groups = _regrouped(groups, found, order, at_once)
        between, since = self.first_check, 0
        for number in range(self.steps):
            since += 1
            remaining: list[_Images] = []
            leaving = False
            for group in groups:
                fooled = self._advance(model, group, first=number == 0, targeted=targets is not None)
                if bool(fooled.any()):
                    at = group.row[fooled]
                    found[at], images[at] = True, group.point[fooled]
                    group, leaving = group.where(~fooled), True
                if since == between:
                    self._check(group, since)
                remaining.append(group)
            groups = _regrouped(remaining, found, order, at_once) if leaving else remaining
            if not groups:
                break
            if since == between:
                between, since = max(between - self.check_sooner, self.fewest_between), 0
        return found, images

    def _begin(
        self,
        model: Logits,
        rows: Tensor,
        x: Tensor,
        y: Tensor,
        target: Tensor,
        order: Tensor,
        start: Tensor,
        targeted: bool,
    ) -> tuple[_Images, Tensor]:
        """The state at the start, and where the model is fooled there already."""
        loss, gradient, fooled = _measured(model, start, y, target if targeted else None)
        step = torch.full((len(x), *[1] * (x.dim() - 1)), 2.0 * self.eps, device=x.device)
        zero = torch.zeros_like(loss)
        state = _Images(
            *(rows, x, y, target, order, start, start, gradient, start.clone(), gradient.clone()),
            *(loss, loss.clone(), torch.ones_like(loss), step, zero, zero),
        )
        return state, fooled

    def _advance(self, model: Logits, at: _Images, *, first: bool, targeted: bool) -> Tensor:
        """One step of every image; (B,) where the model is fooled by the new points."""
        with torch.no_grad():
            weight = 1.0 if first else 0.75
            point = self._project(at.x, at.point + at.step * self._unit_of_gradient(at.gradient))
            moved = at.point + (point - at.point) * weight + (at.point - at.before) * (1 - weight)
            at.before, at.point = at.point, self._project(at.x, moved)
        loss, gradient, fooled = _measured(model, at.point, at.y, at.target if targeted else None)
        with torch.no_grad():
            at.gradient = gradient
            better = (loss > at.best_loss).nonzero()[:, 0]
            for best, now in ((at.best, at.point), (at.best_gradient, gradient), (at.best_loss, loss)):
                best[better] = now[better]
            at.rises, at.loss = at.rises + (loss > at.loss).float(), loss
        return fooled

    def _check(self, at: _Images, steps: int) -> None:
        """Halve the steps of the images that do not get on, which go back to their best point."""
        stuck = at.rises <= steps * self.share_of_rises
        stuck |= (at.halved == 0) & (at.best_at_check >= at.best_loss)
        at.halved, at.best_at_check, at.rises = stuck.float(), at.best_loss.clone(), torch.zeros_like(at.rises)
        rows = stuck.nonzero()[:, 0]
        at.step[rows] /= 2
        at.point[rows], at.gradient[rows] = at.best[rows], at.best_gradient[rows]

    def _project(self, x: Tensor, point: Tensor) -> Tensor:
        if self.norm == "linf":
            return torch.clamp(torch.min(torch.max(point, x - self.eps), x + self.eps), 0.0, 1.0)
        delta = point - x
        length = torch.min(self.eps * torch.ones_like(x), _length(delta))
        return torch.clamp(x + self._unit(delta) * length, 0.0, 1.0)

    def _unit_of_gradient(self, gradient: Tensor) -> Tensor:
        return torch.sign(gradient) if self.norm == "linf" else self._unit(gradient)

    def _unit(self, delta: Tensor) -> Tensor:
        """Divided by its norm."""
        if self.norm == "l2":
            return delta / (_length(delta) + TINY)
        size = delta.abs().flatten(1).amax(1).view(-1, *[1] * (delta.dim() - 1))
        return delta / (size + TINY)


def _length(delta: Tensor) -> Tensor:
    """(B, 1, ...): the Euclidean norm."""
    return (delta**2).flatten(1).sum(-1).sqrt().view(-1, *[1] * (delta.dim() - 1))


def _measured(model: Logits, point: Tensor, y: Tensor, target: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, its gradient (zero where nobody will ask for it) and where the model is wrong."""
    with torch.enable_grad():
        leaf = point.detach().clone().requires_grad_(True)
        logits = model(leaf)
        loss = F.cross_entropy(logits, y, reduction="none") if target is None else dlr_targeted(logits, y, target)
        fooled = logits.detach().argmax(1) != y
        if bool(fooled.all()):
            return loss.detach(), torch.zeros_like(point), fooled
        (gradient,) = torch.autograd.grad(loss.sum(), leaf)
    return loss.detach(), gradient, fooled


def _regrouped(groups: list[_Images], found: Tensor, order: Tensor, at_once: int) -> list[_Images]:
    """The images that are still of use, in as few groups as there can be."""
    groups = [group for group in groups if len(group.row)]
    if not groups:
        return []
    together = _Images(*(torch.cat([getattr(group, field.name) for group in groups]) for field in fields(_Images)))
    if bool(found.any()):
        together = together.where(together.order <= order[found].min())
    rows = torch.arange(len(together.row), device=found.device)
    return [together.where(part) for part in rows.split(at_once)] if len(rows) else []
