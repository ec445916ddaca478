"""Margin histograms and their numbers."""

from collections.abc import Sequence

import numpy as np

from widemargin.reports.charts.frame import Text, minus
from widemargin.reports.charts.histogram import Sample, histogram
from widemargin.reports.inputs.evaluation import Evaluation, Margins
from widemargin.reports.inputs.search import Findings
from widemargin.reports.measures import margin_places, norm_title
from widemargin.reports.page.section import Figure, Section, first
from widemargin.reports.tables import Entry, Head, TextTable


def margins_section(found: Findings) -> Section | None:
    """One figure for each norm (margins in different norms do not share an axis), and every summary."""
    figures: list[Figure] = []
    shown, left_out = first([e for e in found.evaluations if e.examples is not None and e.examples.finite_margins()])
    for norm in dict.fromkeys(evaluation.margin_norm for evaluation in shown):
        members = [evaluation for evaluation in shown if evaluation.margin_norm == norm]
        if members:
            figures.append(_figure(len(figures), members, found))
    rows = [row for evaluation in found.evaluations for row in _rows(evaluation)]
    if not figures and not rows:
        return None
    return Section(
        id="margins",
        title="Effective margins",
        lines=[
            "How far the decision boundary is, by the model's own gradient; left of zero: misclassified.",
            *left_out,
        ],
        legend=[(evaluation.label, found.color(evaluation.label)) for evaluation in shown],
        figures=figures,
        tables=[_table(rows)] if rows else [],
    )


def _figure(number: int, evaluations: Sequence[Evaluation], found: Findings) -> Figure:
    norm = norm_title(evaluations[0].margin_norm)
    samples = [Sample(e.label, found.color(e.label), e.examples.finite_margins()) for e in evaluations if e.examples]
    said = "; ".join(f"{s.label}: {len(s.values):,} images, mean {np.mean(s.values):.4f}" for s in samples)
    title = f"Effective margins, {norm}"
    unit = f"effective margin ({norm})"
    text = Text(id=f"margins-{number}", title=title, description=said, x=unit, y="share of images, %")
    return Figure(picture=histogram(text, samples), title=title, caption="Dashed: the mean over all images.")


def _rows(evaluation: Evaluation) -> list[tuple[Evaluation, str, Margins]]:
    names = {"train": "training, correct"}
    return [(evaluation, names.get(margins.of, margins.of), margins) for margins in evaluation.margins]


def _table(rows: Sequence[tuple[Evaluation, str, Margins]]) -> TextTable:
    quantiles = sorted({key for _, _, margins in rows for key in margins.quantiles}, key=float)
    heads = [Head("Evaluation"), *map(Head, ("Images", "Mean", "Std")), *(Head(_percentile(q)) for q in quantiles)]
    return TextTable(
        title="Margins in numbers",
        heads=heads,
        rows=[
            (
                Entry(evaluation.label, f"{which}, {norm_title(m.norm)}"),
                _entries(m, quantiles),
            )
            for evaluation, which, m in rows
        ],
        notes=["Columns in percent are quantiles: so many of the images have a smaller margin."],
    )


def _entries(margins: Margins, quantiles: Sequence[str]) -> list[Entry]:
    values = (margins.mean, margins.std, *(margins.quantiles.get(quantile) for quantile in quantiles))
    places = margin_places(margins.norm)
    numbers = ["-" if value is None else minus(f"{value:.{places}f}") for value in values]
    return [Entry(f"{margins.count:,}"), *map(Entry, numbers)]


def _percentile(quantile: str) -> str:
    return f"{100 * float(quantile):g}%"
