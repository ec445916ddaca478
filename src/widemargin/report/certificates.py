"""What is proven, in one picture with what is measured: certified radius, effective margin and attacked distance.

For each evaluation, every image's three numbers in the order of the distance found, with the true distance somewhere
between the certified radius and that line; and accuracy against eps, three times: certified, under AutoAttack, under
PGD. A radius is proven from below, an attack shows a distance from above.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from widemargin.evaluation.folder import Certified, Evaluation
from widemargin.report.charts import MOST_POINTS, line_chart
from widemargin.report.findings import Findings
from widemargin.report.page import Figure, Figures, Part, Parts, Sentence
from widemargin.report.sections import first
from widemargin.report.svg import Series, Text, Tick, axes, color_class, framed, legend, span, ticks
from widemargin.report.tables import Columns, Head, Table
from widemargin.report.wording import attack_title, norm_title

CERTIFIED, MARGIN, ATTACKED, PGD, DISTANCE = range(5)
"""Their colors, the same in all figures; an attack's name has one, too."""
STEPS = 120
"""Points of a curve that is known at every eps."""


@dataclass(frozen=True)
class Radii:
    """Of the images that have a certified radius and are classified right; a number may be missing."""

    certified: Sequence[float]
    margins: Sequence[float | None]
    distances: Sequence[float | None]
    count: int
    """With those misclassified."""


def certified(found: Findings) -> Parts:
    """Two figures for each evaluation with certified radii, and a table."""
    known = [(e, radii) for e in found.evaluations if (radii := _radii(e)) is not None]
    shown, left_out = first(known)
    measured = [(e, e.certified) for e in found.evaluations if e.certified is not None]
    if not known and not measured:
        return []
    parts: list[Part] = [
        Sentence(
            "Within its certified radius an image keeps its class, which is proven; at the distance found it does not. "
            "The true distance of every image lies between the two."
        ),
        *left_out,
    ]
    names = ("certified radius", "effective margin", "distance found, or AutoAttack", "PGD", "distance found")
    if shown:
        figures = [
            figure
            for number, (evaluation, radii) in enumerate(shown)
            for figure in (_images_figure(number, evaluation, radii), _eps_figure(number, evaluation, radii))
        ]
        parts.append(Figures(figures, legend(list(zip(names, range(len(names)), strict=True))[:4])))
    return [*parts, _table(measured)] if measured else parts


def _radii(evaluation: Evaluation) -> Radii | None:
    """None where no image has a certified radius."""
    examples = evaluation.examples
    if examples is None or not any(radius is not None for radius in examples.certified):
        return None
    columns = zip(examples.certified, examples.margins, examples.distances, examples.correct, strict=True)
    there = [(radius, m, d, right) for radius, m, d, right in columns if radius is not None]
    right = [(radius, m, d) for radius, m, d, correct in there if correct]
    certified, margins, distances = zip(*right, strict=True) if right else ((), (), ())
    return Radii(certified, margins, distances, len(there))


