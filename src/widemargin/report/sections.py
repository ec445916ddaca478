"""The sections of charts: training, margins, margin against distance, accuracy against eps, sweeps.

A section is a heading, figures and tables; one without data does not exist. All runs stand on the same axes, a label
has the same color everywhere, and margins in different norms do not share an axis. A sweep over one or two settings is
a table whose cells are colored by their number, so that it can be read, copied and scrolled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from markupsafe import Markup

from widemargin.evaluation.folder import Evaluation, Margins
from widemargin.report.charts import MOST_POINTS, Sample, histogram, line_chart, scatter
from widemargin.report.compare import attack_title, margin_places, norm_title
from widemargin.report.findings import Findings, Sweep
from widemargin.report.runs import Epoch, Run
from widemargin.report.svg import Series, Text, Tick, minus
from widemargin.report.tables import Entry, Head, Table


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
    tables: Sequence[Table] = ()
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


POINTS = 2000


@dataclass(frozen=True)
class Panel:
    """What one chart shows: a key of the metrics, or two that make a mean and its spread."""

    key: str
    title: str
    unit: str
    percent: bool = False
    spread: str = ""


PANELS = (
    Panel("test_clean", "Clean accuracy, test images", "accuracy, %", percent=True),
    Panel("test_robust", "Robust accuracy, test images", "accuracy, %", percent=True),
    Panel("validation_clean", "Clean accuracy, held-out images", "accuracy, %", percent=True),
    Panel("validation_robust", "Robust accuracy, held-out images", "accuracy, %", percent=True),
    Panel("train_accuracy", "Accuracy in training", "accuracy, %", percent=True),
    Panel("loss", "Loss", "loss"),
    Panel("emr", "EMR penalty", "penalty, before its weight"),
    Panel("igr", "IGR penalty", "penalty, before its weight"),
    Panel("test_margin_mean", "Effective margin, test images", "margin (L2)", spread="test_margin_std"),
    Panel("train_margin_mean", "Effective margin, training images", "margin (L2)", spread="train_margin_std"),
)


def training_section(found: Findings) -> Section | None:
    """A chart for each thing that any run measured."""
    if not found.runs:
        return None
    shown, lines = first([run for run in found.runs if run.epochs], "run")
    return Section(
        id="training",
        title="Training",
        lines=lines,
        legend=[(run.label, found.color(run.label)) for run in shown],
        figures=[figure for panel in PANELS if (figure := _training_figure(panel, shown, found)) is not None],
        tables=[_run_table(found.runs)],
    )


def _training_figure(panel: Panel, runs: Sequence[Run], found: Findings) -> Figure | None:
    series = [_training_series(panel, run, found.color(run.label)) for run in runs if run.curve(panel.key)]
    if not series:
        return None
    said = "; ".join(f"{s.label}: {s.points[-1][1]:.4g} at epoch {s.points[-1][0]:g}" for s in series)
    text = Text(id=f"training-{panel.key}", title=panel.title, description=said, x="epoch", y=panel.unit)
    caption = "Band: one standard deviation over images." if any(line.spread for line in series) else ""
    return Figure(picture=line_chart(text, series, percent=panel.percent), title=panel.title, caption=caption)


def _training_series(panel: Panel, run: Run, color: int) -> Series:
    measured = thinned([epoch for epoch in run.epochs if panel.key in epoch])
    whole = bool(panel.spread) and all(panel.spread in epoch for epoch in measured)
    return Series(
        label=run.label,
        color=color,
        points=[(epoch["epoch"], epoch[panel.key]) for epoch in measured],
        spread=[epoch[panel.spread] for epoch in measured] if whole else (),
    )


def thinned(epochs: Sequence[Epoch]) -> Sequence[Epoch]:
    """So many that a line is drawn well, and the last."""
    step = -(-len(epochs) // POINTS)
    return epochs if step <= 1 else [*epochs[:-1:step], epochs[-1]]


def _run_table(runs: Sequence[Run]) -> Table:
    heads = [Head("Run"), *map(Head, ("Epochs", "State", "Loss", "Time", "Weights kept"))]
    return Table(title="Runs", heads=heads, rows=[(Entry(run.label, str(run.folder)), _run_row(run)) for run in runs])


def _run_row(run: Run) -> list[Entry]:
    planned = "" if run.planned is None else f" of {run.planned}"
    loss = run.curve("loss")
    return [
        Entry(f"-{planned}" if run.unread else f"{run.done}{planned}"),
        Entry(_run_state(run)),
        Entry(f"{loss[-1][1]:.4g}" if loss else "-"),
        Entry(duration(run.seconds)),
        Entry(", ".join(run.checkpoints) or "-"),
    ]


def _run_state(run: Run) -> str:
    if run.finished:
        return "finished"
    if run.unread:
        return "not known"
    stopped = "unfinished or stopped early" if run.may_stop_early else "unfinished"
    return f"{stopped}, last line cut off" if run.cut_off else stopped


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def margins_section(found: Findings) -> Section | None:
    """One figure for each norm (margins in different norms do not share an axis), and every summary."""
    figures: list[Figure] = []
    shown, left_out = first([e for e in found.evaluations if e.examples is not None and e.examples.finite_margins()])
    for norm in dict.fromkeys(evaluation.margin_norm for evaluation in shown):
        members = [evaluation for evaluation in shown if evaluation.margin_norm == norm]
        if members:
            figures.append(_margins_figure(len(figures), members, found))
    rows = [row for evaluation in found.evaluations for row in _margin_rows(evaluation)]
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
        tables=[_margins_table(rows)] if rows else [],
    )


def _margins_figure(number: int, evaluations: Sequence[Evaluation], found: Findings) -> Figure:
    norm = norm_title(evaluations[0].margin_norm)
    samples = [Sample(e.label, found.color(e.label), e.examples.finite_margins()) for e in evaluations if e.examples]
    said = "; ".join(f"{s.label}: {len(s.values):,} images, mean {np.mean(s.values):.4f}" for s in samples)
    title = f"Effective margins, {norm}"
    unit = f"effective margin ({norm})"
    text = Text(id=f"margins-{number}", title=title, description=said, x=unit, y="share of images, %")
    return Figure(picture=histogram(text, samples), title=title, caption="Dashed: the mean over all images.")


def _margin_rows(evaluation: Evaluation) -> list[tuple[Evaluation, str, Margins]]:
    names = {"train": "training, correct"}
    return [(evaluation, names.get(margins.of, margins.of), margins) for margins in evaluation.margins]


def _margins_table(rows: Sequence[tuple[Evaluation, str, Margins]]) -> Table:
    quantiles = sorted({key for _, _, margins in rows for key in margins.quantiles}, key=float)
    heads = [Head("Evaluation"), *map(Head, ("Images", "Mean", "Std")), *(Head(_percentile(q)) for q in quantiles)]
    return Table(
        title="Margins in numbers",
        heads=heads,
        rows=[
            (
                Entry(evaluation.label, f"{which}, {norm_title(m.norm)}"),
                _margin_entries(m, quantiles),
            )
            for evaluation, which, m in rows
        ],
        notes=["Columns in percent are quantiles: so many of the images have a smaller margin."],
    )


def _margin_entries(margins: Margins, quantiles: Sequence[str]) -> list[Entry]:
    values = (margins.mean, margins.std, *(margins.quantiles.get(quantile) for quantile in quantiles))
    places = margin_places(margins.norm)
    numbers = ["-" if value is None else minus(f"{value:.{places}f}") for value in values]
    return [Entry(f"{margins.count:,}"), *map(Entry, numbers)]


def _percentile(quantile: str) -> str:
    return f"{100 * float(quantile):g}%"


def distance_section(found: Findings) -> Section | None:
    """A cloud for each evaluation that measured both."""
    shown, left_out = first(
        [e for e in found.evaluations if e.examples is not None and e.examples.margin_and_distance()]
    )
    figures = [
        _distance_figure(number, evaluation, points, found.color(evaluation.label))
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
        tables=[_distance_table(measured)] if measured else [],
    )


def _distance_figure(number: int, evaluation: Evaluation, points: list[tuple[float, float]], color: int) -> Figure:
    norm = norm_title(evaluation.norm)
    caption = _correlation(evaluation)
    text = Text(
        id=f"distance-{number}",
        title=f"Margin against distance, {evaluation.label}",
        description=f"{len(points):,} images. {caption}",
        x=f"effective margin ({norm})",
        y=f"distance found ({norm})",
    )
    thinned = f" {MOST_POINTS:,} of {len(points):,} points are drawn." if len(points) > MOST_POINTS else ""
    return Figure(picture=scatter(text, points, color), title=evaluation.label, caption=caption + thinned)


def _correlation(evaluation: Evaluation) -> str:
    value = evaluation.distance.rank_correlation if evaluation.distance else None
    return "" if value is None else f"Rank correlation {value:.3f}."


def _distance_table(evaluations: list[Evaluation]) -> Table:
    rows = []
    for evaluation in evaluations:
        if evaluation.distance is not None:
            numbers = (evaluation.distance.median, evaluation.distance.rank_correlation)
            entries = [Entry("-" if value is None else f"{value:.4g}") for value in numbers]
            rows.append((Entry(evaluation.label), [Entry(f"{evaluation.distance.count:,}"), *entries]))
    heads = [Head("Evaluation"), Head("Images"), Head("Median distance"), Head("Rank correlation with the margin")]
    return Table(title="Distances in numbers", heads=heads, rows=rows)


EpsCurve = tuple[Evaluation, list[tuple[str, float, float]]]
"""An evaluation and its points: eps as written, as a number, accuracy."""


def eps_section(found: Findings) -> Section | None:
    """A figure for each attack and norm that was run at two sizes or more."""
    groups: dict[tuple[str, str], list[EpsCurve]] = {}
    shown, left_out = first([e for e in found.evaluations if any(len(curve) > 1 for curve in e.curves.values())])
    for evaluation in shown:
        for attack, curve in list(evaluation.curves.items())[:MOST]:
            if len(curve) > 1:
                groups.setdefault((attack, evaluation.norm), []).append((evaluation, _eps_points(evaluation, attack)))
    if not groups:
        return None
    labels = list(dict.fromkeys(evaluation.label for lines in groups.values() for evaluation, _ in lines))
    return Section(
        id="accuracy-versus-eps",
        title="Accuracy against the size of the attack",
        lines=left_out,
        legend=[(label, found.color(label)) for label in labels],
        figures=[_eps_figure(number, key, lines, found) for number, (key, lines) in enumerate(groups.items())],
        tables=[_eps_table(norm, groups) for norm in dict.fromkeys(norm for _, norm in groups)],
    )


def _eps_points(evaluation: Evaluation, attack: str) -> list[tuple[str, float, float]]:
    """The points, from the clean accuracy on."""
    points = [(radius.written, radius.value, accuracy) for radius, accuracy in evaluation.curves[attack]]
    clean = evaluation.accuracy.get("clean")
    return points if clean is None else [("0", 0.0, clean), *points]


def _eps_figure(number: int, key: tuple[str, str], lines: Sequence[EpsCurve], found: Findings) -> Figure:
    attack, norm = attack_title(key[0]), norm_title(key[1])
    series = [
        Series(label=e.label, color=found.color(e.label), points=[(eps, accuracy) for _, eps, accuracy in points])
        for e, points in lines
    ]
    described = "; ".join(f"{e.label}: {_points_in_words(points)}" for e, points in lines)
    title = f"Accuracy under {attack}, {norm}"
    text = Text(id=f"eps-{number}", title=title, description=described, x=f"eps ({norm})", y="accuracy, %")
    return Figure(picture=line_chart(text, series, percent=True, zero=True, x_ticks=_eps_ticks(lines)), title=title)


def _eps_ticks(lines: Sequence[EpsCurve]) -> list[Tick]:
    """Every eps as it was written, but none so near the last that the words would touch."""
    marked: list[Tick] = []
    values = sorted({(value, written) for _, points in lines for written, value, _ in points})
    room = (values[-1][0] - values[0][0]) / 7
    for value, written in values:
        if not marked or value - marked[-1].value >= room:
            marked.append(Tick(value, written))
    return marked


def _eps_table(norm: str, groups: Mapping[tuple[str, str], Sequence[EpsCurve]]) -> Table:
    lines = [(attack, line) for (attack, other), members in groups.items() if other == norm for line in members]
    columns = sorted({(value, written) for _, (_, points) in lines for written, value, _ in points})
    return Table(
        title=f"Accuracy (%) at each {norm_title(norm)} eps",
        heads=[Head("Evaluation"), *(Head(written, _size_in_decimals(written, value)) for value, written in columns)],
        rows=[
            (Entry(evaluation.label, attack_title(attack)), [_accuracy_at(points, value) for value, _ in columns])
            for attack, (evaluation, points) in lines
        ],
    )


def _size_in_decimals(written: str, value: float) -> str:
    return f"{value:.4g}" if "/" in written else ""


def _accuracy_at(points: Sequence[tuple[str, float, float]], value: float) -> Entry:
    return Entry(next((f"{accuracy:.2f}" for _, eps, accuracy in points if eps == value), "-"))


def _points_in_words(points: Sequence[tuple[str, float, float]]) -> str:
    return ", ".join(f"{accuracy:.2f} at {written}" for written, _, accuracy in points)


LOW, HIGH = (232, 241, 250), (8, 60, 110)
TILES, PLACES = 2500, 500
"""A larger grid is no picture any more, and a longer ranking none that anybody reads."""


Point = tuple[str, ...]
"""The values of the grid's settings, in order."""


