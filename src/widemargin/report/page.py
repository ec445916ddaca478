"""What a page is made of, and how it is written: one HTML file that needs nothing else, Markdown, LaTeX.

A page has sections, and a section has parts: sentences, figures, tables, alarms, galleries, commands. How a part looks
is said by the macro of its name in ``templates/parts.html``. Markdown has the sentences, tables and commands; LaTeX has
the tables.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from widemargin.report.tables import Table, plain_text
from widemargin.types import Alarm


@dataclass(frozen=True)
class Sentence:
    """A paragraph; ``style`` is a class of the page's style."""

    macro: ClassVar = "sentence"
    text: str
    style: str = ""


@dataclass(frozen=True)
class Figure:
    """A picture with a caption."""

    title: str
    picture: Markup
    caption: str = ""


@dataclass(frozen=True)
class Figures:
    """Figures side by side, with what their colors mean."""

    macro: ClassVar = "figures"
    figures: Sequence[Figure]
    legend: Markup | None = None


@dataclass(frozen=True)
class Alarms:
    """Alarms, each with whose it is; the same as tables for where there is no page."""

    macro: ClassVar = "alarms"
    alarms: Sequence[tuple[str, Alarm]]
    tables: Sequence[Table]


@dataclass(frozen=True)
class Picture:
    """An image as data, and what it is in words."""

    source: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Example:
    """An image, its adversarial twin and their difference; ``fooled`` where the twin is not called by its label."""

    pictures: Sequence[Picture]
    fooled: bool


@dataclass(frozen=True)
class Examples:
    """The examples that one evaluation kept."""

    macro: ClassVar = "examples"
    title: str
    caption: str
    examples: Sequence[Example]


@dataclass(frozen=True)
class Commands:
    """What one types."""

    macro: ClassVar = "commands"
    commands: Sequence[str]


Part = Sentence | Figures | Table | Alarms | Examples | Commands
Parts = Sequence[Part]


@dataclass(frozen=True)
class Section:
    """A heading, to which ``id`` is the link, and what stands below; ``folded`` is what one clicks on to see it."""

    id: str
    title: str
    parts: Parts
    folded: str = ""


@dataclass(frozen=True)
class Page:
    """A title, a sentence on what is compared, and the sections."""

    title: str
    summary: str
    sections: Sequence[Section]


def as_html(page: Page, *, date: str, version: str) -> str:
    """The page as one file; everything that came from files is escaped."""
    environment = Environment(
        loader=PackageLoader("widemargin.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(page=page, date=date, version=version)


def as_markdown(page: Page) -> str:
    """The page in words, numbers and commands."""
    parts = [f"# {plain_text(page.title)}\n\n{plain_text(page.summary)}\n"]
    for section in page.sections:
        body = [text for part in section.parts for text in _markdown(part, section.title)]
        if body:
            parts.append("\n".join([f"## {section.title}\n", *body]))
    return "\n".join(parts)


def _markdown(part: Part, title: str) -> Iterator[str]:
    if isinstance(part, Sentence):
        yield f"{plain_text(part.text)}\n"
    elif isinstance(part, Commands):
        yield _fenced("\n".join(part.commands))
    for table in _tables(part):
        if table.title != title:
            yield f"### {plain_text(table.title)}\n"
        yield table.markdown()


def _fenced(text: str) -> str:
    """Text between fences that it cannot break."""
    fence = max(["```", *(f"{ticks}`" for ticks in re.findall("`+", text))], key=len)
    return f"{fence}sh\n{text}\n{fence}\n"


def as_latex(page: Page) -> str:
    """The tables of the page."""
    tables = [table.latex() for section in page.sections for part in section.parts for table in _tables(part)]
    return "% \\usepackage{booktabs}\n\n" + "\n".join(tables)


def _tables(part: Part) -> Sequence[Table]:
    if isinstance(part, Alarms):
        return part.tables
    return [part] if isinstance(part, Table) else []
