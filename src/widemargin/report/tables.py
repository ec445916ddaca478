"""A table of words and numbers, the same in HTML, Markdown and LaTeX.

Every number as one line of CSV: whose, of what, at which eps, ours, the paper's, the difference.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from widemargin.evaluation.folder import Evaluation
from widemargin.report.compare import Cell, Measure, Results


@dataclass(frozen=True)
class Head:
    """A column's name and unit."""

    title: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.title} ({self.detail})" if self.detail else self.title


@dataclass(frozen=True)
class Entry:
    """What a cell says; what stands ``below`` it is said more quietly."""

    text: str
    below: str | tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """What stands below, line by line."""
        return (self.below,) if isinstance(self.below, str) else self.below

    def __str__(self) -> str:
        below = ", ".join(self.lines)
        return f"{self.text} ({below})" if below else self.text


@dataclass(frozen=True, kw_only=True)
class TextTable:
    """Each row is its name and its entries; ``words`` is for a table whose entries are not numbers."""

    title: str
    heads: Sequence[Head]
    rows: Sequence[tuple[Entry, Sequence[Entry]]]
    notes: Sequence[str] = ()
    words: bool = False


def markdown(table: TextTable) -> str:
    """The table as Markdown, without its title."""
    align = ":--" if table.words else "--:"
    lines = [_line([plain_text(str(head)) for head in table.heads]), _line([":--", *[align] * (len(table.heads) - 1)])]
    lines += [_line([plain_text(str(entry)) for entry in (name, *entries)]) for name, entries in table.rows]
    notes = [""] * bool(table.notes) + [f"- {plain_text(note)}" for note in table.notes]
    return "\n".join([*lines, *notes, ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def plain_text(text: str) -> str:
    """Text on one line that Markdown does not take for markup."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(text.split()))


_LATEX = {
    "\\": r"\textbackslash{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "∞": r"$_\infty$",
    "±": r"$\pm$",
    "·": r"$\cdot$",
    "…": r"\dots{}",
    "\N{MINUS SIGN}": "$-$",
}


def latex(table: TextTable) -> str:
    """The table as LaTeX, for the booktabs package."""
    columns = "l" * len(table.heads) if table.words else "l" + "r" * (len(table.heads) - 1)
    body = [_row([name, *entries]) for name, entries in table.rows]
    return "\n".join(
        [
            r"\begin{table}",
            f"\\caption{{{_escaped(table.title)}}}",
            f"\\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            _row(table.heads),
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            *(f"\\par\\footnotesize {_escaped(note)}" for note in table.notes),
            r"\end{table}",
            "",
        ]
    )


def _row(cells: Sequence[object]) -> str:
    return " & ".join(_escaped(str(cell)) for cell in cells) + r" \\"


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


FORMULA = tuple(
    "=+-@\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)
"""With these a spreadsheet begins to calculate."""
COLUMNS = (
    "name",
    "kind",
    "data",
    "measure",
    "norm",
    "eps",
    "eps_value",
    "value",
    "spread",
    "paper",
    "difference",
    "images",
)


def tidy_csv(tables: Sequence[Results], evaluations: Sequence[Evaluation]) -> str:
    """The results, the parts of AutoAttack and distances, a number a line."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for table in tables:
        for row in table.rows:
            cells = [(measure, row.cells[measure]) for measure in table.measures if measure in row.cells]
            writer.writerows(_numbers_line(row.label, row.kind, row.data, row.images, *pair) for pair in cells)
    for evaluation in evaluations:
        kind = f"quick {evaluation.kind}" if evaluation.quick else evaluation.kind
        for measure, value in (*_parts(evaluation), *_distances(evaluation)):
            cell = Cell(value, None, None)
            writer.writerow(_numbers_line(evaluation.label, kind, evaluation.data, evaluation.count, measure, cell))
    return stream.getvalue()


def _numbers_line(label: str, kind: str, data: str, images: int | None, measure: Measure, cell: Cell) -> list[str]:
    return [_words(label), kind, _words(data), *_numbers(measure, cell), "" if images is None else str(images)]


def _words(text: str) -> str:
    """Words on one line that no spreadsheet takes for a formula."""
    line = " ".join(text.split())
    return f"'{line}" if line.startswith(FORMULA) else line


def _distances(evaluation: Evaluation) -> Iterator[tuple[Measure, float]]:
    """The median over correctly classified images, and how the order of the distances agrees with that of margins."""
    distance = evaluation.distance
    for name, value in (
        ("distance_median", distance and distance.median),
        ("distance_rank_correlation", distance and distance.rank_correlation),
    ):
        if isinstance(value, float):
            yield Measure(name, None, evaluation.norm), value


def _parts(evaluation: Evaluation) -> Iterator[tuple[Measure, float]]:
    for name, accuracy in evaluation.accuracy.items():
        attack, radius = evaluation.radius_of(name)
        if "/" in attack:
            yield Measure(attack, radius, evaluation.norm), accuracy


def _numbers(measure: Measure, cell: Cell) -> list[str]:
    radius = measure.radius
    size = ["", ""] if radius is None else [_words(radius.written), f"{radius.value:.8g}"]
    values = [cell.ours, cell.spread, cell.paper, cell.difference]
    return [
        _words(measure.attack),
        _words(measure.norm),
        *size,
        *("" if value is None else f"{value:.6g}" for value in values),
    ]