@dataclass(frozen=True)
class Tile:
    """A cell: its number and its colors."""

    text: str
    background: str = ""
    color: str = ""


@dataclass(frozen=True, kw_only=True)
class HeatMap:
    """A grid of one or two settings."""

    title: str
    caption: str
    down: str
    across: str
    columns: list[str]
    rows: list[tuple[str, list[Tile]]]


def sweeps_section(found: Findings) -> Section | None:
    """A heat map for each sweep over one or two settings, a ranking for those over more."""
    if not found.sweeps:
        return None
    return Section(
        id="sweeps",
        title="Sweeps",
        tables=[_map_table(sweep) if _is_map(sweep) else _ranking_table(sweep) for sweep in found.sweeps],
        template="sweeps.html",
        more={
            "maps": [heat_map(sweep) for sweep in found.sweeps if _is_map(sweep)],
            "rankings": [_ranking_table(sweep) for sweep in found.sweeps if not _is_map(sweep)],
        },
    )


def _is_map(sweep: Sweep) -> bool:
    return len(sweep.grid) <= 2 and sweep.size <= TILES


def heat_map(sweep: Sweep) -> HeatMap:
    """The grid with a tile for each point; a point not done is blank."""
    down, across, columns = _map_sides(sweep)
    scores = _scores(sweep)
    return HeatMap(
        title=_sweep_title(sweep),
        caption=_sweep_caption(sweep),
        down=down,
        across=across,
        columns=columns,
        rows=[
            (value, [_tile(scores, _grid_point(sweep, value, column)) for column in columns])
            for value in sweep.grid[down]
        ],
    )


