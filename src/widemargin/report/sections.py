"""What was measured, section by section: AutoAttack, accuracy against eps, margins, distances, training, examples.

A section is found data, turned into figures and tables; without data it is empty. All runs stand on the same axes, a
label has the same color everywhere, and margins in different norms do not share an axis.
"""

import base64
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from markupsafe import Markup
from PIL import Image

from widemargin.evaluation.folder import Distance, Evaluation, Margins
from widemargin.evaluation.gallery import Bytes, Gallery
from widemargin.report.charts import MOST_POINTS, Sample, histogram, line_chart, scatter, stacked
from widemargin.report.findings import Findings
from widemargin.report.page import Example, Examples, Figure, Figures, Part, Parts, Picture, Sentence
from widemargin.report.runs import Epoch, Run
from widemargin.report.svg import Series, Text, Tick, legend, part_legend
from widemargin.report.tables import Columns, Entry, Head, Table
from widemargin.report.wording import attack_title, duration, margin_places, minus, norm_title

MOST = 16
"""More of a kind than these cannot be told apart on one chart."""
T = TypeVar("T")


def first(things: Sequence[T], noun: str = "evaluation") -> tuple[Sequence[T], list[Part]]:
    """Those that figures show, and a sentence that says so where there are more."""
    if len(things) <= MOST:
        return things, []
    said = f"The figures show the first {MOST} of {len(things):,} {noun}s; give fewer folders to see the others."
    return things[:MOST], [Sentence(said)]


def _legend(labels: Iterable[str], found: Findings) -> Markup:
    return legend([(label, found.color(label)) for label in dict.fromkeys(labels)])


AUTOATTACK = "autoattack"
WRONG, ROBUST = "Wrong unattacked", "Still right"


@dataclass(frozen=True)
class Breakdown:
    """One AutoAttack run: (part, images broken) in the order of the attack."""

    label: str
    parts: Sequence[tuple[str, int]]


def autoattack(found: Findings) -> Parts:
    """Bars and counts for each evaluation with AutoAttack."""
    rows = [row for evaluation in found.evaluations for row in breakdowns(evaluation)]
    if not rows:
        return []
    drawn, left_out = first(rows)
    names = list(dict.fromkeys(name for row in rows for name, _ in row.parts if name not in (WRONG, ROBUST)))
    styles = {WRONG: "part-wrong", **{name: f"part-{i % 4}" for i, name in enumerate(names)}, ROBUST: "part-right"}
    said = (", ".join(f"{attack_title(name)} {count:,}" for name, count in row.parts) for row in drawn)
    described = "; ".join(f"{row.label}: {words}" for row, words in zip(drawn, said, strict=True))
    text = Text(id="breakdown", title="What AutoAttack's parts broke", description=described)
    bars = [(row.label, [(attack_title(name), styles[name], count) for name, count in row.parts]) for row in drawn]
    figure = Figure(text.title, stacked(text, bars), "Each bar is all images of one evaluation.")
    counts = [(row.label, dict(row.parts)) for row in rows]
    table = Table(
        title="Images broken by each part of AutoAttack",
        heads=[Head("Evaluation"), *(Head(attack_title(name)) for name in styles)],
        rows=[
            [Entry(label), *(Entry(f"{broken[name]:,}" if name in broken else "-") for name in styles)]
            for label, broken in counts
        ],
    )
    said_first = Sentence("Each part attacks only the images that all parts before it left right.")
    key = part_legend([(attack_title(name), style) for name, style in styles.items()])
    return [said_first, *left_out, Figures([figure], key), table]


def breakdowns(evaluation: Evaluation) -> list[Breakdown]:
    """One for each eps at which AutoAttack ran; none where nobody knows on how many images."""
    count = evaluation.count or len(evaluation.examples or ())
    names = [name for name in evaluation.accuracy if name.partition("@")[0] == AUTOATTACK]
    return [_breakdown(evaluation, name.removeprefix(AUTOATTACK), count) for name in names] if count else []


def _breakdown(evaluation: Evaluation, suffix: str, count: int) -> Breakdown:
    """``suffix`` is the eps ("@8/255") where there are several."""
    accuracy = evaluation.accuracy
    left = round(accuracy.get("clean", 100.0) * count / 100)
    parts = [(WRONG, count - left)]
    for name, value in accuracy.items():
        part, _, _ = name.partition("@")
        if name.startswith(f"{AUTOATTACK}/") and name == part + suffix:
            right = round(value * count / 100)
            parts.append((part.removeprefix(f"{AUTOATTACK}/"), max(0, left - right)))
            left = right
    if len(parts) == 1:  # without accuracies after each part, each example says what broke it
        if (examples := evaluation.examples) is not None:
            breakers = [at.get(suffix[1:]) for at in examples.broken_at] if suffix else examples.broken_by
            parts += Counter(name for name in breakers if name).items()
        left = round(accuracy[AUTOATTACK + suffix] * count / 100)
    label = f"{evaluation.label}, eps {suffix[1:]}" if suffix else evaluation.label
    return Breakdown(label, [*parts, (ROBUST, left)])


