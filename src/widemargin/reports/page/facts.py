"""What a reader must know about each evaluation: which weights, which attack exactly, on what, with what."""

from collections.abc import Callable

from widemargin.reports.inputs.evaluation import Evaluation
from widemargin.reports.inputs.search import Findings
from widemargin.reports.measures import attack_title, norm_title
from widemargin.reports.page.section import Section
from widemargin.reports.page.training import duration
from widemargin.reports.tables import Entry, Head, TextTable

Fact = Callable[[Evaluation], str]
MOST = 100
"""A table of more columns is none that anybody reads."""


def facts(found: Findings) -> Section | None:
    """A column for each evaluation; facts that nobody states are left out."""
    if not found.evaluations:
        return None
    shown = found.evaluations[:MOST]
    lines = [f"Of the first {MOST} of {len(found.evaluations):,} evaluations."] if len(found.evaluations) > MOST else []
    rows = [(Entry(name), [Entry(fact(e) or "-") for e in shown]) for name, fact in FACTS.items()]
    stated = [(name, entries) for name, entries in rows if any(entry.text != "-" for entry in entries)]
    heads = [Head("Fact"), *(Head(evaluation.label) for evaluation in shown)]
    table = TextTable(title="What was evaluated, and how", heads=heads, rows=stated, words=True)
    return Section(id="facts", title="What was evaluated, and how", lines=lines, tables=[table])


def _weights(evaluation: Evaluation) -> str:
    epoch = f", epoch {evaluation.epoch}" if evaluation.epoch is not None else ""
    return f"{evaluation.weights}{epoch}" if evaluation.weights else epoch.removeprefix(", ")


def _data(evaluation: Evaluation) -> str:
    count = f", {evaluation.count:,} images" if evaluation.count is not None else ""
    return f"{evaluation.data}, {evaluation.split}{count}" if evaluation.data else count.removeprefix(", ")


def _eps(evaluation: Evaluation) -> str:
    return "; ".join(
        f"{radius.written} = {radius.value:.6f}" if "/" in radius.written else radius.written
        for radius in evaluation.eps
    )


def _step_size(evaluation: Evaluation) -> str:
    if not any(name.startswith("pgd") for name in evaluation.attacks):
        return ""
    return "eps/4" if evaluation.step_size is None else f"{evaluation.step_size:.6g}"


def _attacks(evaluation: Evaluation) -> str:
    return ", ".join(attack_title(name) for name in evaluation.attacks)


def _shards(evaluation: Evaluation) -> str:
    sizes = (("shards of", evaluation.shard_size), ("batches of", evaluation.batch_size))
    return ", ".join(f"{name} {size:,}" for name, size in sizes if size is not None)


def _seconds(evaluation: Evaluation) -> str:
    return ", ".join(f"{attack_title(name)} {duration(value)}" for name, value in evaluation.seconds.items())


FACTS: dict[str, Fact] = {
    "Target": lambda evaluation: evaluation.target,
    "Recipe": lambda evaluation: evaluation.name or "",
    "Weights": _weights,
    "Chosen": lambda evaluation: evaluation.selection,
    "Data": _data,
    "State": lambda evaluation: "finished" if evaluation.finished else "unfinished",
    "Attacks": _attacks,
    "Norm": lambda evaluation: norm_title(evaluation.norm),
    "Eps": _eps,
    "PGD step size": _step_size,
    "Seed": lambda evaluation: "" if evaluation.seed is None else str(evaluation.seed),
    "Cut into": _shards,
    "Device": lambda evaluation: evaluation.device,
    "Precision": lambda evaluation: evaluation.precision,
    "Versions": lambda evaluation: ", ".join(f"{name} {version}" for name, version in evaluation.versions.items()),
    "Time": _seconds,
    "File": lambda evaluation: str(evaluation.file),
}
