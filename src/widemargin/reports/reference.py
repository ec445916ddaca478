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

    def attacked(self, attack: str, *, norm: str, eps: float) -> float | None:
        """The published accuracy under an attack, if it was of this size: a number at another eps is no comparison."""
        if norm != self.plan.get("norm", "linf") or not self.same_eps(eps):
            return None
        generic = "pgd" if attack in self.plan.get("attacks", ()) and attack.startswith("pgd") else attack
        return self.number(attack) if attack in self.results else self.number(generic)

    def same_eps(self, eps: float) -> bool:
        """Whether the recipe is judged at this eps."""
        ours = as_number(self.plan.get("eps"))
        return ours is not None and math.isclose(ours, eps, rel_tol=1e-6)


def as_number(value: Any) -> float | None:
    """A number, or one written as "8/255"."""
    try:
        return None if value is None else float(Written(value))
    except (InputError, TypeError):
        return None
