"""The leaderboard: a row a model, and of every model the few numbers that one asks for first.

Clean accuracy, AutoAttack and the strongest PGD at the size of attack it was made for, the median distance of an
adversarial image, the median radius that is proven. What was judged in several evaluations (an attack here, a distance
there) is one model, by the run or the weights they share; runs of one configuration that differ in their seed alone are
one row: their mean and its 95% interval by Student's t. With one seed the interval is Wilson's, over the images.
"""

import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from widemargin.evaluation.comparison import student_t, wilson
from widemargin.evaluation.folder import Evaluation, Radius
from widemargin.report.compare import Reference, References, differences, settings_of
from widemargin.report.findings import Findings, owners_of
from widemargin.report.page import Parts
from widemargin.report.runs import Run
from widemargin.report.tables import Columns, Entry, Head, Table
from widemargin.report.wording import attack_title, counted, norm_title

AUTOATTACK, CLEAN = "autoattack", "clean"
FEW = 100
"""An interval of fewer images says nothing that its width would not."""
Threat = tuple[str, Radius]


@dataclass(frozen=True)
class Model:
    """One trained network, and all that judged it."""

    evaluations: Sequence[Evaluation]
    run: Run | None

    @property
    def settings(self) -> Mapping[str, Any]:
        """The configuration it was trained with, where it is known."""
        return next((found for e in self.evaluations if (found := settings_of(e, self.run))), {})

    @property
    def name(self) -> str:
        """Its recipe's, or its label."""
        return next((e.name for e in self.evaluations if e.name), None) or self.evaluations[0].label

    @property
    def threat(self) -> Threat | None:
        """That of its own configuration, if it was attacked so; else the first of the evaluation with most attacks."""
        plan = self.settings.get("evaluation") or {}
        attacked = [e for e in self.evaluations if e.eps and set(e.accuracy) - {CLEAN}]
        for e in attacked:
            for radius in e.eps:
                if e.norm == plan.get("norm", "linf") and str(plan.get("eps")) in (radius.written, f"{radius.value:g}"):
                    return e.norm, radius
        most = max(attacked, key=lambda e: len(e.accuracy), default=None)
        return None if most is None else (most.norm, most.eps[0])

    def judged(self, wanted: Callable[[str], bool]) -> Iterable[tuple[str, float, Evaluation]]:
        """(attack, accuracy, evaluation) of the attacks wanted, at the model's threat; most images first."""
        for e in sorted(self.evaluations, key=lambda e: -(e.count or 0)):
            for written, accuracy in e.accuracy.items():
                attack, radius = e.radius_of(written)
                same = attack == CLEAN or (radius is not None and self.threat == (e.norm, radius))
                if same and wanted(attack):
                    yield attack, accuracy, e


@dataclass(frozen=True)
class Number:
    """What one model has in one column: a value, of how many images, and what else must be said of it."""

    value: float
    images: int | None = None
    said: str = ""


@dataclass(frozen=True)
class Standing:
    """One row: the seeds of one configuration."""

    label: str
    data: str
    threat: str
    models: Sequence[Model]
    differs: str


def ranking(found: Findings, references: References) -> Parts:
    """A table with a row a model; nothing where nothing was judged."""
    rows = standings(models(found), references)
    if not rows:
        return []
    known = [column for column in NUMBERS if any(mean_of(row, column) is not None for row in rows)]
    columns: Columns[Standing] = [
        ("Model", _name),
        (Head("Data", minor=True), lambda row: row.data),
        (Head("Threat", minor=True), lambda row: row.threat or None),
        *((column.head, partial(_entry, column, _best(rows, column))) for column in known),
    ]
    if any(row.differs for row in rows):
        columns = [*columns, (Head("Differs from its recipe", minor=True), lambda row: row.differs or None)]
    return [Table.of("Leaderboard", rows, columns, notes=[NOTE], kind="ranking")]


NOTE = (
    "Below a number: its 95% interval (Wilson's over the images; over seeds, where there are several, Student's t), or "
    "what it is of. In bold: the best on the same data under the same threat."
)


def models(found: Findings) -> list[Model]:
    """The networks that were judged, each once."""
    owned = list(zip(found.evaluations, owners_of(found.evaluations, found.runs), strict=True))
    jobs = {e.folder.resolve() for e in found.evaluations if e.kind == "reproduction"}
    groups: dict[object, list[tuple[Evaluation, Run | None]]] = defaultdict(list)
    for e, run in owned:
        if not e.accuracy and e.distance is None:
            continue
        place = e.folder.resolve()
        job = next((above for above in (place, *place.parents) if above in jobs), None)
        key = job or (run.folder.resolve() if run is not None else e.checkpoint or place)
        groups[key, e.data, e.split].append((e, run))
    return [Model([e for e, _ in members], members[0][1]) for members in groups.values()]


def standings(judged: Sequence[Model], references: References) -> list[Standing]:
    """The rows, in the order of AutoAttack, then of the strongest PGD, then of clean accuracy."""
    groups: dict[str, list[Model]] = defaultdict(list)
    for number, model in enumerate(judged):
        trained = {key: value for key, value in model.settings.items() if key != "seed"}
        first = model.evaluations[0]
        quick = any(e.quick for e in model.evaluations)
        alone = number if not trained else None
        key = [trained, alone, model.name, first.data, first.split, quick, str(model.threat)]
        groups[json.dumps(key, sort_keys=True, default=str)].append(model)
    rows = [_standing(members, references.get(members[0].name)) for members in groups.values()]
    called = Counter((row.label, row.data, row.threat) for row in rows)
    alike = [called[row.label, row.data, row.threat] > 1 for row in rows]
    rows = [
        replace(row, label=row.models[0].evaluations[0].label) if twice else row
        for row, twice in zip(rows, alike, strict=True)
    ]
    return sorted(rows, key=_rank)


