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

from widemargin.errors import InputError
from widemargin.evaluation.comparison import student_t, wilson
from widemargin.evaluation.folder import Evaluation, Radius
from widemargin.report.compare import Reference, References, differs_from, settings_of
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

    def class_shares(self) -> Iterable[tuple[str, float, Sequence[float | None]]]:
        """(attack, accuracy, accuracy by class), the same."""
        for e in self.evaluations:
            for written, shares in e.classes.items():
                attack, radius = e.radius_of(written)
                if written in e.accuracy and (attack == CLEAN or self.threat == (e.norm, radius)):
                    yield attack, e.accuracy[written], shares


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


def ranking(found: Findings, references: References, wanted: Sequence[str] | None = None) -> Parts:
    """A table with a row a model; nothing where nothing was judged. ``wanted`` columns, or all that say something."""
    rows = standings(models(found), references)
    if not rows:
        return []
    every: dict[str, tuple[Head, Callable[[Standing], str | Entry | None]]] = {
        "data": (Head("Data", minor=wanted is None), lambda row: row.data),
        "threat": (Head("Threat", minor=wanted is None), lambda row: row.threat or None),
        **{name: (column.head, partial(_entry, column, _best(rows, column))) for name, column in NUMBERS.items()},
        "differs": (Head("Differs from its recipe", minor=wanted is None), lambda row: row.differs or None),
    }
    check_columns(wanted or ())
    said = [name for name, (_, entry) in every.items() if any(entry(row) is not None for row in rows)]
    columns: Columns[Standing] = [("Model", _name), *(every[name] for name in wanted or said)]
    return [Table.of("Leaderboard", rows, columns, notes=[NOTE], kind="ranking")]


def check_columns(wanted: Sequence[str]) -> None:
    """Refuse what is no column of the leaderboard."""
    for name in wanted:
        if name not in COLUMNS or list(wanted).count(name) > 1:
            raise InputError(f"--columns: {name!r} is given twice or is no column; there are {', '.join(COLUMNS)}")


def numbers_of(found: Findings, references: References, wanted: Sequence[str]) -> Table:
    """The same table for machines: each number with the ends of its interval, unrounded, in columns of their own."""
    rows = standings(models(found), references)
    words = {"data": lambda row: row.data, "threat": lambda row: row.threat, "differs": lambda row: row.differs}
    heads, entries = [Head("model"), Head("seeds")], [[Entry(r.label), Entry(str(len(r.models)))] for r in rows]
    for name in wanted:
        column = NUMBERS.get(name)
        heads += [Head(name)] if column is None else [Head(name), Head(f"{name}_low"), Head(f"{name}_high")]
        for cells, row in zip(entries, rows, strict=True):
            if column is None:
                cells.append(Entry(words[name](row)))
                continue
            found_numbers = [number for model in row.models if (number := column.number(model)) is not None]
            mean, half = mean_of(row, column), interval(column, found_numbers)
            cells += [Entry("" if value is None else f"{value:.6g}") for value in (mean, *(half or (None, None)))]
    return Table(title="Leaderboard", heads=heads, rows=entries)


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
    return Standing(label, f"{first.data}{split}", threat, members, differs_from(model.settings, reference))


def _rank(row: Standing) -> tuple[object, ...]:
    values = [mean_of(row, column) for column in NUMBERS.values()]
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


NUMBERS = {
    "clean": Column(Head("Clean", "%"), clean),
    "autoattack": Column(Head("AutoAttack", "%"), autoattack),
    "pgd": Column(Head("Strongest PGD", "%"), strongest_pgd),
    "distance": Column(Head("Distance found", "median"), distance, is_share=False),
    "certified": Column(Head("Certified", "median"), certified, is_share=False),
}
COLUMNS = ("data", "threat", *NUMBERS, "differs")
"""By the names in which a person asks for them."""


def mean_of(row: Standing, column: Column) -> float | None:
    """Over the seeds that have it."""
    values = [found.value for model in row.models if (found := column.number(model)) is not None]
    return statistics.fmean(values) if values else None


def interval(column: Column, found: Sequence[Number]) -> tuple[float, float] | None:
    """The ends of the 95% interval: over the seeds, or of one over its images; None where neither says anything."""
    values = [number.value for number in found]
    if len(values) > 1:
        half = student_t(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
        return statistics.fmean(values) - half, statistics.fmean(values) + half
    if values and column.is_share and (images := found[0].images) and images >= FEW:
        return wilson(round(values[0] * images / 100), images)
    return None


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
    if (ends := interval(column, found)) is not None:
        half = (ends[1] - ends[0]) / 2
        over_seeds = f"± {half:.2f}" if column.is_share else f"± {half:.2g}"
        said.insert(0, over_seeds if len(values) > 1 else f"{ends[0]:.1f} to {ends[1]:.1f}")
    if len(values) < len(row.models):
        said.append(f"of {counted(len(values), 'seed')}")
    text = column.text(statistics.fmean(values))
    return Entry(text, tuple(said), best=best.get((row.data, row.threat)) == text)
