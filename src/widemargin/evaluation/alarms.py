"""Signs that a robustness number should not be believed, each with what it suggests.

Some read the accuracies, some look at the model: its outputs, its gradients, and whether an attack with all the room in
the world succeeds. The model checks are the official ones.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.attacks.names import AUTOATTACK, GradientAttack, attack_named
from widemargin.attacks.pgd import PGD
from widemargin.attacks.strongest import StrongestPGD
from widemargin.errors import InputError
from widemargin.evaluation.settings import EvaluationSettings
from widemargin.losses import cross_entropy, predicted
from widemargin.types import Alarm

FAR = 5.0
"""Points by which one accuracy may be above another before it is a sign."""
BLACK_BOX = 0.2
FLATTERED = 1.0
FEWEST, FEWEST_BLACK_BOX, FEWEST_FLATTERED = 5, 3, 3
"""Images, besides: of a dozen, one alone is eight points, and a sign of nothing."""
HUGE = {"linf": 0.5, "l2": 50.0}
HUGE_STEPS = 20
DEVIATIONS = 2.0
"""Who guesses may be right so many standard deviations more often than by chance: there is nothing to survive then."""
ZERO_SHARE = 0.1


Logits = Callable[[Tensor], Tensor]


class _WarningFlag:
    """A logger that remembers whether it was warned."""

    def __init__(self) -> None:
        self.warned = False

    def warning(self, _message: str) -> None:
        self.warned = True


def alarms_of_model(model: nn.Module, x: Tensor, y: Tensor, settings: EvaluationSettings) -> list[Alarm]:
    """Look at the model itself, on these images; no more of them at a time than a batch of the evaluation has."""
    size = settings.batch_size

    def logits(images: Tensor) -> Tensor:
        return torch.cat([model(part) for part in images.split(size)])

    gradient = torch.cat([_gradient(model, *pair) for pair in zip(x.split(size), y.split(size), strict=True)])
    found = [
        _randomized(logits, x, y),
        _probabilities(logits, x),
        _not_finite(gradient),
        _zero_gradients(gradient),
        _survives_huge_eps(model, x, y, settings),
    ]
    return [alarm for alarm in found if alarm is not None]


def _randomized(logits: Logits, x: Tensor, y: Tensor) -> Alarm | None:
    from pyautoattack.checks import check_randomized

    logger: Any = _WarningFlag()
    check_randomized(logits, x, y, bs=len(x), logger=logger)
    if not logger.warned:
        return None
    return Alarm(
        "randomized-outputs",
        "the same images give different logits from call to call",
        "average over calls inside the model, or evaluate with an attack made for random defenses",
    )


def _probabilities(logits: Logits, x: Tensor) -> Alarm | None:
    from pyautoattack.checks import check_range_output

    logger: Any = _WarningFlag()
    check_range_output(logits, x, logger=logger)
    if not logger.warned:
        return None
    return Alarm(
        "probability-outputs",
        "the outputs look like probabilities, not logits",
        "remove the softmax at the end of the model: it makes gradients vanish and attacks look weak",
    )


def _not_finite(gradient: Tensor) -> Alarm | None:
    share = float((~gradient.flatten(1).isfinite().all(1)).float().mean())
    if not share:
        return None
    return _not_finite_alarm(
        f"{100 * share:.2g}% of the images have an input gradient with a NaN or an infinity",
        "gradient attacks cannot move where the gradient is none",
    )


def alarms_of_undecided(undecided: Mapping[str, list[int]]) -> list[Alarm]:
    """Attacked images for which the model gives no prediction; by the attack that made them."""
    return [
        _not_finite_alarm(
            f"under {name} {len(images)} images have logits with a NaN or +inf, or -inf alone (the first: {images[0]})",
            "where the model gives no prediction it counts as broken",
        )
        for name, images in undecided.items()
    ]


def _not_finite_alarm(message: str, means: str) -> Alarm:
    advice = "find the operator (0/0, log 0, the square root's slope at 0) before you believe a number"
    return Alarm("not-finite", message, f"{means}: {advice}")


def _gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    leaf = x.detach().requires_grad_(True)
    with torch.enable_grad():
        loss = cross_entropy(model(leaf), y).sum()
        return torch.autograd.grad(loss, leaf)[0]


def _zero_gradients(gradient: Tensor) -> Alarm | None:
    share = float((gradient.flatten(1).abs().amax(1) < 1e-12).float().mean())
    if share < ZERO_SHARE:
        return None
    return Alarm(
        "vanishing-gradients",
        f"{100 * share:.0f}% of the images have no input gradient to speak of",
        "attacks on the cross-entropy cannot move there: trust AutoAttack's targeted and black-box parts, and look at "
        "the scale of the logits",
    )


def _survives_huge_eps(model: nn.Module, x: Tensor, y: Tensor, settings: EvaluationSettings) -> Alarm | None:
    eps = HUGE[settings.norm]
    attack = PGD(eps=eps, step_size=eps / 4, steps=HUGE_STEPS, norm=settings.norm)
    right: list[tuple[Tensor, Tensor]] = []
    for images, labels in zip(x.split(settings.batch_size), y.split(settings.batch_size), strict=True):
        attacked = attack(model, images, labels)
        with torch.no_grad():
            right.append((predicted(model(images), labels), predicted(model(attacked), labels)))
    with torch.no_grad():
        chance = 1 / model(x[:1]).shape[1]
    clean, left = (float(torch.cat(members).double().mean()) for members in zip(*right, strict=True))
    guessed = chance + DEVIATIONS * math.sqrt(chance * (1 - chance) / len(y))
    if clean <= guessed or left <= min(chance, clean / 2):
        return None
    return Alarm(
        "survives-huge-eps",
        f"{100 * left:.0f}% are still right under PGD at {settings.norm} eps {eps:g}, where nothing should be",
        "the gradients are masked: no gradient attack tells the robustness of this model",
    )


def alarms_of_numbers(accuracy: Mapping[str, float], settings: EvaluationSettings, count: int) -> list[Alarm]:
    """Look at the accuracies on ``count`` images, by label, at each eps, and at what was asked for."""
    alarms = _steps_too_short(settings)
    for eps, at in _by_eps(accuracy).items():
        alarms += _compare(at, eps, count)
    return alarms


def _by_eps(accuracy: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Eps as labels have it, empty where there is one alone -> accuracy by attack there."""
    split = {label: label.partition("@") for label in accuracy}
    written = dict.fromkeys(eps for _, _, eps in split.values())
    every = [eps for eps in written if eps] or [""]
    return {
        eps: {split[label][0]: accuracy[label] for label in accuracy if split[label][2] in ("", eps)} for eps in every
    }


