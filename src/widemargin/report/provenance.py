"""What a reader must know beside the numbers: what could not be shown, what puts them in doubt, how they were made."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from widemargin.evaluation.folder import Evaluation
from widemargin.report.findings import Findings
from widemargin.report.page import Alarms, Parts, Sentence
from widemargin.report.tables import Columns, Entry, Head, Table
from widemargin.report.wording import attack_title, counted, duration, listed, norm_title
from widemargin.training.alarms import meaning_of
from widemargin.types import Alarm

FAULTS = 200


def faults(found: Findings) -> Parts:
    """The files that could not be shown, and why."""
    sentences = [Sentence(f"This file could not be shown: {fault}.") for fault in found.faults[:FAULTS]]
    more = len(found.faults) - FAULTS
    return [*sentences, Sentence(f"And {more:,} more could not be shown.")] if more > 0 else sentences


OwnedAlarm = tuple[str, Alarm]
"""An alarm, and whose it is."""
TrainingAlarm = tuple[str, int, Alarm]
"""The same with its epoch in between."""


def alarms(found: Findings) -> Parts:
    """Every alarm of every evaluation, or that there is none; those of training; then the evaluations' notes."""
    trained = [(run.label, raised.epoch, meaning_of(raised.name)) for run in found.runs for raised in run.alarms]
    if not found.evaluations and not trained:
        return []
    checked = [evaluation for evaluation in found.evaluations if evaluation.alarms is not None]
    unchecked = [evaluation.label for evaluation in found.evaluations if evaluation.alarms is None]
    raised = [(evaluation.label, alarm) for evaluation in checked for alarm in evaluation.alarms or ()]
    sentences = [Sentence(f"No alarms in {counted(len(checked), 'evaluation')}.", "calm")] if checked else []
    sentences = [] if raised else sentences
    if unchecked:
        sentences.append(Sentence(f"Not checked for alarms: {listed(unchecked)}.", "note"))
    notes = [Sentence(f"{e.label}: {note}", "note") for e in found.evaluations for note in e.notes]
    tables = [Table.of("Alarms", raised, ALARM_COLUMNS, kind="words")] if raised else []
    if trained:
        tables.append(Table.of("Alarms in training", trained, TRAINING_ALARM_COLUMNS, kind="words"))
    shown = [*raised, *_once_each(trained)]
    return [*([Alarms(shown, tables)] if shown else []), *sentences, *notes]


def _once_each(trained: Sequence[TrainingAlarm]) -> list[OwnedAlarm]:
    """Each alarm of training with all the runs and epochs that raised it."""
    whose = defaultdict(list)
    for label, epoch, alarm in trained:
        whose[alarm].append(f"{label} (epoch {epoch})")
    return [(f"training of {listed(runs)}", alarm) for alarm, runs in whose.items()]


ALARM_COLUMNS: Columns[OwnedAlarm] = [
    ("Evaluation", lambda row: row[0]),
    ("Alarm", lambda row: row[1].name),
    ("What was seen", lambda row: row[1].message),
    ("What it suggests", lambda row: row[1].suggestion),
]
TRAINING_ALARM_COLUMNS: Columns[TrainingAlarm] = [
    ("Run", lambda row: row[0]),
    ("Epoch", lambda row: str(row[1])),
    ("Alarm", lambda row: row[2].name),
    ("What it means", lambda row: row[2].message),
    ("What it suggests", lambda row: row[2].suggestion),
]
MOST = 100
"""A table of more columns is none that anybody reads."""


def facts(found: Findings) -> Parts:
    """A column for each evaluation; facts that nobody states are left out."""
    if not found.evaluations:
        return []
    shown = found.evaluations[:MOST]
    rows = [(name, [fact(evaluation) for evaluation in shown]) for name, fact in FACTS.items()]
    table = Table(
        title=FACTS_TITLE,
        heads=[Head("Fact"), *(Head(evaluation.label) for evaluation in shown)],
        rows=[[Entry(name), *(Entry(text or "-") for text in texts)] for name, texts in rows if any(texts)],
        kind="words",
    )
    if len(found.evaluations) <= MOST:
        return [table]
    return [Sentence(f"Of the first {MOST} of {len(found.evaluations):,} evaluations."), table]


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _data(evaluation: Evaluation) -> str:
    count = "" if evaluation.count is None else f"{evaluation.count:,} images"
    return _joined(evaluation.data, evaluation.split if evaluation.data else "", count)


def _step_size(evaluation: Evaluation) -> str:
    if not any(name.startswith("pgd") for name in evaluation.attacks):
        return ""
    return "eps/4" if evaluation.step_size is None else f"{evaluation.step_size:.6g}"


def _cut_into(evaluation: Evaluation) -> str:
    sizes = (("shards of", evaluation.shard_size), ("batches of", evaluation.batch_size))
    return _joined(*(f"{name} {size:,}" for name, size in sizes if size is not None))


FACTS_TITLE = "What was evaluated, and how"
FACTS: Mapping[str, Callable[[Evaluation], str]] = {
    "Target": lambda e: e.target,
    "Recipe": lambda e: e.name or "",
    "Weights": lambda e: _joined(e.weights, "" if e.epoch is None else f"epoch {e.epoch}"),
    "Chosen": lambda e: e.selection,
    "Data": _data,
    "State": lambda e: "finished" if e.finished else "unfinished",
    "Attacks": lambda e: ", ".join(map(attack_title, e.attacks)),
    "Norm": lambda e: norm_title(e.norm),
    "Eps": lambda e: "; ".join(f"{r.written} = {r.value:.6f}" if "/" in r.written else r.written for r in e.eps),
    "PGD step size": _step_size,
    "Seed": lambda e: "" if e.seed is None else str(e.seed),
    "Cut into": _cut_into,
    "Device": lambda e: e.device,
    "Precision": lambda e: e.precision,
    "Versions": lambda e: ", ".join(f"{name} {version}" for name, version in e.versions.items()),
    "Time": lambda e: ", ".join(f"{attack_title(name)} {duration(value)}" for name, value in e.seconds.items()),
    "File": lambda e: str(e.file),
}
