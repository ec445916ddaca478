"""What an evaluation is asked to do: its attacks, radii and random seed, from whatever form people give them in.

An attack at an eps is a column of verdicts (``columns.py``); what may be added to a folder later is in ``identity.py``.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from widemargin.attacks.names import AUTOATTACK, AUTOATTACK_PARTS, GradientAttack, attack_named, variant_names
from widemargin.attacks.pgd import PGD
from widemargin.attacks.strongest import StrongestPGD
from widemargin.attacks.threat import THREATS, make_threat
from widemargin.core.checks import check_count, choice
from widemargin.core.schema import LiteralFloat
from widemargin.errors import InputError
from widemargin.evaluation.autoattack import parts_for
from widemargin.evaluation.columns import CLEAN, Column, step_of
from widemargin.evaluation.minimal_norm import METHODS, ONLY_FAB
from widemargin.evaluation.own_attacks import OwnAttack
from widemargin.types import Norm

CERTIFIED = "certified"
SEARCHES = {"float32": "", "tf32": "TF32", "folded": "a folded copy", "bfloat16": "bfloat16"}
"""How attacks search, and what records say that they searched with."""
SHARD_SIZE, BATCH_SIZE = 500, 250
"""What is finished together, and what is attacked at once, unless somebody says otherwise."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Attacks by name, at each eps, some the user's own; ``step_size=None`` means eps/4 for each eps.

    ``own_steps`` are pairs of an eps and the step there, in place of ``step_size``.
    """

    attacks: tuple[str, ...]
    eps: tuple[float, ...]
    norm: Norm = "linf"
    step_size: float | None = None
    own_steps: tuple[tuple[float, float], ...] = ()
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
    """How attacks search; what they find counts as far as it holds in float32, on the model itself."""
    max_steps: int | None = None
    """Cuts PGD and every part of AutoAttack short where only the code is on trial."""
    own: tuple[OwnAttack, ...] = ()
    save_adversarial: bool = False

    def __post_init__(self) -> None:
        choice("evaluate", "norm", self.norm, tuple(THREATS))
        choice("evaluate", "search", self.search, tuple(SEARCHES))
        choice("evaluate", "distance", self.distance, (None, *METHODS))
        check_count("evaluate.shard_size", self.shard_size)
        check_count("evaluate.batch_size", self.batch_size)
        if not self.attacks or len(set(self.attacks)) != len(self.attacks):
            raise InputError(f"evaluate.attacks must name each attack once, got {list(self.attacks)}")
        if not self.eps or min(len(set(map(spell, self.eps))) for spell in (float, eps_text)) != len(self.eps):
            raise InputError(f"evaluate.eps must be one radius or several different ones, got {list(self.eps)}")
        for eps, _ in self.own_steps:
            if float(eps) not in map(float, self.eps):
                raise InputError(f"evaluate.step_size: there is no eps {eps_text(eps)} here, only {list(self.eps)}")
        for eps in self.eps:
            make_threat(self.norm, eps)
            for name in self.attacks:
                self.attack(name, eps)
        for own in self.own:
            own.check(self.eps, self.norm)

    @property
    def attacked(self) -> bool:
        """Whether there are attacks, each of which takes place at each eps."""
        return set(self.attacks) != {"clean"}

    @property
    def searches_copy(self) -> bool:
        """Whether attacks search on a copy of the model, whose finds have to be checked."""
        return self.search != "float32"

    @property
    def searches(self) -> bool:
        """Whether anything here looks for adversarial images."""
        return self.distance is not None or self.attacked

    @property
    def needs_gradients(self) -> bool:
        """Whether anything here differentiates the model by its images."""
        return self.sanity or self.margins or self.searches

    @property
    def measured(self) -> dict[str, Any]:
        """What is measured of each image: key of its line -> what it depends on, where there is more than one way."""
        asked = {"margin": self.margins, "distance": self.distance is not None, CERTIFIED: self.certify is not None}
        depends = {"distance": None if self.distance == ONLY_FAB else self.distance}  # as in earlier versions
        return {name: depends.get(name) for name, wanted in asked.items() if wanted}

    @property
    def searches_long(self) -> bool:
        """Whether there is so much to search that compiling pays."""
        return self.max_steps is None and (
            self.distance is not None or bool({AUTOATTACK, *AUTOATTACK_PARTS} & {*self.attacks})
        )

    def step_at(self, eps: float) -> float | None:
        """PGD's step at that eps, where one was given."""
        return next((step for own, step in self.own_steps if float(own) == float(eps)), self.step_size)

    def own_attack(self, name: str) -> OwnAttack | None:
        """The user's own attack of that name."""
        return next((own for own in self.own if own.name == name), None)

    def attack(self, name: str, eps: float) -> GradientAttack | None:
        """The gradient attack of that name; None for "clean", for AutoAttack and its parts, and for the user's own."""
        if name in ("clean", AUTOATTACK, *AUTOATTACK_PARTS) or self.own_attack(name) is not None:
            return None
        attack = attack_named(name, eps=eps, step_size=self.step_at(eps), norm=self.norm)
        if isinstance(attack, PGD | StrongestPGD) and self.max_steps is not None and attack.steps > self.max_steps:
            return replace(attack, steps=self.max_steps)
        return attack

    def column(self, name: str, eps: float) -> Column:
        """The column of that attack at that eps, or at its own."""
        if name == CLEAN:
            return Column(attack=CLEAN)
        own = self.own_attack(name)
        if own is not None and own.eps is not None:
            return Column(attack=name, radius=float(own.eps), code=own.code, written=eps_text(own.eps), own_eps=True)
        step = None if own is not None else step_of(name, float(eps), self.step_at(eps))
        code = "" if own is None else own.code
        return Column(attack=name, radius=float(eps), step_size=step, code=code, written=eps_text(eps))

    def columns(self, num_classes: int) -> tuple[Column, ...]:
        """Every column asked for, those that make up another before it."""
        found = {Column(attack=CLEAN): None}
        for eps in self.eps:
            for name in self.attacks:
                parts = tuple(f"{AUTOATTACK}/{part}" for part in parts_for(num_classes)) if name == AUTOATTACK else ()
                for member in (*parts, *variant_names(name, num_classes), name):
                    found[self.column(member, eps)] = None
        return tuple(found)

    def label(self, name: str, eps: float) -> str:
        """The name of a result: the attack's, with its eps where there are several."""
        return name if name == "clean" or len(self.eps) == 1 else f"{name}@{eps_text(eps)}"


def eps_text(eps: float) -> str:
    """An eps as it was written."""
    return eps.text if isinstance(eps, LiteralFloat) else f"{eps:g}"


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