def _steps_too_short(settings: EvaluationSettings) -> list[Alarm]:
    """PGD whose step, as it was given, cannot take it to the edge of what it is allowed."""
    if settings.max_steps is not None:
        return []
    stepped = [eps for eps in settings.eps if settings.step_at(eps) is not None]
    attacks = [(name, eps, settings.attack(name, eps)) for eps in stepped for name in settings.attacks]
    return [
        Alarm(
            "steps-too-short",
            f"{name} goes {attack.steps} times {attack.step_size:g}, which is less than its eps of {eps:g}",
            "it cannot use all that it is allowed, so its accuracy flatters: use steps of eps/4 (the default)",
        )
        for name, eps, attack in attacks
        if isinstance(attack, PGD | StrongestPGD) and attack.steps * attack.step_size < eps * (1 - 1e-6)
    ]


def _flattered(accuracy: Mapping[str, float]) -> list[tuple[str, str]]:
    """(PGD on the cross-entropy, the lowest of those of other losses and scales with as many steps and starts)."""
    attacks = {name: attack for name in accuracy if isinstance(attack := _pgd_named(name), PGD)}
    pairs = []
    for name, attack in attacks.items():
        if attack.loss == "ce" and attack.logit_scale == 1:
            work = (attack.steps, attack.restarts)
            rest = [
                other for other, found in attacks.items() if (found.steps, found.restarts) == work and found != attack
            ]
            pairs += [(name, min(rest, key=accuracy.__getitem__))] if rest else []
    return pairs


def _pgd_named(name: str) -> GradientAttack | None:
    try:
        return attack_named(name, eps=0.1)
    except InputError:
        return None


def _compare(accuracy: Mapping[str, float], eps: str, count: int) -> list[Alarm]:
    def is_far(gap: float, points: float, fewest: int) -> bool:
        return gap > points and round(gap * count / 100) >= fewest

    where = f" at eps {eps}" if eps else ""
    pgd = [value for name, value in accuracy.items() if name.startswith("pgd")]
    alarms = [
        Alarm(
            "flattering-loss",
            f"{name} leaves {accuracy[name]:.1f}%, {other} {accuracy[other]:.1f}%{where}",
            "the cross-entropy flatters this model (usual where logits are small, as with EMR): report the lower one, "
            "or pgd-strongest",
        )
        for name, other in _flattered(accuracy)
        if is_far(accuracy[name] - accuracy[other], FLATTERED, FEWEST_FLATTERED)
    ]
    if pgd and AUTOATTACK in accuracy and is_far(min(pgd) - accuracy[AUTOATTACK], FAR, FEWEST):
        alarms.append(
            Alarm(
                "pgd-far-above-autoattack",
                f"PGD leaves {min(pgd):.1f}%, AutoAttack {accuracy[AUTOATTACK]:.1f}%{where}",
                "the PGD number flatters this model (usual for re-weighted training, cosine logits); report AutoAttack",
            )
        )
    if pgd and "fgsm" in accuracy and is_far(min(pgd) - accuracy["fgsm"], FAR, FEWEST):
        alarms.append(
            Alarm(
                "fgsm-below-pgd",
                f"one step leaves {accuracy['fgsm']:.1f}%, many leave {min(pgd):.1f}%{where}",
                "iterating should help an attacker: the loss surface is broken (gradient masking) or the step is wrong",
            )
        )
    before, after = accuracy.get(f"{AUTOATTACK}/fab-t"), accuracy.get(f"{AUTOATTACK}/square")
    if before is not None and after is not None and is_far(before - after, BLACK_BOX, FEWEST_BLACK_BOX):
        alarms.append(
            Alarm(
                "black-box-wins",
                f"the black-box attack breaks {before - after:.1f} points that gradient attacks did not{where}",
                "gradients may be masked: run Square with more queries and restarts, or an adaptive attack",
            )
        )
    return alarms
