"""The page's figures, by kind; how a kind is read is said once."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from widemargin.reports.collection import layout
from widemargin.reports.collection.sections import ALL, Section


@dataclass(frozen=True)
class Shown:
    """A picture that was drawn; ``note`` is what concerns it alone."""

    section: Section
    file: str
    title: str
    note: str = ""


def figures_text(pictures: Sequence[Shown]) -> str:
    """The last part of the page; pictures of a kind come after each other."""
    parts = ["## Figures\n", f"{ALL}\n"]
    for section, members in groupby(pictures, key=lambda picture: picture.section):
        parts += [f"### {section.title}\n", f"{section.said}\n"]
        for picture in members:
            parts += [f"#### {picture.title}\n", *([f"{picture.note}\n"] if picture.note else [])]
            parts.append(f"![{picture.title}]({layout.FIGURES}/{picture.file})\n")
    return "\n".join(parts)
