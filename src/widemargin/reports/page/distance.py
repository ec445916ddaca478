"""The margin against the distance at which an adversarial example was found: does the margin mean what it says?"""

from widemargin.reports.charts.frame import Text
from widemargin.reports.charts.scatter import MOST, scatter
from widemargin.reports.inputs.evaluation import Evaluation
from widemargin.reports.inputs.search import Findings
from widemargin.reports.measures import norm_title
from widemargin.reports.page.section import Figure, Section, first
from widemargin.reports.tables import Entry, Head, TextTable


def distance(found: Findings) -> Section | None:
    """A cloud for each evaluation that measured both."""
    shown, left_out = first(
        [e for e in found.evaluations if e.examples is not None and e.examples.margin_and_distance()]
    )
    figures = [
        _figure(number, evaluation, points, found.color(evaluation.label))
        for number, evaluation in enumerate(shown)
        if (points := evaluation.examples.margin_and_distance() if evaluation.examples else [])
    ]
    measured = [evaluation for evaluation in found.evaluations if evaluation.distance is not None]
    if not figures and not measured:
        return None
    return Section(
        id="margin-versus-distance",
        title="Margin against distance",
        lines=[
            "Each point is a correctly classified image: its effective margin, and the size of the smallest "
            "adversarial perturbation found. On the dashed line they are equal.",
            *left_out,
        ],
        figures=figures,
        tables=[_table(measured)] if measured else [],
    )


def _figure(number: int, evaluation: Evaluation, points: list[tuple[float, float]], color: int) -> Figure:
    norm = norm_title(evaluation.norm)
    caption = _correlation(evaluation)
    text = Text(
        id=f"distance-{number}",
        title=f"Margin against distance, {evaluation.label}",
        description=f"{len(points):,} images. {caption}",
        x=f"effective margin ({norm})",
        y=f"distance found ({norm})",
    )
    thinned = f" {MOST:,} of {len(points):,} points are drawn." if len(points) > MOST else ""
    return Figure(picture=scatter(text, points, color), title=evaluation.label, caption=caption + thinned)


def _correlation(evaluation: Evaluation) -> str:
    value = evaluation.distance.rank_correlation if evaluation.distance else None
    return "" if value is None else f"Rank correlation {value:.3f}."


def _table(evaluations: list[Evaluation]) -> TextTable:
    rows = []
    for evaluation in evaluations:
        if evaluation.distance is not None:
            numbers = (evaluation.distance.median, evaluation.distance.rank_correlation)
            entries = [Entry("-" if value is None else f"{value:.4g}") for value in numbers]
            rows.append((Entry(evaluation.label), [Entry(f"{evaluation.distance.count:,}"), *entries]))
    heads = [Head("Evaluation"), Head("Images"), Head("Median distance"), Head("Rank correlation with the margin")]
    return TextTable(title="Distances in numbers", heads=heads, rows=rows)
