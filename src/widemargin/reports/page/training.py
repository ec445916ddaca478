"""Training curves, all runs on the same axes, and how far each run is."""

from collections.abc import Sequence
from dataclasses import dataclass

from widemargin.reports.charts.frame import Text
from widemargin.reports.charts.lines import line_chart
from widemargin.reports.charts.series import Series
from widemargin.reports.inputs.run_folder import Epoch, Run
from widemargin.reports.inputs.search import Findings
from widemargin.reports.page.section import Figure, Section, first
from widemargin.reports.tables import Entry, Head, TextTable

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


def training(found: Findings) -> Section | None:
    """A chart for each thing that any run measured."""
    if not found.runs:
        return None
    shown, lines = first([run for run in found.runs if run.epochs], "run")
    return Section(
        id="training",
        title="Training",
        lines=lines,
        legend=[(run.label, found.color(run.label)) for run in shown],
        figures=[figure for panel in PANELS if (figure := _figure(panel, shown, found)) is not None],
        tables=[_table(found.runs)],
    )


def _figure(panel: Panel, runs: Sequence[Run], found: Findings) -> Figure | None:
    series = [_series(panel, run, found.color(run.label)) for run in runs if run.curve(panel.key)]
    if not series:
        return None
    said = "; ".join(f"{s.label}: {s.points[-1][1]:.4g} at epoch {s.points[-1][0]:g}" for s in series)
    text = Text(id=f"training-{panel.key}", title=panel.title, description=said, x="epoch", y=panel.unit)
    caption = "Band: one standard deviation over images." if any(line.spread for line in series) else ""
    return Figure(picture=line_chart(text, series, percent=panel.percent), title=panel.title, caption=caption)


def _series(panel: Panel, run: Run, color: int) -> Series:
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


def _table(runs: Sequence[Run]) -> TextTable:
    heads = [Head("Run"), *map(Head, ("Epochs", "State", "Loss", "Time", "Weights kept"))]
    return TextTable(title="Runs", heads=heads, rows=[(Entry(run.label, str(run.folder)), _row(run)) for run in runs])


def _row(run: Run) -> list[Entry]:
    planned = "" if run.planned is None else f" of {run.planned}"
    loss = run.curve("loss")
    return [
        Entry(f"-{planned}" if run.unread else f"{run.done}{planned}"),
        Entry(_state(run)),
        Entry(f"{loss[-1][1]:.4g}" if loss else "-"),
        Entry(duration(run.seconds)),
        Entry(", ".join(run.checkpoints) or "-"),
    ]


def _state(run: Run) -> str:
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
