"""What a named run is held against: its recipe's settings and the published numbers, handed in by the caller."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from widemargin.errors import InputError
from widemargin.written import Written

Table = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One recipe: ``settings`` as in ``config.toml``, ``results`` by column (percent; margins as mean and std)."""

    settings: Table
    results: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    """Where the numbers stand, such as "table 3, AT+EMR"."""
    note: str = ""

    @property
    def plan(self) -> Table:
        """How the recipe is judged."""
        plan: Table = self.settings.get("evaluation", {})
        return plan

    def number(self, column: str) -> float | None:
        """A published number; of a margin its mean."""
        value = self.results.get(column)
        return value[0] if isinstance(value, list) else value

    def attacked(self, attack: str, *, norm: str, eps: float, step: float | None) -> float | None:
        """The published accuracy under an attack, if it was this one: at another eps or with another step it is not."""
        if norm != self.plan.get("norm", "linf") or not self.same_eps(eps):
            return None
        if attack.startswith("pgd") and not self.same_step(step, eps):
            return None
        generic = "pgd" if attack in self.plan.get("attacks", ()) and attack.startswith("pgd") else attack
        return self.number(attack) if attack in self.results else self.number(generic)

    def same_eps(self, eps: float) -> bool:
        """Whether the recipe is judged at this eps."""
        ours = as_number(self.plan.get("eps"))
        return ours is not None and math.isclose(ours, eps, rel_tol=1e-6)

    def same_step(self, step: float | None, eps: float) -> bool:
        """Whether the recipe's PGD has this step; None stands for eps/4, and 0.0078 is as good as 2/255."""
        return math.isclose(step or eps / 4, self.step or eps / 4, rel_tol=0.02)

    @property
    def step(self) -> float | None:
        """The step of the recipe's PGD."""
        return as_number(self.plan.get("step_size"))


def as_number(value: Any) -> float | None:
    """A number, or one written as "8/255"."""
    try:
        return None if value is None else float(Written(value))
    except (InputError, TypeError):
        return None
