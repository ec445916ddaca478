"""A table of words and numbers, written as Markdown, LaTeX and CSV here, and as HTML by ``templates/parts.html``.

What stands in a table may come from anybody's file: nothing of it is taken for markup, or for a spreadsheet's formula.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

T = TypeVar("T")
Kind = Literal["numbers", "words", "heat", "ranking", "classes"]


@dataclass(frozen=True)
class Head:
    """A column's name and unit; a ``minor`` one is left out where there is little room."""

    title: str
    detail: str = ""
    minor: bool = False

    def __str__(self) -> str:
        return f"{self.title} ({self.detail})" if self.detail else self.title


@dataclass(frozen=True)
class Entry:
    """What a cell says; each line ``below`` it is said more quietly; ``style`` colors it on the page.

    ``best`` marks the best number of a column.
    """

    text: str
    below: tuple[str, ...] = ()
    style: str = ""
    best: bool = False

    def __str__(self) -> str:
        return f"{self.text} ({', '.join(self.below)})" if self.below else self.text


Columns = Sequence[tuple[str | Head, Callable[[T], str | Entry | None]]]
"""The head of each column, and what stands there about one thing; None is a dash."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of entries, of which the first is the row's name.

    ``kind`` says whether the entries are numbers, words, or the tiles of a heat map, or whether the rows stand in an
    order that the reader may change; ``across`` is what the heads are values of.
    """

    macro: ClassVar = "table"
    title: str
    heads: Sequence[Head]
    rows: Sequence[Sequence[Entry]]
    notes: Sequence[str] = ()
    kind: Kind = "numbers"
    across: str = ""

    @classmethod
    def of(
        cls, title: str, things: Iterable[T], columns: Columns[T], *, notes: Sequence[str] = (), kind: Kind = "numbers"
    ) -> "Table":
        """A row for each of the things."""
        return cls(
            title=title,
            heads=[head if isinstance(head, Head) else Head(head) for head, _ in columns],
            rows=[[_entry(said(thing)) for _, said in columns] for thing in things],
            notes=notes,
            kind=kind,
        )

    def _head_texts(self) -> list[str]:
        first, *others = map(str, self.heads)
        return [first, *(f"{self.across} = {other}" if self.across else other for other in others)]

    def markdown(self) -> str:
        """The table as Markdown, without its title."""
        align = ":--" if self.kind == "words" else "--:"
        lines = markdown_lines(
            map(plain_text, self._head_texts()),
            ([_markdown_entry(entry) for entry in row] for row in self.rows),
            align=(":--", *[align] * (len(self.heads) - 1)),
        )
        notes = [""] * bool(self.notes) + [f"- {plain_text(note)}" for note in self.notes]
        return "\n".join([*lines, *notes, ""])

    def latex(self) -> str:
        """The table as LaTeX, for the booktabs package."""
        columns = "l" + ("l" if self.kind == "words" else "r") * (len(self.heads) - 1)
        return "\n".join(
            [
                r"\begin{table}",
                f"\\caption{{{_latex_text(self.title)}}}",
                f"\\label{{tab:{re.sub('[^a-z0-9]+', '-', self.title.lower()).strip('-')}}}",
                f"\\begin{{tabular}}{{{columns}}}",
                r"\toprule",
                _latex_row(map(_latex_text, self._head_texts())),
                r"\midrule",
                *(_latex_row(map(_latex_entry, row)) for row in self.rows),
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
        for name, *entries in self.rows:
            numbers = (entry.text if NUMBER.fullmatch(entry.text) else _csv_words(entry.text) for entry in entries)
            writer.writerow([_csv_words(name.text), *numbers])
        return stream.getvalue()


def _entry(said: str | Entry | None) -> Entry:
    return said if isinstance(said, Entry) else Entry("-" if said is None else said)


def markdown_lines(heads: Iterable[str], rows: Iterable[Sequence[str]], *, align: Sequence[str]) -> list[str]:
    """A Markdown table of cells that are Markdown already, line by line."""
    return [f"| {' | '.join(heads)} |", f"| {' | '.join(align)} |", *(f"| {' | '.join(cells)} |" for cells in rows)]


def _markdown_entry(entry: Entry) -> str:
    text = plain_text(str(entry))
    return f"**{plain_text(entry.text)}**{text[len(plain_text(entry.text)) :]}" if entry.best else text


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


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_entry(entry: Entry) -> str:
    if not entry.best:
        return _latex_text(str(entry))
    return f"\\textbf{{{_latex_text(entry.text)}}}{_latex_text(str(entry))[len(_latex_text(entry.text)) :]}"


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


FORMULA = tuple(
    "=+-@\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH COMMERCIAL AT}"
)
"""With these a spreadsheet begins to calculate."""


NUMBER = re.compile(r"-?[0-9.]+(e[+-]?[0-9]+)?")


def _csv_words(text: str) -> str:
    """Words on one line that no spreadsheet takes for a formula."""
    line = " ".join(text.split())
    return f"'{line}" if line.startswith(FORMULA) else line