@dataclass(frozen=True)
class EpsCurve:
    """Accuracy against eps, from the clean accuracy on: (eps as written, as a number, accuracy)."""

    label: str
    points: Sequence[tuple[str, float, float]]


def accuracy_against_eps(found: Findings) -> Parts:
    """A figure for each attack and norm that was run at two sizes or more."""
    curves: dict[str, dict[str, list[EpsCurve]]] = defaultdict(lambda: defaultdict(list))
    shown, left_out = first([e for e in found.evaluations if any(len(curve) > 1 for curve in e.curves.values())])
    for evaluation in shown:
        clean = evaluation.accuracy.get("clean")
        for attack, curve in list(evaluation.curves.items())[:MOST]:
            if len(curve) > 1:
                points = [(radius.written, radius.value, accuracy) for radius, accuracy in curve]
                points = points if clean is None else [("0", 0.0, clean), *points]
                curves[evaluation.norm][attack].append(EpsCurve(evaluation.label, points))
    if not curves:
        return []
    lines = [(attack, norm, members) for norm, attacks in curves.items() for attack, members in attacks.items()]
    figures = [_eps_figure(number, *line, found) for number, line in enumerate(lines)]
    labels = (curve.label for _, _, members in lines for curve in members)
    tables = [_eps_table(norm, attacks) for norm, attacks in curves.items()]
    return [*left_out, Figures(figures, _legend(labels, found)), *tables]


def _eps_figure(number: int, attack: str, norm: str, curves: Sequence[EpsCurve], found: Findings) -> Figure:
    said = (", ".join(f"{accuracy:.2f} at {written}" for written, _, accuracy in curve.points) for curve in curves)
    text = Text(
        id=f"eps-{number}",
        title=f"Accuracy under {attack_title(attack)}, {norm_title(norm)}",
        description="; ".join(f"{curve.label}: {words}" for curve, words in zip(curves, said, strict=True)),
        x=f"eps ({norm_title(norm)})",
        y="accuracy, %",
    )
    series = [
        Series(label=c.label, color=found.color(c.label), points=[(eps, accuracy) for _, eps, accuracy in c.points])
        for c in curves
    ]
    return Figure(text.title, line_chart(text, series, percent=True, zero=True, x_ticks=_eps_ticks(curves)))


def _sizes(curves: Iterable[EpsCurve]) -> list[tuple[float, str]]:
    return sorted({(value, written) for curve in curves for written, value, _ in curve.points})


def _eps_ticks(curves: Sequence[EpsCurve]) -> list[Tick]:
    """Every eps as it was written, but none so near the last that the words would touch."""
    marked: list[Tick] = []
    sizes = _sizes(curves)
    room = (sizes[-1][0] - sizes[0][0]) / 7
    for value, written in sizes:
        if not marked or value - marked[-1].value >= room:
            marked.append(Tick(value, written))
    return marked


def _eps_table(norm: str, attacks: Mapping[str, Sequence[EpsCurve]]) -> Table:
    sizes = _sizes(curve for curves in attacks.values() for curve in curves)
    rows = []
    for attack, curves in attacks.items():
        for curve in curves:
            at = {value: f"{accuracy:.2f}" for _, value, accuracy in reversed(curve.points)}
            rows.append(
                [Entry(curve.label, (attack_title(attack),)), *(Entry(at.get(value, "-")) for value, _ in sizes)]
            )
    return Table(
        title=f"Accuracy (%) at each {norm_title(norm)} eps",
        heads=[Head("Evaluation"), *(Head(text, f"{value:.4g}" if "/" in text else "") for value, text in sizes)],
        rows=rows,
    )


