"""Verdicts of one attack at one eps, for every image: a column. What it depends on, and how a report calls it.

Columns of other attacks, eps and steps stand side by side in one folder. What the folder is for (the model, the images,
the norm, the seed, how they are cut into shards and batches) is in ``identity.py``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from widemargin.attacks.names import AUTOATTACK, AUTOATTACK_PARTS
from widemargin.core.schema import LiteralFloat

CLEAN = "clean"


@dataclass(frozen=True, kw_only=True)
class Column:
    """Two are equal where the same is found out in the same way."""

    attack: str
    """By name; a part of AutoAttack on the survivors of those before is "autoattack/apgd-t"."""
    radius: float | None = None
    step_size: float | None = None
    """Of PGD, where it is not eps/4."""
    code: str = ""
    """What tells an attack of the user's own from another one of its name."""
    written: str = field(default="", compare=False)
    """The radius as it was written."""
    own_eps: bool = field(default=False, compare=False)
    """Whether the attack brings its eps, whatever those of the evaluation."""

    def to_json(self) -> dict[str, Any]:
        """As records have it."""
        table: dict[str, Any] = {"attack": self.attack}
        table |= {} if self.radius is None else {"eps": self.written, "radius": self.radius}
        table |= {} if self.step_size is None else {"step_size": self.step_size}
        table |= {"code": self.code} if self.code else {}
        return table | ({"own_eps": True} if self.own_eps else {})

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> "Column":
        """The same read back."""
        return cls(
            attack=table["attack"],
            radius=table.get("radius"),
            step_size=table.get("step_size"),
            code=table.get("code", ""),
            written=table.get("eps", ""),
            own_eps=table.get("own_eps", False),
        )

    @property
    def is_part(self) -> bool:
        """Whether it is a part of AutoAttack, not an attack."""
        return self.attack.startswith(f"{AUTOATTACK}/")

    @property
    def piece(self) -> str:
        """What its record is called while a shard is being judged."""
        step = "" if self.step_size is None else f"-step{self.step_size:g}"
        return (
            self.attack + step + (f"@{self.written}" if self.written else "") + f"-{self.code[:12]}" * bool(self.code)
        )


def step_of(name: str, radius: float, given: float | None) -> float | None:
    """The step size that a column depends on: PGD's alone, and only where it is not the usual one."""
    return None if given is None or not name.startswith("pgd") or given == radius / 4 else float(given)


def labels(columns: Iterable[Column]) -> dict[Column, str]:
    """What a report calls each: the attack, with its eps where there are several, and its step where that differs."""
    columns = list(columns)
    several = len({column.radius for column in columns if column.radius is not None and not column.own_eps}) > 1

    def called(column: Column, *, step: bool) -> str:
        name = column.attack + (f" (step {column.step_size:g})" if step and column.step_size is not None else "")
        return f"{name}@{column.written}" if several and column.radius is not None and not column.own_eps else name

    shared = Counter(called(column, step=False) for column in columns)
    return {column: called(column, step=shared[called(column, step=False)] > 1) for column in columns}


def columns_of_settings(settings: Mapping[str, Any]) -> dict[str, Column]:
    """Label -> column, as versions wrote them that knew no others in one folder than those of its settings."""
    texts = [value[0] if isinstance(value, list) else str(value) for value in settings.get("eps", ())]
    radii = settings.get("radii") or [float(LiteralFloat(text)) for text in texts]
    found = [Column(attack=CLEAN)]
    for text, radius in zip(texts, radii, strict=True):
        for name in settings.get("attacks", ()):
            parts = [f"{AUTOATTACK}/{part}" for part in AUTOATTACK_PARTS] if name == AUTOATTACK else []
            for attack in (*parts, name):
                step = step_of(attack, radius, settings.get("step_size"))
                if attack != CLEAN:
                    found.append(Column(attack=attack, radius=radius, step_size=step, written=text))
    several = len(radii) > 1
    return {
        column.attack if column.radius is None or not several else f"{column.attack}@{column.written}": column
        for column in found
    }
