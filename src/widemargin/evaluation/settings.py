"""What an evaluation is asked to do: its attacks, radii and random seed, from whatever form people give them in.

Two evaluations of one model and data set with equal settings may be joined.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from widemargin.attacks.names import AUTOATTACK, GradientAttack, attack_named
from widemargin.attacks.pgd import PGD
from widemargin.attacks.strongest import StrongestPGD
from widemargin.attacks.threat import THREATS, make_threat
from widemargin.core.checks import check_count, choice
from widemargin.core.schema import LiteralFloat
from widemargin.errors import InputError
from widemargin.evaluation.minimal_norm import METHODS
from widemargin.types import Norm

SEARCHES = ("float32", "tf32")
SHARD_SIZE, BATCH_SIZE = 500, 250
"""What is finished together, and what is attacked at once, unless somebody says otherwise."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Attacks by name, at each eps; ``step_size=None`` means eps/4 for each eps."""

    attacks: tuple[str, ...]
    eps: tuple[float, ...]
    norm: Norm = "linf"
    step_size: float | None = None
    seed: int = 0
    shard_size: int = SHARD_SIZE
    batch_size: int = BATCH_SIZE
    distance: str | None = None
    """One of ``minimal_norm.METHODS``."""
    certify: str | int | None = None
    """How many of the first images are certified, or "all"."""
    margins: bool = True
    sanity: bool = True
    search: str = "float32"
    """The arithmetic in which attacks search; what they find counts as far as it holds in float32."""
    max_steps: int | None = None
    """Cuts PGD and every part of AutoAttack short where only the code is on trial."""

    def __post_init__(self) -> None:
        choice("evaluate", "norm", self.norm, tuple(THREATS))
        choice("evaluate", "search", self.search, SEARCHES)
        choice("evaluate", "distance", self.distance, (None, *METHODS))
        check_count("evaluate.shard_size", self.shard_size)
        check_count("evaluate.batch_size", self.batch_size)
        if not self.attacks or len(set(self.attacks)) != len(self.attacks):
            raise InputError(f"evaluate.attacks must name each attack once, got {list(self.attacks)}")
        if not self.eps or min(len(set(map(spell, self.eps))) for spell in (float, eps_text)) != len(self.eps):
            raise InputError(f"evaluate.eps must be one radius or several different ones, got {list(self.eps)}")
        for eps in self.eps:
            make_threat(self.norm, eps)
            for name in self.attacks:
                self.attack(name, eps)

    @property
    def attacked(self) -> bool:
        """Whether there are attacks, each of which takes place at each eps."""
        return set(self.attacks) != {"clean"}

    @property
    def searches(self) -> bool:
        """Whether anything here looks for adversarial images."""
        return self.distance is not None or self.attacked

    @property
    def needs_gradients(self) -> bool:
        """Whether anything here differentiates the model by its images."""
        return self.sanity or self.margins or self.searches

    def attack(self, name: str, eps: float) -> GradientAttack | None:
        """The gradient attack of that name; None for "clean" and "autoattack", which are none."""
        if name in ("clean", AUTOATTACK):
            return None
        attack = attack_named(name, eps=eps, step_size=self.step_size, norm=self.norm)
        if isinstance(attack, PGD | StrongestPGD) and self.max_steps is not None and attack.steps > self.max_steps:
            return replace(attack, steps=self.max_steps)
        return attack

    def label(self, name: str, eps: float) -> str:
        """The name of a result: the attack's, with its eps where there are several."""
        return name if name == "clean" or len(self.eps) == 1 else f"{name}@{eps_text(eps)}"


def eps_text(eps: float) -> str:
    """An eps as it was written."""
    return eps.text if isinstance(eps, LiteralFloat) else f"{eps:g}"


def attack_names(attacks: Any) -> tuple[str, ...]:
    """One name or several."""
    given = list(attacks) if isinstance(attacks, Iterable) and not isinstance(attacks, str) else [attacks]
    for name in given:
        if not isinstance(name, str):
            raise InputError(
                f"evaluate.attacks must be names such as 'fgsm' or 'pgd20', got {name!r}; eps, norm and step_size are "
                "given beside them"
            )
    return tuple(given)


def radii(eps: Any) -> tuple[float, ...]:
    """One eps or several; an array or a tensor of no dimension is one."""
    single = isinstance(eps, str) or not isinstance(eps, Iterable) or getattr(eps, "ndim", None) == 0
    return tuple(number("eps", value) for value in ([eps] if single else list(eps)))


def number(field: str, value: Any) -> float:
    """A number of any kind, or one written as "8/255", which stays so."""
    if isinstance(value, str):
        return LiteralFloat(value)
    if isinstance(value, int | float):  # as it is: it may remember how it was written
        return value
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"evaluate.{field} must be a number such as 8/255, got {value!r}") from None
