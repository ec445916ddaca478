"""Robust accuracy class by class: a mean hides a class that hardly stands an attack at all."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from widemargin.report.compare import References
from widemargin.report.findings import Findings
from widemargin.report.leaderboard import Model, Standing, models, standings
from widemargin.report.page import Parts, Sentence
from widemargin.report.sweeps import tile_style
from widemargin.report.tables import Entry, Head, Table
from widemargin.report.wording import attack_title

SHOWN = 20
"""More classes than these have the lowest of them named, not a column each."""
NAMED = 5


@dataclass(frozen=True)
class ByClass:
    """One row: the accuracy of each class under one attack, the mean over seeds."""

    label: str
    attack: str
    shares: Sequence[float | None]

    @property
    def order(self) -> list[int]:
        """The classes that have images, the lowest first."""
        return sorted(
            (n for n, share in enumerate(self.shares) if share is not None), key=lambda n: self.shares[n] or 0
        )


def accuracy_by_class(found: Findings, references: References) -> Parts:
    """A table for each data set, of those models whose evaluations say it."""
    tables: dict[str, list[ByClass]] = defaultdict(list)
    for row in standings(models(found), references):
        if (known := _of_row(row)) is not None:
            tables[row.data].append(known)
    if not tables:
        return []
    said = "Each model under the strongest attack that its evaluation has class by class; over seeds the mean."
    return [Sentence(said), *(_table(data, rows, alone=len(tables) == 1) for data, rows in tables.items())]


def _of_row(row: Standing) -> ByClass | None:
    known = [one for model in row.models if (one := _strongest(model)) is not None]
    if not known:
        return None
    attack, shares = known[0]
    members = [other for name, other in known if name == attack and len(other) == len(shares)]
    columns = ([share for share in column if share is not None] for column in zip(*members, strict=True))
    return ByClass(row.label, attack, [fmean(column) if column else None for column in columns])


def _strongest(model: Model) -> tuple[str, Sequence[float | None]] | None:
    """AutoAttack, else the attack that leaves least, at the model's threat; clean where there is no attack."""
    judged = [
        (attack != "clean", attack == "autoattack", -accuracy, attack, shares)
        for attack, accuracy, shares in model.class_shares()
        if len([share for share in shares if share is not None]) > 1 and "/" not in attack
    ]
    return max(judged, key=lambda one: one[:3])[3:] if judged else None


def _table(data: str, rows: Sequence[ByClass], *, alone: bool) -> Table:
    count = max(len(row.shares) for row in rows)
    heads = [Head("Model"), Head("Lowest", "%"), Head("Mean", "%")]
    notes = []
    if count <= SHOWN:
        heads += [Head(f"Class {number}") for number in range(count)]
    else:
        heads += [Head("Lowest classes", "number and %")]
        notes = [f"The {NAMED} classes of the lowest accuracy are named."]
    return Table(
        title="Robust accuracy by class" if alone else f"Robust accuracy by class, {data}",
        heads=heads,
        rows=[_cells(row, count) for row in rows],
        notes=notes,
        kind="classes" if count <= SHOWN else "numbers",
    )


def _cells(row: ByClass, count: int) -> list[Entry]:
    known = [share for share in row.shares if share is not None]
    name = Entry(row.label, (attack_title(row.attack),))
    first = [name, Entry(f"{min(known):.1f}", (f"class {row.order[0]}",)), Entry(f"{fmean(known):.1f}")]
    if count > SHOWN:
        return [*first, Entry(", ".join(f"{number}: {row.shares[number]:.1f}" for number in row.order[:NAMED]))]
    shares = [*row.shares, *[None] * (count - len(row.shares))]
    return [*first, *(Entry("-") if s is None else Entry(f"{s:.0f}", style=tile_style(s / 100)) for s in shares)]
