"""One section of the page: a heading, figures, tables. A section without data does not exist."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from markupsafe import Markup

from widemargin.reports.tables import TextTable


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture with a caption."""

    picture: Markup
    title: str
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """``lines`` are sentences, ``commands`` what one types; ``more`` is for the section's own template."""

    id: str
    title: str
    lines: Sequence[str] = ()
    legend: Sequence[tuple[str, int]] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[TextTable] = ()
    commands: Sequence[str] = ()
    template: str = "plain.html"
    more: Mapping[str, Any] = field(default_factory=dict)


MOST = 16
"""More of a kind than these cannot be told apart on one chart."""
T = TypeVar("T")


def first(things: Sequence[T], noun: str = "evaluation") -> tuple[Sequence[T], list[str]]:
    """Those that figures show, and a line that says so where there are more."""
    if len(things) <= MOST:
        return things, []
    said = f"The figures show the first {MOST} of {len(things):,} {noun}s; give fewer folders to see the others."
    return things[:MOST], [said]


def counted(number: int, noun: str) -> str:
    """1 run, 2 runs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
