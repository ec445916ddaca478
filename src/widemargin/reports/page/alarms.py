"""Alarms and notes: what makes the numbers doubtful or needs saying about them, before the numbers."""

from collections.abc import Sequence

from widemargin.alarm_meanings import meaning_of
from widemargin.reports.inputs.evaluation import Alarm
from widemargin.reports.inputs.run_folder import Run
from widemargin.reports.inputs.search import Findings
from widemargin.reports.page.section import Section, counted, listed
from widemargin.reports.tables import Entry, Head, TextTable

Rung = Sequence[tuple[str, Alarm]]
"""Alarms, each with whose it is."""


def alarms(found: Findings) -> Section | None:
    """Every alarm of every evaluation, or that there is none; those of training; then the evaluations' notes."""
    checked = [evaluation for evaluation in found.evaluations if evaluation.alarms is not None]
    warned = [run for run in found.runs if run.alarms]
    if not found.evaluations and not warned:
        return None
    rung = [(evaluation.label, alarm) for evaluation in checked for alarm in evaluation.alarms or ()]
    unchecked = [evaluation.label for evaluation in found.evaluations if evaluation.alarms is None]
    lines = [f"No alarms in {counted(len(checked), 'evaluation')}."] if checked and not rung else []
    if unchecked:
        lines.append(f"Not checked for alarms: {listed(unchecked)}.")
    lines += [f"{evaluation.label}: {note}" for evaluation in found.evaluations for note in evaluation.notes]
    tables = [_table(rung)] if rung else []
    tables += [_training_table(warned)] if warned else []
    more = {"alarms": [*rung, *_gathered(warned)]}
    return Section(id="alarms", title="Alarms", lines=lines, tables=tables, template="alarms.html", more=more)


def _table(rung: Rung) -> TextTable:
    heads = [Head("Evaluation"), Head("Alarm"), Head("What was seen"), Head("What it suggests")]
    rows = [(Entry(label), [Entry(a.name), Entry(a.message), Entry(a.suggestion)]) for label, a in rung]
    return TextTable(title="Alarms", heads=heads, rows=rows, words=True)


def _training_table(runs: Sequence[Run]) -> TextTable:
    heads = [Head("Run"), Head("Epoch"), Head("Alarm"), Head("What it means"), Head("What it suggests")]
    told = [(run.label, alarm, meaning_of(alarm.name)) for run in runs for alarm in run.alarms]
    rows = [
        (Entry(label), [Entry(str(a.epoch)), Entry(a.name), Entry(m.message), Entry(m.suggestion)])
        for label, a, m in told
    ]
    return TextTable(title="Alarms in training", heads=heads, rows=rows, words=True)


def _gathered(runs: Sequence[Run]) -> Rung:
    """Each alarm of training once, with the runs and the epochs that raised it."""
    whose: dict[str, list[str]] = {}
    for run in runs:
        for alarm in run.alarms:
            whose.setdefault(alarm.name, []).append(f"{run.label} (epoch {alarm.epoch})")
    meanings = {name: meaning_of(name) for name in whose}
    return [
        (f"training of {listed(whose[name])}", Alarm(name, meaning.message, meaning.suggestion))
        for name, meaning in meanings.items()
    ]
