"""A table of words and numbers, the same in HTML, Markdown and LaTeX."""

import re
from collections.abc import Sequence
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
    lines = [_line([plain(str(head)) for head in table.heads]), _line([":--", *[align] * (len(table.heads) - 1)])]
    lines += [_line([plain(str(entry)) for entry in (name, *entries)]) for name, entries in table.rows]
    notes = [""] * bool(table.notes) + [f"- {plain(note)}" for note in table.notes]
    return "\n".join([*lines, *notes, ""])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def plain(text: str) -> str:
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
