"""What a finished job may be judged with later, by name, and what each name means for a recipe.

``autoattack`` is at the recipe's own eps, on all test images; the others take the first 1,000. ``distance`` is in L2,
in which the paper measures margins. ``eps`` is PGD-100 at several eps around the recipe's, with steps of eps/4, as the
recipes have it on CIFAR-10. ``autoattack-8-255`` is at the eps of RobustBench, which 0.031 is not.
"""

from collections.abc import Callable
from dataclasses import dataclass

from widemargin.config import EvaluationConfig, RunConfig
from widemargin.errors import InputError
from widemargin.types import Norm

FIRST = 1000
"""So many test images are judged where it takes long."""
RADII: dict[float, tuple[str, ...]] = {
    0.031: ("2/255", "4/255", "6/255", "8/255", "10/255", "12/255", "16/255"),
    0.1: ("0.02", "0.05", "0.1", "0.15", "0.2", "0.3"),
}
"""The recipe's eps (Linf) -> those at which its network is attacked."""


@dataclass(frozen=True, kw_only=True)
class Judgment:
    """An evaluation; ``step_size=None`` means eps/4 for each eps, ``limit=None`` all test images."""

    attacks: tuple[str, ...]
    eps: float | str | tuple[str, ...]
    norm: Norm = "linf"
    step_size: float | None = None
    limit: int | None = None
    distance: bool = False


def judgment_of(config: RunConfig, name: str) -> Judgment:
    """The judgment of that name for a recipe; refused where it means nothing."""
    plan = config.evaluation
    if plan is None:
        raise InputError(f"--judge-with {name}: {config.name} has no evaluation plan, so no eps")
    return _MAKERS[name](config, plan)


def _autoattack(_config: RunConfig, plan: EvaluationConfig) -> Judgment:
    return Judgment(attacks=("clean", "autoattack"), eps=plan.eps, norm=plan.norm)


def _distance(_config: RunConfig, _plan: EvaluationConfig) -> Judgment:
    return Judgment(attacks=("clean",), eps=1.0, norm="l2", limit=FIRST, distance=True)


def _over_eps(config: RunConfig, plan: EvaluationConfig) -> Judgment:
    if plan.norm != "linf" or plan.eps not in RADII:
        known = " or ".join(f"{eps:g}" for eps in RADII)
        raise InputError(f"--judge-with eps is for rows judged at linf {known}, {_described(config, plan)}")
    return Judgment(attacks=("clean", "pgd100"), eps=RADII[plan.eps], limit=FIRST)


def _autoattack_8_255(config: RunConfig, plan: EvaluationConfig) -> Judgment:
    if (config.data.name, plan.norm, plan.eps) != ("cifar10", "linf", 0.031):
        raise InputError(
            f"--judge-with autoattack-8-255 is for rows on cifar10 at linf 0.031, {_described(config, plan)}"
        )
    return Judgment(attacks=("clean", "autoattack"), eps="8/255", limit=FIRST)


def _described(config: RunConfig, plan: EvaluationConfig) -> str:
    where = f"{config.name} is on {config.data.name} at {plan.norm} {plan.eps:g}"
    return f"but {where}; choose others with --judge-rows or --rows"


_MAKERS: dict[str, Callable[[RunConfig, EvaluationConfig], Judgment]] = {
    "autoattack": _autoattack,
    "distance": _distance,
    "eps": _over_eps,
    "autoattack-8-255": _autoattack_8_255,
}
JUDGMENTS = tuple(_MAKERS)
"""Their names."""