def _map_sides(sweep: Sweep) -> tuple[str, str, list[str]]:
    down, *rest = sweep.grid
    return (down, rest[0], list(sweep.grid[rest[0]])) if rest else (down, "", ["score"])


def _sweep_caption(sweep: Sweep) -> str:
    return f"{_score_title(sweep)}, %. {len(sweep.points):,} of {sweep.size:,} points are done."


def _grid_point(sweep: Sweep, row: str, column: str) -> Point:
    return (row, column) if len(sweep.grid) > 1 else (row,)


def _scores(sweep: Sweep) -> dict[Point, float]:
    """By point; of a point that is there twice the first."""
    return {tuple(scored.point[key] for key in sweep.grid): scored.score for scored in reversed(sweep.points)}


def _tile(scores: Mapping[Point, float], point: Point) -> Tile:
    score = scores.get(point)
    if score is None:
        return Tile("-")
    low, high = min(scores.values()), max(scores.values())
    share = (score - low) / (high - low) if high > low else 0.5
    mixed = [round(a + (b - a) * share) for a, b in zip(LOW, HIGH, strict=True)]
    return Tile(
        f"{score:.2f}", f"rgb({mixed[0]}, {mixed[1]}, {mixed[2]})", "#000" if luminance(mixed) > 0.179 else "#fff"
    )


