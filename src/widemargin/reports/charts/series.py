"""One line of a chart, and the key that names the lines."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

COLORS = 8
"""How many colors the page's style has; further series repeat them dashed."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points with a name and a color; ``spread`` is the half-width of a band around each point."""

    label: str
    color: int
    points: Points
    spread: Sequence[float] = ()


def color_class(number: int) -> str:
    """The style's class for the color of this number."""
    dashes = ("", " dashed", " dotted")[number // COLORS % 3]
    return f"c{number % COLORS}{dashes}"


def legend(entries: Sequence[tuple[str, int]]) -> Markup:
    """Which color is whose."""
    entry = Markup(
        '<li class="{style}"><svg class="swatch" viewBox="0 0 22 8" aria-hidden="true">'
        '<path class="line" d="M1 4H21"/></svg>{label}</li>'
    )
    items = Markup("").join(entry.format(style=color_class(color), label=label) for label, color in entries)
    return Markup('<ul class="legend">{}</ul>').format(items)