def _standing(members: Sequence[Model], reference: Reference | None) -> Standing:
    model, first = members[0], members[0].evaluations[0]
    quick = "quick " if any(e.quick for e in model.evaluations) else ""
    label = f"{quick}{model.name}" if len(members) > 1 or first.name else first.label
    threat = "" if model.threat is None else f"{norm_title(model.threat[0])} {model.threat[1].written}"
    split = "" if first.split == "test" else f", {first.split}"
    changed = [said for said in differences(model.settings, reference) if said.startswith("changed from")]
    differs = changed[0].partition(": ")[2] if changed else ""
    return Standing(label, f"{first.data}{split}", threat, members, differs)


def _rank(row: Standing) -> tuple[object, ...]:
    values = [mean_of(row, column) for column in NUMBERS]
    clean, autoattack, pgd, *_ = (-1.0 if value is None else value for value in values)
    return row.data, row.threat, -autoattack, -pgd, -clean


def clean(model: Model) -> Number | None:
    """Accuracy without an attack."""
    return next((Number(value, e.count) for _, value, e in model.judged(lambda name: name == CLEAN)), None)


def autoattack(model: Model) -> Number | None:
    """Under the whole of AutoAttack."""
    return next((Number(value, e.count) for _, value, e in model.judged(lambda name: name == AUTOATTACK)), None)


def strongest_pgd(model: Model) -> Number | None:
    """The lowest accuracy under any FGSM or PGD."""
    found = [(v, e, n) for n, v, e in model.judged(lambda name: re.match(r"(fgsm|pgd)", name) is not None)]
    if not found:
        return None
    value, e, name = min(found, key=lambda one: one[0])
    return Number(value, e.count, attack_title(name))


def distance(model: Model) -> Number | None:
    """The median distance of an adversarial image, over correctly classified images."""
    for e in model.evaluations:
        if e.distance is not None and e.distance.median is not None:
            return Number(e.distance.median, None, f"{norm_title(e.norm)}, {counted(e.distance.count, 'image')}")
    return None


def certified(model: Model) -> Number | None:
    """The median radius that is proven."""
    for e in model.evaluations:
        if e.certified is not None and e.certified.median is not None:
            return Number(e.certified.median, None, f"{norm_title(e.norm)}, {counted(e.certified.count, 'image')}")
    return None


@dataclass(frozen=True)
class Column:
    """A number that every model may have."""

    head: Head
    number: Callable[[Model], Number | None]
    is_share: bool = True

    def text(self, value: float) -> str:
        """As it is printed."""
        return f"{value:.2f}" if self.is_share else f"{value:.4g}"


NUMBERS = (
    Column(Head("Clean", "%"), clean),
    Column(Head("AutoAttack", "%"), autoattack),
    Column(Head("Strongest PGD", "%"), strongest_pgd),
    Column(Head("Distance found", "median"), distance, is_share=False),
    Column(Head("Certified", "median"), certified, is_share=False),
)


def mean_of(row: Standing, column: Column) -> float | None:
    """Over the seeds that have it."""
    values = [found.value for model in row.models if (found := column.number(model)) is not None]
    return statistics.fmean(values) if values else None


def _best(rows: Sequence[Standing], column: Column) -> Mapping[tuple[str, str], str]:
    """By data and threat: the highest number as it is printed, where there are several to choose from."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if (mean := mean_of(row, column)) is not None:
            groups[row.data, row.threat].append(mean)
    return {key: column.text(max(values)) for key, values in groups.items() if len(values) > 1}


def _name(row: Standing) -> Entry:
    alarms = {alarm.name for model in row.models for e in model.evaluations for alarm in e.alarms or ()}
    said = [counted(len(row.models), "seed")] if len(row.models) > 1 else []
    if alarms:
        said.append(f"alarms: {', '.join(sorted(alarms))}")
    if any(not e.finished for model in row.models for e in model.evaluations):
        said.append("unfinished")
    return Entry(row.label, tuple(said))


def _entry(column: Column, best: Mapping[tuple[str, str], str], row: Standing) -> Entry | None:
    found = [number for model in row.models if (number := column.number(model)) is not None]
    if not found:
        return None
    values = [number.value for number in found]
    said = [found[0].said] if found[0].said and len({number.said for number in found}) == 1 else []
    if len(values) > 1:
        half = student_t(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
        said.insert(0, f"± {half:.2f}" if column.is_share else f"± {half:.2g}")
    elif column.is_share and (images := found[0].images) and images >= FEW:
        low, high = wilson(round(values[0] * images / 100), images)
        said.insert(0, f"{low:.1f} to {high:.1f}")
    if len(values) < len(row.models):
        said.append(f"of {counted(len(values), 'seed')}")
    text = column.text(statistics.fmean(values))
    return Entry(text, tuple(said), best=best.get((row.data, row.threat)) == text)