def _images_figure(number: int, evaluation: Evaluation, radii: Radii) -> Figure:
    """A point for each image and number, in the order of the distance, or of the margin where no distance is known."""
    norm = norm_title(evaluation.norm)
    columns = {"distance": radii.distances, "margin": radii.margins, "radius": radii.certified}
    by = next((name for name, column in columns.items() if any(v is not None for v in column)), "radius")
    order_by = columns[by]
    order = sorted(range(len(order_by)), key=lambda i: _or_last(order_by[i]))[:: -(-len(order_by) // MOST_POINTS) or 1]
    text = Text(
        id=f"certified-{number}",
        title=f"Certified, margin and attacked, {evaluation.label}",
        description=f"{len(order_by):,} correctly classified images. {_medians(radii)}",
        x=f"images, in the order of {by}",
        y=f"radius ({norm})",
    )
    values = [(CERTIFIED, radii.certified), (MARGIN, radii.margins), (ATTACKED, radii.distances)]
    finite = [value for _, column in values for value in column if value is not None]
    if not finite:
        return Figure(text.title, framed(text, axes((0, 1), [], ticks(0, 1)), Markup()), "None is classified right.")
    high = float(np.quantile(finite, 0.995))
    on = axes(
        (0, max(len(order) - 1, 1)),
        [Tick(0, "1"), Tick(max(len(order) - 1, 1), f"{len(order_by):,}")],
        ticks(*span([0.0, high], zero=True)),
    )
    body = Markup("")
    for color, column in values:
        places = [(place, column[i]) for place, i in enumerate(order)]
        points = [(on.x(place), on.y(min(value, on.y.high))) for place, value in places if value is not None]
        if column is order_by and points:
            path = Markup('<path class="line" d="M{}"/>').format("L".join(f"{x:.1f} {y:.1f}" for x, y in points))
        else:
            path = Markup('<path class="cloud" d="{}"/>').format("".join(f"M{x:.1f} {y:.1f}h0" for x, y in points))
        body += Markup('<g class="{}">{}</g>').format(color_class(color), path)
    return Figure(evaluation.label, framed(text, on, body), _medians(radii))


def _or_last(value: float | None) -> float:
    return float("inf") if value is None else value


def _medians(radii: Radii) -> str:
    named = [("certified", radii.certified), ("effective margin", radii.margins), ("distance", radii.distances)]
    known = [(name, [value for value in column if value is not None]) for name, column in named]
    said = ", ".join(f"{name} {np.median(values):.3g}" for name, values in known if values)
    return f"Medians: {said}." if said else ""


def _eps_figure(number: int, evaluation: Evaluation, radii: Radii) -> Figure:
    """Accuracy against eps: certified at every eps, attacked at those that were asked for."""
    norm = norm_title(evaluation.norm)
    attacked = {color: _strongest(evaluation, prefix) for color, prefix in ((ATTACKED, "autoattack"), (PGD, "pgd"))}
    clean = evaluation.accuracy.get("clean")
    sizes = [eps for found in attacked.values() if found is not None for eps, _ in found[1]]
    end = max([*sizes, *sorted(radii.certified)[-1:]], default=1.0) or 1.0
    series = [Series(label="certified", color=CERTIFIED, points=_share_beyond(radii, end))]
    for color, found in attacked.items():
        if found is not None:
            points = found[1] if clean is None else [(0.0, clean), *found[1]]
            series.append(Series(label=attack_title(found[0]), color=color, points=points))
    said = "; ".join(
        f"{line.label}: {', '.join(f'{y:.1f} at {x:.3g}' for x, y in line.points[-8:])}" for line in series
    )
    text = Text(
        id=f"certified-eps-{number}",
        title=f"Accuracy, certified and attacked, {evaluation.label}",
        description=said,
        x=f"eps ({norm})",
        y="accuracy, %",
    )
    whole = evaluation.count or radii.count
    caption = "" if whole == radii.count else f"Certified are the first {radii.count:,} of {whole:,} images."
    names = ", ".join(line.label for line in series)
    drawn = line_chart(text, series, percent=True, zero=True, x_ticks=ticks(0.0, end, 4))
    return Figure(f"{evaluation.label}: {names}", drawn, caption)


def _strongest(evaluation: Evaluation, prefix: str) -> tuple[str, list[tuple[float, float]]] | None:
    """(name, (eps, accuracy)) of the attack of that kind that leaves the least, on average over its eps."""
    curves = [
        (name, [(radius.value, accuracy) for radius, accuracy in curve])
        for name, curve in evaluation.curves.items()
        if name.startswith(prefix) and "/" not in name and curve
    ]
    return min(curves, key=lambda curve: float(np.mean([y for _, y in curve[1]])), default=None)


def _share_beyond(radii: Radii, end: float) -> list[tuple[float, float]]:
    """Percent of the images whose radius is at least eps, at many eps up to the end."""
    found = np.sort(np.asarray(radii.certified, dtype=float))
    places = np.linspace(0.0, end, STEPS)
    beyond = len(found) - np.searchsorted(found, places, side="left")
    return [(float(eps), 100.0 * float(count) / radii.count) for eps, count in zip(places, beyond, strict=True)]


def _table(measured: Sequence[tuple[Evaluation, Certified]]) -> Table:
    sizes = list(dict.fromkeys(eps for _, certified in measured for eps in certified.accuracy))
    columns: Columns[tuple[Evaluation, Certified]] = [
        ("Evaluation", lambda row: row[0].label),
        ("Images", lambda row: f"{row[1].count:,}"),
        ("Median radius", lambda row: None if row[1].median is None else f"{row[1].median:.4g}"),
        *((Head(f"Certified at {eps}"), lambda row, eps=eps: _percent(row[1].accuracy.get(eps))) for eps in sizes),
    ]
    return Table.of("Certified in numbers", measured, columns, notes=["The median is of correctly classified images."])


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}"