def margins(found: Findings) -> Parts:
    """One figure for each norm (margins in different norms do not share an axis), and every summary."""
    known = [(e, e.examples.finite_margins()) for e in found.evaluations if e.examples is not None]
    shown, left_out = first([(evaluation, values) for evaluation, values in known if values])
    figures = []
    for number, norm in enumerate(dict.fromkeys(evaluation.margin_norm for evaluation, _ in shown)):
        samples = [Sample(e.label, found.color(e.label), values) for e, values in shown if e.margin_norm == norm]
        figures.append(_margins_figure(number, norm_title(norm), samples))
    rows = [(evaluation.label, margins) for evaluation in found.evaluations for margins in evaluation.margins]
    if not figures and not rows:
        return []
    said = "How far the decision boundary is, by the model's own gradient; left of zero: misclassified."
    legend = _legend((evaluation.label for evaluation, _ in shown), found)
    return [Sentence(said), *left_out, Figures(figures, legend), *([_margins_table(rows)] if rows else [])]


def _margins_figure(number: int, norm: str, samples: Sequence[Sample]) -> Figure:
    text = Text(
        id=f"margins-{number}",
        title=f"Effective margins, {norm}",
        description="; ".join(f"{s.label}: {len(s.values):,} images, mean {np.mean(s.values):.4f}" for s in samples),
        x=f"effective margin ({norm})",
        y="share of images, %",
    )
    return Figure(text.title, histogram(text, samples), "Dashed: the mean over all images.")


def _margins_table(rows: Sequence[tuple[str, Margins]]) -> Table:
    quantiles = sorted({key for _, margins in rows for key in margins.quantiles}, key=float)
    entries = []
    for label, m in rows:
        values = (m.mean, m.std, *(m.quantiles.get(quantile) for quantile in quantiles))
        numbers = ("-" if value is None else minus(f"{value:.{margin_places(m.norm)}f}") for value in values)
        which = {"train": "training, correct"}.get(m.of, m.of)
        name = Entry(label, (f"{which}, {norm_title(m.norm)}",))
        entries.append([name, Entry(f"{m.count:,}"), *map(Entry, numbers)])
    return Table(
        title="Margins in numbers",
        heads=[*map(Head, ("Evaluation", "Images", "Mean", "Std")), *(Head(f"{100 * float(q):g}%") for q in quantiles)],
        rows=entries,
        notes=["Columns in percent are quantiles: so many of the images have a smaller margin."],
    )


def margin_against_distance(found: Findings) -> Parts:
    """A cloud for each evaluation that measured both."""
    known = [(e, e.examples.margin_and_distance()) for e in found.evaluations if e.examples is not None]
    shown, left_out = first([(evaluation, points) for evaluation, points in known if points])
    figures = [
        _distance_figure(number, evaluation, points, found.color(evaluation.label))
        for number, (evaluation, points) in enumerate(shown)
    ]
    measured = [(e.label, e.distance) for e in found.evaluations if e.distance is not None]
    if not figures and not measured:
        return []
    said = (
        "Each point is a correctly classified image: its effective margin, and the size of the smallest adversarial "
        "perturbation found. On the dashed line they are equal."
    )
    columns: Columns[tuple[str, Distance]] = [
        ("Evaluation", lambda row: row[0]),
        ("Images", lambda row: f"{row[1].count:,}"),
        ("Median distance", lambda row: _four_digits(row[1].median)),
        ("Rank correlation with the margin", lambda row: _four_digits(row[1].rank_correlation)),
    ]
    tables = [Table.of("Distances in numbers", measured, columns)] if measured else []
    return [Sentence(said), *left_out, Figures(figures), *tables]


