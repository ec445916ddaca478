"""FGSM and PGD: climb the goal along its input gradient, staying inside the threat set and [0, 1].

x <- clip(x + project(x' + step * ascent(grad goal(x')) - x)), the last iterate; with no more said the goal is the
cross-entropy and there is one climb, as in the paper's evaluation. FGSM is one step of size eps (the paper's "PGD with
one iteration" at its own step size would leave most images untouched; its numbers are those of a full step). From a
random point it is the attack of cheap adversarial training: FGSM-RS, and N-FGSM without the clip to the threat set.

The cross-entropy flatters networks of small logits: where several classes have some probability its gradient is a
mixture, not the way to the nearest class. The margin, or the cross-entropy of s z with s > 1, is what ``loss`` and
``logit_scale`` give in its place; ``strongest.py`` takes the worst of several.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from widemargin.attacks.straight_through import straight_through_gradients
from widemargin.attacks.threat import Threat, make_threat
from widemargin.core import randomness
from widemargin.core.checks import (
    check_count,
    check_images,
    check_logits,
    check_model,
    check_number,
    check_targets,
    choice,
    logits_of,
    pixel_hint,
    refuse_unfit,
    usable,
)
from widemargin.core.modes import evaluating, frozen, in_mode, outside_inference_mode, without_ddp
from widemargin.core.schema import added, outside_tables
from widemargin.errors import InputError
from widemargin.losses import carlini_wagner, cross_entropy, dlr, is_mixed, lead_of_another, predicted, wide
from widemargin.types import Goal, ModelMode, Norm, RandomStart

GAUSSIAN_START = 0.001
"""The TRADES family's start: this much normal noise, not clipped before the first step."""

LossName = Literal["ce", "margin", "dlr", "cw"]
GOALS: dict[LossName, Goal] = {"ce": cross_entropy, "margin": lead_of_another, "dlr": dlr, "cw": carlini_wagner}


