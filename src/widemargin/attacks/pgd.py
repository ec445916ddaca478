"""FGSM and PGD: climb the goal along its input gradient, staying inside the threat set and [0, 1].

x <- clip(x + project(x' + step * ascent(grad goal(x')) - x)), the last iterate, no restarts, as in the paper's
evaluation. FGSM is one step of size eps (the paper's "PGD with one iteration" at its own step size would leave most
images untouched; its numbers are those of a full step). ``attack_named`` reads the names of tables: "fgsm", "pgd10".
"""

import math
import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from widemargin.attacks.threat import Threat, make_threat
from widemargin.core import randomness
from widemargin.core.checks import (
    check_count,
    check_images,
    check_labels,
    check_logits,
    check_model,
    check_number,
    choice,
    pixel_hint,
    refuse_unfit,
    usable,
)
from widemargin.core.modes import frozen, in_mode, outside_inference_mode, without_ddp
from widemargin.errors import InputError
from widemargin.losses import cross_entropy, wide
from widemargin.types import Goal, ModelMode, Norm, RandomStart

GAUSSIAN_START = 0.001
"""The TRADES family's start: this much normal noise, not clipped before the first step."""


@dataclass(frozen=True, kw_only=True)
class PGD:
    """Projected gradient descent on the images.

    ``mode="train"`` runs the passes in training mode and lets them update batch-norm statistics, as the released EMR
    code does; the default leaves the model as it was.
    """

    eps: float
    step_size: float
    steps: int
    norm: Norm = "linf"
    random_start: RandomStart = False
    mode: ModelMode = "eval"

    def __post_init__(self) -> None:
        make_threat(self.norm, self.eps)
        largest = 1.0 if self.norm == "linf" else math.inf
        check_number(
            "PGD.step_size",
            self.step_size,
            is_valid=lambda step: 0 < step <= largest,
            rule="in (0, 1]" if self.norm == "linf" else "a positive number",
            hint=pixel_hint(self.step_size),
        )
        check_count("PGD.steps", self.steps)
        choice("PGD", "random_start", self.random_start, (False, "uniform", "gaussian"))
        choice("PGD", "mode", self.mode, ("eval", "train"))

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        goal: Goal | None = None,
        start: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Attack the images x with labels y; ``start`` is the first point, used as it is."""
        check_model("PGD", model)
        check_images("PGD", x)
        check_labels("PGD", y, batch=len(x))
        model = without_ddp(model)
        with outside_inference_mode(), in_mode(model, self.mode), frozen(model):
            x, y = usable(x), usable(y).long()
            threat = make_threat(self.norm, self.eps)
            point = self._first_point(threat, wide(x), generator) if start is None else _given(start, wide(x))
            return climb(model, x, y, threat, point, self.step_size, self.steps, goal or cross_entropy)

    def _first_point(self, threat: Threat, x: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.random_start is False:
            return x.detach()
        generator = randomness.fresh() if generator is None else generator
        if self.random_start == "uniform":
            return (x.detach() + threat.random(x, generator)).clamp_(0, 1)
        noise = randomness.normal(x.shape, generator=generator, dtype=x.dtype)
        return x.detach() + GAUSSIAN_START * noise.to(x.device)


@dataclass(frozen=True, kw_only=True)
class FGSM:
    """The fast gradient sign method: one step of the whole radius."""

    eps: float
    norm: Norm = "linf"
    mode: ModelMode = "eval"

    def __post_init__(self) -> None:
        self._as_pgd()

    def _as_pgd(self) -> PGD:
        return PGD(eps=self.eps, step_size=self.eps, steps=1, norm=self.norm, mode=self.mode)

    def __call__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        goal: Goal | None = None,
        start: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Attack the images x with labels y."""
        return self._as_pgd()(model, x, y, goal=goal, start=start, generator=generator)


_PGD_NAME = re.compile(r"pgd-?([0-9]+)")


def attack_named(name: str, *, eps: float, step_size: float | None = None, norm: Norm = "linf") -> FGSM | PGD:
    """The attack "fgsm", "pgd10", "pgd-100", ..., without a random start; the step size is eps/4 unless given."""
    if name == "fgsm":
        return FGSM(eps=eps, norm=norm)
    match = _PGD_NAME.fullmatch(name)
    if match is None or int(match[1]) == 0:
        raise InputError(
            f"unknown attack {name!r}; known are clean, fgsm, pgdN (pgd10, pgd20, pgd100, ...) and autoattack"
        )
    return PGD(eps=eps, step_size=eps / 4 if step_size is None else step_size, steps=int(match[1]), norm=norm)


def climb(
    model: nn.Module, x: Tensor, y: Tensor, threat: Threat, point: Tensor, step_size: float, steps: int, goal: Goal
) -> Tensor:
    """The loop itself; the model is already in the mode it should run in.

    Points are float32 where the images are of half precision: rounding would carry them out of the threat set.
    """
    given, x = x.detach(), wide(x.detach())
    for _ in range(steps):
        gradient = wide(goal_gradient(model, point.to(given.dtype), y, goal))
        moved = torch.add(point, threat.ascent(gradient), alpha=step_size)
        point = (x + threat.project(moved - x)).clamp_(0, 1)
    return point if point.dtype == given.dtype else _rounded_inwards(point, given)


def _rounded_inwards(point: Tensor, x: Tensor) -> Tensor:
    """Points of [0, 1] in half precision, rounded towards x where the nearest number would be further from it."""
    rounded = point.to(x.dtype)
    beyond = torch.where(wide(x) < point, wide(rounded) > point, wide(rounded) < point)
    back = torch.where(x < rounded, -1, 1).to(torch.int16)
    return torch.where(beyond, rounded.view(torch.int16) + back, rounded.view(torch.int16)).view(x.dtype)


def goal_gradient(model: nn.Module, point: Tensor, y: Tensor, goal: Goal) -> Tensor:
    """The gradient of the goal by the images at the point; the model is already in the mode it should run in."""
    leaf = point.detach().requires_grad_(True)
    with torch.enable_grad():
        try:
            logits = model(leaf)
        except RuntimeError as error:
            refuse_unfit("attack", model, leaf, error)
            raise
        check_logits("attack", logits, batch=len(leaf))
        check_labels("attack", y, batch=len(leaf), num_classes=logits.shape[1])
        values = goal(logits, y)
    if not values.requires_grad:
        raise InputError(
            "attack: the goal carries no gradient to the images; the model's forward detaches its logits, "
            "or runs under torch.no_grad() or torch.inference_mode()"
        )
    with torch.autocast(leaf.device.type, enabled=False):
        return torch.autograd.grad(values, leaf, torch.ones_like(values))[0]


def _given(start: Tensor, x: Tensor) -> Tensor:
    if start.shape != x.shape:
        raise InputError(f"attack: start must have the shape of the images {tuple(x.shape)}, got {tuple(start.shape)}")
    return usable(start).detach().to(dtype=x.dtype, device=x.device)
