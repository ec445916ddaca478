"""The tables our numbers are set beside, handed in by the caller: reports know no recipes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from widemargin.reports.reference import Reference


@dataclass(frozen=True)
class PaperRow:
    """A recipe with its published results (percent; margins as mean and standard deviation) and its settings."""

    recipe: str
    results: Mapping[str, Any]
    reference: Reference

    @property
    def short(self) -> str:
        """The recipe's name within its table."""
        return self.recipe.split("/")[-1]


@dataclass(frozen=True)
class PaperTable:
    """``name`` is what ``widemargin reproduce`` takes."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[PaperRow]

    def label(self, row: PaperRow) -> str:
        """What the row is called: the short name where it is one row's alone."""
        return row.short if [other.short for other in self.rows].count(row.short) == 1 else row.recipe
