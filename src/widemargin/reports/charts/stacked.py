"""Bars that divide a whole, one above the other: who broke how many."""

from collections.abc import Sequence

from markupsafe import Markup

from widemargin.reports.charts.frame import WIDTH, Text, svg

ROW, BAR = 44.0, 18.0


def stacked(text: Text, rows: Sequence[tuple[str, Sequence[tuple[str, str, int]]]]) -> Markup:
    """Each row is a name and its parts: (name, style class, count)."""
    bodies = [_row(label, parts, number * ROW) for number, (label, parts) in enumerate(rows)]
    return svg(text, Markup("").join(bodies), height=ROW * len(rows))


def _row(label: str, parts: Sequence[tuple[str, str, int]], top: float) -> Markup:
    total = sum(count for _, _, count in parts) or 1
    bars, left = Markup(""), 0.0
    for name, style, count in parts:
        width = WIDTH * count / total
        bars += Markup(
            '<rect class="{style}" x="{x:.2f}" y="{y:g}" width="{w:.2f}" height="{h:g}">'
            "<title>{name}: {count:,}</title></rect>"
        ).format(style=style, x=left, y=top + 18, w=width, h=BAR, name=name, count=count)
        left += width
    return Markup('<text class="rowname" x="0" y="{:g}">{}</text>{}').format(top + 12, label, bars)
