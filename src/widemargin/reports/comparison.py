"""Our numbers beside the published ones: mean over seeds, the paper's, the difference."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One number of ours, where we have it, and the paper's, where it has one."""

    ours: float | None
    spread: float | None
    """The standard deviation over seeds, with two seeds or more."""
    paper: float | None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.ours is None or self.paper is None else self.ours - self.paper

    def text(self) -> str:
        """Ours ± spread / paper's (difference)."""
        spread = "" if self.spread is None else f"±{self.spread:.2f}"
        ours = "-" if self.ours is None else f"{self.ours:.2f}{spread}"
        paper = "-" if self.paper is None else f"{self.paper:.2f}"
        difference = "" if self.difference is None else f" ({signed(self.difference)})"
        return f"{ours} / {paper}{difference}"


def signed(difference: float) -> str:
    """With its sign and two places; what rounds to nothing is not below."""
    return f"{round(difference, 2) + 0.0:+.2f}"


def compare(columns: Sequence[str], published: Mapping[str, Any], results: Sequence[Result]) -> dict[str, Cell]:
    """A cell for each column of the table."""
    return {column: _cell([_ours(column, result) for result in results], published.get(column)) for column in columns}


def _cell(ours: list[float | None], paper: Any) -> Cell:
    found = [value for value in ours if value is not None]
    return Cell(
        ours=statistics.fmean(found) if found else None,
        spread=statistics.stdev(found) if len(found) > 1 else None,
        paper=paper[0] if isinstance(paper, list) else paper,
    )


def _ours(column: str, result: Result) -> float | None:
    if column.startswith("margin_"):
        mean: float | None = result[column]["mean"]
        return mean
    accuracy: dict[str, float] = result["accuracy"]
    if column == "pgd":  # the table of both networks: each row's own PGD
        return next((value for name, value in accuracy.items() if name.startswith("pgd")), None)
    return accuracy.get(column)


def markdown(title: str, columns: Sequence[str], rows: Sequence[tuple[str, dict[str, Cell]]], note: str = "") -> str:
    """The comparison as a Markdown table."""
    lines = [f"## {title}", "", "ours / paper (difference)" + (f". {note}" if note else ""), ""]
    lines += [f"| row | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines += [f"| {name} | {' | '.join(cells[column].text() for column in columns)} |" for name, cells in rows]
    return "\n".join(lines) + "\n"