def _four_digits(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"


def _distance_figure(number: int, evaluation: Evaluation, points: list[tuple[float, float]], color: int) -> Figure:
    norm = norm_title(evaluation.norm)
    correlation = evaluation.distance.rank_correlation if evaluation.distance else None
    caption = "" if correlation is None else f"Rank correlation {correlation:.3f}."
    text = Text(
        id=f"distance-{number}",
        title=f"Margin against distance, {evaluation.label}",
        description=f"{len(points):,} images. {caption}",
        x=f"effective margin ({norm})",
        y=f"distance found ({norm})",
    )
    if len(points) > MOST_POINTS:
        caption += f" {MOST_POINTS:,} of {len(points):,} points are drawn."
    return Figure(evaluation.label, scatter(text, points, color), caption)


POINTS = 2000


@dataclass(frozen=True)
class Panel:
    """What one chart of training shows: a key of the metrics, or two that make a mean and its spread."""

    key: str
    title: str
    unit: str = "accuracy, %"
    spread: str = ""


PANELS = (
    Panel("test_clean", "Clean accuracy, test images"),
    Panel("test_robust", "Robust accuracy, test images"),
    Panel("validation_clean", "Clean accuracy, held-out images"),
    Panel("validation_robust", "Robust accuracy, held-out images"),
    Panel("train_accuracy", "Accuracy in training"),
    Panel("loss", "Loss", "loss"),
    Panel("emr", "EMR penalty", "penalty, before its weight"),
    Panel("igr", "IGR penalty", "penalty, before its weight"),
    Panel("grad_align", "Gradient alignment", "1 - cosine, before its weight"),
    Panel("test_margin_mean", "Effective margin, test images", "margin (L2)", "test_margin_std"),
    Panel("train_margin_mean", "Effective margin, training images", "margin (L2)", "train_margin_std"),
)


def training(found: Findings) -> Parts:
    """A chart for each thing that any run measured."""
    if not found.runs:
        return []
    shown, left_out = first([run for run in found.runs if run.epochs], "run")
    figures = [figure for panel in PANELS if (figure := _training_figure(panel, shown, found)) is not None]
    legend = _legend((run.label for run in shown), found)
    return [*left_out, Figures(figures, legend), Table.of("Runs", found.runs, RUN_COLUMNS)]


def _training_figure(panel: Panel, runs: Sequence[Run], found: Findings) -> Figure | None:
    series = [_training_series(panel, run, found.color(run.label)) for run in runs if run.curve(panel.key)]
    if not series:
        return None
    said = "; ".join(f"{s.label}: {s.points[-1][1]:.4g} at epoch {s.points[-1][0]:g}" for s in series)
    text = Text(id=f"training-{panel.key}", title=panel.title, description=said, x="epoch", y=panel.unit)
    caption = "Band: one standard deviation over images." if any(line.spread for line in series) else ""
    return Figure(text.title, line_chart(text, series, percent=panel.unit.endswith("%")), caption)


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


def _epochs(run: Run) -> str:
    planned = "" if run.planned is None else f" of {run.planned}"
    return f"-{planned}" if run.unread else f"{run.done}{planned}"


def _state(run: Run) -> str:
    if run.finished:
        return "finished"
    if run.unread:
        return "not known"
    stopped = "unfinished or stopped early" if run.may_stop_early else "unfinished"
    return f"{stopped}, last line cut off" if run.cut_off else stopped


RUN_COLUMNS: Columns[Run] = [
    ("Run", lambda run: Entry(run.label, (str(run.folder),))),
    ("Epochs", _epochs),
    ("State", _state),
    ("Loss", lambda run: _four_digits(run.curve("loss")[-1][1]) if run.curve("loss") else None),
    ("Time", lambda run: duration(run.seconds)),
    ("Weights kept", lambda run: ", ".join(run.checkpoints) or None),
]


GRAY = 128


def galleries(found: Findings) -> Parts:
    """The examples of each evaluation that kept images, with their adversarial twins."""
    kept, left_out = first([(e.label, e.gallery) for e in found.evaluations if e.gallery and len(e.gallery.images)])
    return [*left_out, *(_gallery(label, gallery) for label, gallery in kept)]


def _gallery(label: str, found: Gallery) -> Examples:
    differences = found.adversarial.astype(np.int16) - found.images.astype(np.int16)
    gain = max(1, (GRAY - 1) // max(1, int(np.abs(differences).max())))
    amplified = np.clip(GRAY + gain * differences, 0, 255).astype(np.uint8)
    attack, _, eps = found.attack.partition("@")  # "pgd20", or "pgd20@8/255" where there are several eps
    attacked = f"Attacked with {attack_title(attack)}{f' at eps {eps}' if eps else ''}. " if attack else ""
    said = f"amplified {gain} times around gray" if gain > 1 else "shown around gray, as large as it is"
    examples = [_example(found, amplified[number], gain, number) for number in range(len(found.images))]
    return Examples(label, f"{attacked}The difference is {said}.", examples)


def _example(found: Gallery, difference: Bytes, gain: int, number: int) -> Example:
    label = int(found.labels[number])
    said, fooled = int(found.predictions[number]), int(found.adversarial_predictions[number])
    name = f"Example {number + 1}, class {label}"
    alt, caption = f"{name}: the difference", "difference"
    if gain > 1:
        alt, caption = f"{alt}, amplified {gain} times", f"{caption} \N{MULTIPLICATION SIGN}{gain}"
    pictures = [
        Picture(_png(found.images[number]), f"{name}: the image, called {said}", f"class {label}, called {said}"),
        Picture(_png(found.adversarial[number]), f"{name}: its adversarial twin, called {fooled}", f"called {fooled}"),
        Picture(_png(difference), alt, caption),
    ]
    return Example(pictures, fooled != label)


def _png(image: Bytes) -> str:
    """(C, H, W) bytes as a PNG inside the page."""
    pixels = image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0)
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(stream, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"
