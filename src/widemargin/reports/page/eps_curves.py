"""Accuracy against the size of the attack."""

from collections.abc import Mapping, Sequence

from widemargin.reports.charts.frame import Text
from widemargin.reports.charts.lines import line_chart
from widemargin.reports.charts.scale import Tick
from widemargin.reports.charts.series import Series
from widemargin.reports.inputs.evaluation import Evaluation
from widemargin.reports.inputs.search import Findings
from widemargin.reports.measures import attack_title, norm_title
from widemargin.reports.page.section import MOST, Figure, Section, first
from widemargin.reports.tables import Entry, Head, TextTable

Line = tuple[Evaluation, list[tuple[str, float, float]]]
"""An evaluation and its points: eps as written, as a number, accuracy."""


def eps_curves(found: Findings) -> Section | None:
    """A figure for each attack and norm that was run at two sizes or more."""
    groups: dict[tuple[str, str], list[Line]] = {}
    shown, left_out = first([e for e in found.evaluations if any(len(curve) > 1 for curve in e.curves.values())])
    for evaluation in shown:
        for attack, curve in list(evaluation.curves.items())[:MOST]:
            if len(curve) > 1:
                groups.setdefault((attack, evaluation.norm), []).append((evaluation, _line(evaluation, attack)))
    if not groups:
        return None
    labels = list(dict.fromkeys(evaluation.label for lines in groups.values() for evaluation, _ in lines))
    return Section(
        id="accuracy-versus-eps",
        title="Accuracy against the size of the attack",
        lines=left_out,
        legend=[(label, found.color(label)) for label in labels],
        figures=[_figure(number, key, lines, found) for number, (key, lines) in enumerate(groups.items())],
        tables=[_table(norm, groups) for norm in dict.fromkeys(norm for _, norm in groups)],
    )


def _line(evaluation: Evaluation, attack: str) -> list[tuple[str, float, float]]:
    """The points, from the clean accuracy on."""
    points = [(radius.written, radius.value, accuracy) for radius, accuracy in evaluation.curves[attack]]
    clean = evaluation.accuracy.get("clean")
    return points if clean is None else [("0", 0.0, clean), *points]


def _figure(number: int, key: tuple[str, str], lines: Sequence[Line], found: Findings) -> Figure:
    attack, norm = attack_title(key[0]), norm_title(key[1])
    series = [
        Series(label=e.label, color=found.color(e.label), points=[(eps, accuracy) for _, eps, accuracy in points])
        for e, points in lines
    ]
    described = "; ".join(f"{e.label}: {_said(points)}" for e, points in lines)
    title = f"Accuracy under {attack}, {norm}"
    text = Text(id=f"eps-{number}", title=title, description=described, x=f"eps ({norm})", y="accuracy, %")
    return Figure(picture=line_chart(text, series, percent=True, zero=True, x_ticks=_ticks(lines)), title=title)


def _ticks(lines: Sequence[Line]) -> list[Tick]:
    """Every eps as it was written, but none so near the last that the words would touch."""
    marked: list[Tick] = []
    values = sorted({(value, written) for _, points in lines for written, value, _ in points})
    room = (values[-1][0] - values[0][0]) / 7
    for value, written in values:
        if not marked or value - marked[-1].value >= room:
            marked.append(Tick(value, written))
    return marked


def _table(norm: str, groups: Mapping[tuple[str, str], Sequence[Line]]) -> TextTable:
    lines = [(attack, line) for (attack, other), members in groups.items() if other == norm for line in members]
    columns = sorted({(value, written) for _, (_, points) in lines for written, value, _ in points})
    return TextTable(
        title=f"Accuracy (%) at each {norm_title(norm)} eps",
        heads=[Head("Evaluation"), *(Head(written, _number(written, value)) for value, written in columns)],
        rows=[
            (Entry(evaluation.label, attack_title(attack)), [_entry(points, value) for value, _ in columns])
            for attack, (evaluation, points) in lines
        ],
    )


def _number(written: str, value: float) -> str:
    return f"{value:.4g}" if "/" in written else ""


def _entry(points: Sequence[tuple[str, float, float]], value: float) -> Entry:
    return Entry(next((f"{accuracy:.2f}" for _, eps, accuracy in points if eps == value), "-"))


def _said(points: Sequence[tuple[str, float, float]]) -> str:
    return ", ".join(f"{accuracy:.2f} at {written}" for written, _, accuracy in points)