def luminance(color: list[int]) -> float:
    """Relative luminance as WCAG defines it; black and white text are equally readable at 0.179."""
    linear = [(c / 255 / 12.92) if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _score_title(sweep: Sweep) -> str:
    """validation_robust -> Validation robust accuracy."""
    return f"{sweep.scored.replace('_', ' ')} accuracy".capitalize() if "_" in sweep.scored else "Score"


def _sweep_title(sweep: Sweep) -> str:
    return f"{sweep.recipe} over {' and '.join(sweep.grid)}"


def _map_table(sweep: Sweep) -> Table:
    down, across, columns = _map_sides(sweep)
    scores = _scores(sweep)
    heads = [Head(down), *(Head(f"{across} = {column}" if across else column) for column in columns)]
    rows = [
        (Entry(value), [_score_entry(scores.get(_grid_point(sweep, value, column))) for column in columns])
        for value in sweep.grid[down]
    ]
    return Table(title=_sweep_title(sweep), heads=heads, rows=rows, notes=[_sweep_caption(sweep)])


def _ranking_table(sweep: Sweep) -> Table:
    best = sorted(sweep.points, key=lambda scored: -scored.score)[:PLACES]
    rows = [
        (Entry(str(place)), [*(Entry(scored.point[key]) for key in sweep.grid), _score_entry(scored.score)])
        for place, scored in enumerate(best, start=1)
    ]
    heads = [Head("Place"), *map(Head, sweep.grid), Head(_score_title(sweep), "%")]
    said = f" The best {PLACES} are listed." if len(sweep.points) > PLACES else ""
    return Table(title=_sweep_title(sweep), heads=heads, rows=rows, notes=[_sweep_caption(sweep) + said])


def _score_entry(score: float | None) -> Entry:
    return Entry("-" if score is None else f"{score:.2f}")
