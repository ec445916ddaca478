"""Alarms and notes: what makes the numbers doubtful or needs saying about them, before the numbers."""

from widemargin.reports.inputs.search import Findings
from widemargin.reports.page.section import Section, counted, listed
from widemargin.reports.tables import Entry, Head, TextTable


def alarms(found: Findings) -> Section | None:
    """Every alarm of every evaluation, or that there is none; then their notes."""
    checked = [evaluation for evaluation in found.evaluations if evaluation.alarms is not None]
    if not found.evaluations:
        return None
    rung = [(evaluation.label, alarm) for evaluation in checked for alarm in evaluation.alarms or ()]
    unchecked = [evaluation.label for evaluation in found.evaluations if evaluation.alarms is None]
    lines = [f"No alarms in {counted(len(checked), 'evaluation')}."] if checked and not rung else []
    if unchecked:
        lines.append(f"Not checked for alarms: {listed(unchecked)}.")
    lines += [f"{evaluation.label}: {note}" for evaluation in found.evaluations for note in evaluation.notes]
    rows = [(Entry(label), [Entry(a.name), Entry(a.message), Entry(a.suggestion)]) for label, a in rung]
    heads = [Head("Evaluation"), Head("Alarm"), Head("What was seen"), Head("What it suggests")]
    tables = [TextTable(title="Alarms", heads=heads, rows=rows, words=True)] if rung else []
    return Section(
        id="alarms", title="Alarms", lines=lines, tables=tables, template="alarms.html", more={"alarms": rung}
    )
