"""A table of words and numbers, written as Markdown, LaTeX and CSV here, and as HTML by ``templates/parts.html``.

What stands in a table may come from anybody's file: nothing of it is taken for markup, or for a spreadsheet's formula.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


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
class Table:
    """Each row is its name and its entries; ``words`` is for a table whose entries are not numbers."""

    title: str
    heads: Sequence[Head]
    rows: Sequence[tuple[Entry, Sequence[Entry]]]
    notes: Sequence[str] = ()
    words: bool = False

    def markdown(self) -> str:
        """The table as Markdown, without its title."""
        align = ":--" if self.words else "--:"
        lines = markdown_lines(
            [plain_text(str(head)) for head in self.heads],
            ([plain_text(str(entry)) for entry in (name, *entries)] for name, entries in self.rows),
            align=(":--", *[align] * (len(self.heads) - 1)),
        )
        notes = [""] * bool(self.notes) + [f"- {plain_text(note)}" for note in self.notes]
        return "\n".join([*lines, *notes, ""])

    def latex(self) -> str:
        """The table as LaTeX, for the booktabs package."""
        columns = "l" * len(self.heads) if self.words else "l" + "r" * (len(self.heads) - 1)
        return "\n".join(
            [
                r"\begin{table}",
                f"\\caption{{{_latex_text(self.title)}}}",
                f"\\begin{{tabular}}{{{columns}}}",
                r"\toprule",
                _latex_row(self.heads),
                r"\midrule",
                *(_latex_row([name, *entries]) for name, entries in self.rows),
                r"\bottomrule",
                r"\end{tabular}",
                *(f"\\par\\footnotesize {_latex_text(note)}" for note in self.notes),
                r"\end{table}",
                "",
            ]
        )

    def csv(self) -> str:
        """The heads and the rows as CSV."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(head.title for head in self.heads)
        for name, entries in self.rows:
            writer.writerow([_csv_words(name.text), *(_csv_entry(entry.text) for entry in entries)])
        return stream.getvalue()


def markdown_lines(heads: Sequence[str], rows: Iterable[Sequence[str]], *, align: Sequence[str]) -> list[str]:
    """A Markdown table of cells that are Markdown already, line by line."""
    return [f"| {' | '.join(heads)} |", f"| {' | '.join(align)} |", *(f"| {' | '.join(cells)} |" for cells in rows)]


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


def _latex_row(cells: Sequence[object]) -> str:
    return " & ".join(_latex_text(str(cell)) for cell in cells) + r" \\"


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


FORMULA = tuple(
    "=+-@\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)
"""With these a spreadsheet begins to calculate."""


NUMBER = re.compile(r"-?[0-9.]+(e[+-]?[0-9]+)?")


def _csv_entry(text: str) -> str:
    return text if NUMBER.fullmatch(text) else _csv_words(text)


def _csv_words(text: str) -> str:
    """Words on one line that no spreadsheet takes for a formula."""
    line = " ".join(text.split())
    return f"'{line}" if line.startswith(FORMULA) else line
