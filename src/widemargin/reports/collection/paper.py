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
        """What the row is called: its short name, if all rows of the table have their own."""
        return row.short if len({other.short for other in self.rows}) == len(self.rows) else row.recipe