@dataclass(frozen=True, kw_only=True, repr=False)
class PGD:
    """Projected gradient descent on the images.

    ``mode="train"`` runs the passes in training mode and lets them update batch-norm statistics, as the released EMR
    code does; ``mode="batch"`` takes the statistics of the batch too and leaves the running ones alone, as the TRADES
    of Wang et al. (2023) does; the default attacks the model as it predicts. ``loss`` is what it makes large
    (``losses.py``), the cross-entropy that of ``logit_scale`` times the logits. Of several ``restarts``, each but the
    first from a random point, it keeps per image the worst: misclassified first, then the higher loss. ``eot`` is the
    number of passes over which a gradient is averaged, for randomized models (expectation over transformation).

    In Python alone: the gradients may be those of another network, the ``surrogate`` (a transfer attack; the model only
    chooses among restarts), and modules named in ``straight_through`` have the identity's gradient.
    """

    eps: float
    step_size: float
    steps: int
    norm: Norm = "linf"
    random_start: RandomStart = False
    mode: ModelMode = "eval"
    loss: LossName = added("ce")
    logit_scale: float = added(1.0)
    restarts: int = added(1)
    eot: int = added(1)
    surrogate: nn.Module | None = outside_tables(None)
    straight_through: tuple[str, ...] = outside_tables(())

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
        choice("PGD", "mode", self.mode, get_args(ModelMode))
        choice("PGD", "loss", self.loss, tuple(GOALS))
        check_count("PGD.restarts", self.restarts)
        check_count("PGD.eot", self.eot)
        check_number(
            "PGD.logit_scale",
            self.logit_scale,
            is_valid=lambda scale: scale > 0,
            rule="a positive number",
            hint="3 and 10 are usual",
        )
        if self.logit_scale != 1 and self.loss != "ce":
            raise InputError(
                f"PGD.logit_scale has no effect on loss={self.loss!r}, whose direction no scale changes; remove it, or "
                'use loss="ce"'
            )
        if self.surrogate is not None and self.mode != "eval":
            raise InputError(
                f"PGD.mode={self.mode!r} has no effect on a surrogate, which is attacked as it predicts; remove it"
            )

    def __repr__(self) -> str:
        """With what is not as usual: two attacks of one repr do the same, but for their surrogates."""
        return _shown(self, usual=6)

    @property
    def draws(self) -> bool:
        """Whether it needs random numbers."""
        return bool(self.random_start) or self.restarts > 1

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
        check_targets("PGD", y, batch=len(x))
        goal = self._goal(goal)
        if self.draws and generator is None:
            generator = randomness.fresh()
        with outside_inference_mode(), self._prepared(without_ddp(model)) as (judge, searched):
            x, y = usable(x), usable(y) if is_mixed(y) else usable(y).long()
            threat = make_threat(self.norm, self.eps)
            point = self._first_point(threat, wide(x), generator) if start is None else _given(start, wide(x))
            found = climb(searched, x, y, threat, point, self.step_size, self.steps, goal, eot=self.eot)
            if self.restarts == 1:
                return found
            worst = Found.judged(judge, found, y, goal, passes=self.eot)
            for _ in range(self.restarts - 1):
                point = self._random_point(threat, wide(x), generator)
                found = climb(searched, x, y, threat, point, self.step_size, self.steps, goal, eot=self.eot)
                worst = worst.or_worse(Found.judged(judge, found, y, goal, passes=self.eot))
        return worst.images

    def _goal(self, given: Goal | None) -> Goal:
        if given is None:
            return GOALS[self.loss] if self.logit_scale == 1 else self._scaled_cross_entropy
        if self.loss != "ce" or self.logit_scale != 1:
            raise InputError(f"{self!r}: its loss has no effect where a goal is given; leave loss and logit_scale out")
        return given

    def _scaled_cross_entropy(self, logits: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.logit_scale * wide(logits), y)

    @contextmanager
    def _prepared(self, model: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
        """(the model, the one whose gradients are taken), both in the mode they run in."""
        with ExitStack() as stack:
            stack.enter_context(in_mode(model, self.mode))
            stack.enter_context(frozen(model))
            searched = model
            if self.surrogate is not None:
                searched = without_ddp(self.surrogate)
                stack.enter_context(evaluating(searched))
                stack.enter_context(frozen(searched))
            if self.straight_through:
                stack.enter_context(straight_through_gradients(searched, self.straight_through))
            yield model, searched

    def _first_point(self, threat: Threat, x: Tensor, generator: torch.Generator | None) -> Tensor:
        return self._random_point(threat, x, generator) if self.random_start else x.detach()

    def _random_point(self, threat: Threat, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """As ``random_start`` says; uniform where it says none."""
        generator = randomness.fresh() if generator is None else generator
        if self.random_start == "gaussian":
            noise = randomness.normal(x.shape, generator=generator, dtype=x.dtype)
            return x.detach() + GAUSSIAN_START * noise.to(x.device)
        return (x.detach() + threat.random(x, generator)).clamp_(0, 1)


@dataclass(frozen=True)
class Found:
    """Images that an attack ended with, and what the model says of them."""

    images: Tensor
    fooled: Tensor
    """(B,): the share of passes in which the image is misclassified, 0 or 1 for one pass."""
    value: Tensor
    """(B,): the mean of what was made large."""

    @classmethod
    def judged(cls, model: nn.Module, images: Tensor, y: Tensor, goal: Goal, *, passes: int = 1) -> "Found":
        """What the model, in the mode it should run in, says of the images."""
        with torch.no_grad():
            logits = [logits_of(model(images)) for _ in range(passes)]
            fooled = torch.stack([~predicted(one, y) for one in logits]).float().mean(0)
            return cls(images, fooled, torch.stack([goal(one, y) for one in logits]).mean(0))

    def or_worse(self, other: "Found") -> "Found":
        """Per image the other one where it fools the model more often, or as often and with a higher value."""
        worse = (other.fooled > self.fooled) | ((other.fooled == self.fooled) & (other.value > self.value))
        images = torch.where(worse.view(-1, *[1] * (self.images.dim() - 1)), other.images, self.images)
        fooled, value = torch.where(worse, other.fooled, self.fooled), torch.where(worse, other.value, self.value)
        return Found(images, fooled, value)


@dataclass(frozen=True, kw_only=True, repr=False)
class FGSM:
    """The fast gradient sign method: one step, of the whole radius unless ``step_size`` says otherwise.

    ``noise`` is the radius of a ball from which the first point is drawn, before it is cut to [0, 1]. Without ``clip``
    the end is not put back into the threat set, only into [0, 1]: for training, not for a verdict.

        FGSM-RS (Wong et al., 2020)        noise = eps,    step_size = 1.25 eps
        N-FGSM (de Jorge et al., 2022)     noise = 2 eps,  step_size = eps,  clip = False
    """

    eps: float
    norm: Norm = "linf"
    mode: ModelMode = "eval"
    step_size: float | None = added(None)
    noise: float = added(0.0)
    clip: bool = added(True)

    def __post_init__(self) -> None:
        check_number("FGSM.noise", self.noise, is_valid=lambda n: n >= 0, rule="a number >= 0", hint="0 is no noise")
        if not self.clip and self._reach <= self.eps:
            raise InputError(
                f"FGSM.clip = False has no effect: noise + step_size is {self._reach:g}, not beyond eps = {self.eps}; "
                "remove it, or set noise (N-FGSM: 2 eps)"
            )
        self._as_pgd()

    def __repr__(self) -> str:
        """With what is not as usual."""
        return _shown(self, usual=3)

    @property
    def draws(self) -> bool:
        """Whether it needs random numbers."""
        return self.noise > 0

    @property
    def _reach(self) -> float:
        return float(self.noise) + float(self.eps if self.step_size is None else self.step_size)

    def _as_pgd(self) -> PGD:
        """The step from the first point; without the clip the ball is one that holds whatever the step can reach."""
        step, eps = self.eps if self.step_size is None else self.step_size, self.eps if self.clip else self._reach
        return PGD(eps=eps, step_size=step, steps=1, norm=self.norm, mode=self.mode)

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
        if start is None and self.noise:
            check_images("FGSM", x)
            with outside_inference_mode():
                images = wide(usable(x).detach())
                generator = randomness.fresh() if generator is None else generator
                start = (images + make_threat(self.norm, self.noise).random(images, generator)).clamp_(0, 1)
        return self._as_pgd()(model, x, y, goal=goal, start=start, generator=generator)


def fgsm_rs(eps: float, *, norm: Norm = "linf", mode: ModelMode = "eval") -> FGSM:
    """FGSM from a random start, with the step of 1.25 eps that Wong et al. publish."""
    return FGSM(eps=eps, norm=norm, mode=mode, noise=eps, step_size=1.25 * eps)


def n_fgsm(eps: float, *, norm: Norm = "linf", mode: ModelMode = "eval") -> FGSM:
    """N-FGSM with the noise of twice eps that de Jorge et al. publish; its images are up to 3 eps away."""
    return FGSM(eps=eps, norm=norm, mode=mode, noise=2 * eps, clip=False)


def _shown(attack: PGD | FGSM, *, usual: int) -> str:
    """The first fields, and of the others those that are not as by default."""
    parts: list[str] = []
    for number, field in enumerate(fields(attack)):
        value: Any = getattr(attack, field.name)
        if number < usual or value != field.default:
            parts.append(f"{field.name}={type(value).__name__ if isinstance(value, nn.Module) else repr(value)}")
    return f"{type(attack).__name__}({', '.join(parts)})"


def climb(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat: Threat,
    point: Tensor,
    step_size: float,
    steps: int,
    goal: Goal,
    *,
    eot: int = 1,
) -> Tensor:
    """The loop itself; the model is already in the mode it should run in. Gradients are means over ``eot`` passes.

    Points are float32 where the images are of half precision: rounding would carry them out of the threat set.
    """
    given, x = x.detach(), wide(x.detach())
    for _ in range(steps):
        gradient = wide(goal_gradient(model, point.to(given.dtype), y, goal))
        for _ in range(eot - 1):
            gradient = gradient + wide(goal_gradient(model, point.to(given.dtype), y, goal))
        gradient = gradient / eot if eot > 1 else gradient
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
            output = model(leaf)
        except RuntimeError as error:
            refuse_unfit("attack", model, leaf, error)
            raise
        logits = check_logits("attack", output, batch=len(leaf))
        check_targets("attack", y, batch=len(leaf), num_classes=logits.shape[1])
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
