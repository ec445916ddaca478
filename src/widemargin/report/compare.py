"""Our numbers beside the published ones: mean over seeds, the paper's, the difference.

What a named run is held against: its recipe's settings and the published numbers, handed in by the caller.

In which settings a run differs from its recipe, written as the ``--set`` options that make the difference.

What a reader must know before comparing a row: unfinished, on few images, unlike its recipe, of another size.

The columns of the results: an attack at one size, or a margin in one norm.

The results: a row for each evaluation (or run that has none yet), a column for each measure, the paper beside.

What a later judgment of a job found, in one line: distances, accuracy over eps, or AutoAttack at another eps.
"""

import copy
import json
import math
import re
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from widemargin.core.records import shortened
from widemargin.core.schema import LiteralFloat
from widemargin.errors import InputError
from widemargin.evaluation.folder import Evaluation, Radius
from widemargin.report.findings import Findings, Run, owners_of, unique

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One number of ours, where we have it, and the paper's, where it has one."""

    ours: float | None
    spread: float | None
    """The standard deviation over seeds, with two seeds or more."""
    paper: float | None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.ours is None or self.paper is None else self.ours - self.paper

    def text(self) -> str:
        """Ours ± spread / paper's (difference)."""
        spread = "" if self.spread is None else f"±{self.spread:.2f}"
        ours = "-" if self.ours is None else f"{self.ours:.2f}{spread}"
        paper = "-" if self.paper is None else f"{self.paper:.2f}"
        difference = "" if self.difference is None else f" ({signed(self.difference)})"
        return f"{ours} / {paper}{difference}"


def signed(difference: float) -> str:
    """With its sign and two places; what rounds to nothing is not below."""
    return f"{round(difference, 2) + 0.0:+.2f}"


def compare(columns: Sequence[str], published: Mapping[str, Any], results: Sequence[Result]) -> dict[str, Cell]:
    """A cell for each column of the table."""
    return {
        column: _comparison_cell([_ours(column, result) for result in results], published.get(column))
        for column in columns
    }


def _comparison_cell(ours: list[float | None], paper: Any) -> Cell:
    found = [value for value in ours if value is not None]
    return Cell(
        ours=statistics.fmean(found) if found else None,
        spread=statistics.stdev(found) if len(found) > 1 else None,
        paper=paper[0] if isinstance(paper, list) else paper,
    )


def _ours(column: str, result: Result) -> float | None:
    if column.startswith("margin_"):
        mean: float | None = result[column]["mean"]
        return mean
    accuracy: dict[str, float] = result["accuracy"]
    if column == "pgd":  # the table of both networks: each row's own PGD
        return next((value for name, value in accuracy.items() if name.startswith("pgd")), None)
    return accuracy.get(column)


def markdown(title: str, columns: Sequence[str], rows: Sequence[tuple[str, dict[str, Cell]]], note: str = "") -> str:
    """The comparison as a Markdown table."""
    lines = [f"## {title}", "", "ours / paper (difference)" + (f". {note}" if note else ""), ""]
    lines += [f"| row | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines += [f"| {name} | {' | '.join(cells[column].text() for column in columns)} |" for name, cells in rows]
    return "\n".join(lines) + "\n"


Table = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One recipe: ``settings`` as in ``config.toml``, ``results`` by column (percent; margins as mean and std)."""

    settings: Table
    results: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    """Where the numbers stand, such as "table 3, AT+EMR"."""
    note: str = ""

    @property
    def plan(self) -> Table:
        """How the recipe is judged."""
        plan: Table = self.settings.get("evaluation", {})
        return plan

    def number(self, column: str) -> float | None:
        """A published number; of a margin its mean."""
        value = self.results.get(column)
        return value[0] if isinstance(value, list) else value

    def attacked(self, attack: str, *, norm: str, eps: float, step: float | None) -> float | None:
        """The published accuracy under an attack, if it was this one: at another eps or with another step it is not."""
        if norm != self.plan.get("norm", "linf") or not self.same_eps(eps):
            return None
        if attack.startswith("pgd") and not self.same_step(step, eps):
            return None
        generic = "pgd" if attack in self.plan.get("attacks", ()) and attack.startswith("pgd") else attack
        return self.number(attack) if attack in self.results else self.number(generic)

    def same_eps(self, eps: float) -> bool:
        """Whether the recipe is judged at this eps."""
        ours = as_number(self.plan.get("eps"))
        return ours is not None and math.isclose(ours, eps, rel_tol=1e-6)

    def same_step(self, step: float | None, eps: float) -> bool:
        """Whether the recipe's PGD has this step; None stands for eps/4, and 0.0078 is as good as 2/255."""
        return math.isclose(step or eps / 4, self.step or eps / 4, rel_tol=0.02)

    @property
    def step(self) -> float | None:
        """The step of the recipe's PGD."""
        return as_number(self.plan.get("step_size"))


def as_number(value: Any) -> float | None:
    """A number, or one written as "8/255"."""
    try:
        return None if value is None else float(LiteralFloat(value))
    except (InputError, TypeError):
        return None


ChangesTable = Mapping[str, Any]


def changes(settings: ChangesTable, recipe: ChangesTable) -> list[str]:
    """``["epochs=3", "model.hidden=[64]"]``: what turns the recipe into these settings."""
    return _changes(settings, {key: value for key, value in recipe.items() if key != "name"}, "")


def _changes(ours: ChangesTable, theirs: ChangesTable, prefix: str) -> list[str]:
    found = []
    for key in [*theirs, *(key for key in ours if key not in theirs)]:
        mine, other = ours.get(key), theirs.get(key)
        if mine == other or (prefix + key) == "name":
            continue
        if mine is None:
            found.append(f"{prefix}{key}=none")
        elif isinstance(mine, dict) and isinstance(other, dict) and mine.get("kind") == other.get("kind"):
            found += _changes(mine, other, f"{prefix}{key}.")
        else:
            found.append(f"{prefix}{key}={toml_value(mine)}")
    return found


def toml_value(value: Any) -> str:
    """A value as TOML writes it on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, bool | str):
        return json.dumps(value)
    if value is None:
        return "none"
    return repr(value) if isinstance(value, int | float) else str(value)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def lead_to(overrides: list[str], recipe: ChangesTable, settings: ChangesTable) -> bool:
    """Whether the recipe with these overrides is the run indeed."""
    table = copy.deepcopy(dict(recipe))
    for override in overrides:
        path, _, text = override.partition("=")
        *above, last = path.split(".")
        inside = table
        for key in above:
            inside = inside.setdefault(key, {})
            if not isinstance(inside, dict):
                return False
        if text == "none":
            inside.pop(last, None)
            continue
        try:
            inside[last] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:  # what JSON or a date cannot say in TOML's words
            return False
    return table == dict(settings)


MANY = 4
HARMLESS = ("seed=", "watch.", "evaluation.")
"""Changes of these leave the trained model what it is (the seed is named elsewhere)."""
TEST_IMAGES = {
    "mnist-embedded": 3_000,
    "mnist": 10_000,
    "fashion-mnist": 10_000,
    "cifar10-embedded": 60,
    "cifar10": 10_000,
}
"""How many the data sets have: evaluations of earlier versions did not say."""


def notes_of_evaluation(evaluation: Evaluation, run: Run | None, reference: Reference | None) -> list[str]:
    """What must be known of an evaluation, its run and its recipe."""
    notes = [] if evaluation.finished else [f"unfinished: {evaluation.count or 0:,} examples so far"]
    if evaluation.quick:
        notes.append("made quick: a short run and short attacks, not to be compared")
    if run is not None:
        notes += state(run)
    notes += _fewer_images(evaluation)
    notes += differences(settings_of(evaluation, run), reference)
    if evaluation.quick:
        return notes
    if reference is not None and (why := why_not_compared(evaluation, run, reference)):
        return [*notes, f"{why}, so it is not compared with the paper"]
    return notes + _other_size(evaluation, reference) + _other_step(evaluation, reference)


def why_not_compared(evaluation: Evaluation, run: Run | None, reference: Reference) -> str:
    """What makes the published numbers no comparison at all; empty where they are one."""
    if evaluation.quick:
        return "it was made quick"
    if not settings_of(evaluation, run):
        return "its configuration is not known"
    if evaluation.split != "test":
        return "it was judged on held-out images"
    published = reference.settings.get("data", {}).get("name", "")
    if evaluation.data and published and evaluation.data != published:
        return f"it was judged on {evaluation.data}, its recipe's data is {published}"
    return trained_less(settings_of(evaluation, run), reference)


def trained_less(settings: Mapping[str, object], reference: Reference) -> str:
    """What makes a run too small to be held against its recipe; empty where nothing does."""
    ours, theirs = settings.get("epochs"), reference.settings.get("epochs", 0)
    if isinstance(ours, int) and 2 * ours < theirs:
        return f"it was trained for {ours:,} epoch{'s' * (ours != 1)}, its recipe for {theirs:,}"
    limit, theirs = (_data(table).get("train_limit") for table in (settings, reference.settings))
    return f"it was trained on {limit:,} images alone" if isinstance(limit, int) and theirs is None else ""


def _data(settings: Mapping[str, object]) -> Mapping[str, object]:
    data = settings.get("data")
    return data if isinstance(data, dict) else {}


def settings_of(evaluation: Evaluation, run: Run | None) -> Mapping[str, object]:
    """The configuration of what was judged; empty where it is not known."""
    return evaluation.config or (run.config if run is not None else {})


def _fewer_images(evaluation: Evaluation) -> list[str]:
    if evaluation.split != "test":
        return ["judged on held-out images"]
    whole = evaluation.whole or TEST_IMAGES.get(evaluation.data)
    if not evaluation.finished or evaluation.count is None or whole is None or evaluation.count >= whole:
        return []
    return [f"judged on the first {evaluation.count:,} of {whole:,} test images"]


def differences(settings: Mapping[str, object], reference: Reference | None) -> list[str]:
    """The recipe's own note, and which of its settings were changed."""
    if reference is None or not settings:
        return []
    found = changes(settings, reference.settings)
    changed = [shortened(change, 200) for change in found if not change.startswith(HARMLESS)]
    shown = ", ".join(changed[:MANY]) + (f" and {len(changed) - MANY} more" if len(changed) > MANY else "")
    note = [reference.note] if reference.note else []
    return note + ([f"changed from the recipe: {shown}"] if changed else [])


def _other_size(evaluation: Evaluation, reference: Reference | None) -> list[str]:
    if reference is None or not reference.results or not evaluation.eps:
        return []
    norm, eps = reference.plan.get("norm", "linf"), reference.plan.get("eps")
    if norm == evaluation.norm and any(reference.same_eps(radius.value) for radius in evaluation.eps):
        return []
    return [f"published under attack only at {norm} eps {eps}"]


def _other_step(evaluation: Evaluation, reference: Reference | None) -> list[str]:
    names = sorted({evaluation.radius_of(name)[0] for name in evaluation.accuracy})
    if reference is None or not reference.results or not any(name.startswith("pgd") for name in names):
        return []
    compared = [radius.value for radius in evaluation.eps if reference.same_eps(radius.value)]
    if all(reference.same_step(evaluation.step_size, eps) for eps in compared):
        return []
    ours, theirs = (f"{step:g}" if step else "eps/4" for step in (evaluation.step_size, reference.step))
    return [f"its PGD has steps of {ours}, the recipe's of {theirs}, so it is not compared"]


def state(run: Run) -> list[str]:
    """How far an unfinished run is."""
    lost = [f"the metrics of {run.lost} epochs are lost"] if run.lost else []
    if run.finished or run.unread or run.planned is None:
        return lost
    return [f"epoch {run.done} of {run.planned}", *lost]


MARGIN, MARGIN_TRAIN, ROBUST = "margin", "margin_train", "robust"
_NAMES = {
    "clean": "Clean",
    "fgsm": "FGSM",
    "autoattack": "AutoAttack",
    MARGIN: "Margin",
    MARGIN_TRAIN: "Training margin",
    ROBUST: "Watched attack",
    "apgd-ce": "APGD-CE",
    "apgd-t": "APGD-T",
    "fab-t": "FAB-T",
    "square": "Square",
}
_ORDER = ("clean", "fgsm", "pgd", "", "autoattack", ROBUST, MARGIN, MARGIN_TRAIN)
_NORMS = {"linf": "L∞", "l2": "L2"}


@dataclass(frozen=True)
class Measure:
    """One column."""

    attack: str
    radius: Radius | None = None
    norm: str = ""

    @property
    def is_margin(self) -> bool:
        """Whether it is a distance and not an accuracy."""
        return self.attack in (MARGIN, MARGIN_TRAIN)

    @property
    def title(self) -> str:
        """The head of the column."""
        return attack_title(self.attack)

    @property
    def detail(self) -> str:
        """The unit: the norm and size of the attack, or the norm of the margin."""
        if self.is_margin:
            return norm_title(self.norm)
        if self.radius is not None:
            return f"%, {norm_title(self.norm)} {self.radius.written}"
        return "%"

    @property
    def key(self) -> str:
        """A name for machines."""
        return f"{self.attack}_{self.norm}" if self.is_margin else self.attack

    def number(self, value: float | None, *, signed: bool = False) -> str:
        """A value of this measure as it is printed everywhere."""
        if value is None:
            return ""
        places = margin_places(self.norm) if self.is_margin else 2
        return f"{value:+.{places}f}" if signed else f"{value:.{places}f}"


def margin_places(norm: str) -> int:
    """How many decimals a margin needs: those in linf are some hundredths."""
    return 4 if norm == "linf" else 3


def clean() -> Measure:
    """Accuracy without an attack."""
    return Measure("clean")


def attack_title(name: str) -> str:
    """An attack's name as papers write it."""
    steps = re.fullmatch(r"pgd(\d+)", name)
    return f"PGD-{steps[1]}" if steps else _NAMES.get(name, name)


_COLUMNS = {"pgd": "PGD", "margin_train": "Training margin", "margin_test": "Test margin"}


def column_title(column: str) -> str:
    """The head of a column of results."""
    return _COLUMNS.get(column) or attack_title(column)


def norm_title(norm: str) -> str:
    """A norm's name."""
    return _NORMS.get(norm, norm)


def in_order(measures: Iterable[Measure]) -> list[Measure]:
    """Every measure once, weak attacks first, small eps first."""
    return sorted(dict.fromkeys(measures), key=_place)


def _place(measure: Measure) -> tuple[int, int, str, str, float]:
    steps = re.fullmatch(r"pgd(\d+)", measure.attack)
    family = "pgd" if steps else measure.attack if measure.attack in _ORDER else ""
    size = measure.radius.value if measure.radius else 0.0
    return _ORDER.index(family), int(steps[1]) if steps else 0, measure.attack, measure.norm, size


References = Mapping[str, Reference]
_MARGINS = {"correct": MARGIN, "train": MARGIN_TRAIN}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table; ``notes`` are what a reader must know before comparing it."""

    label: str
    kind: str
    data: str
    cells: Mapping[Measure, Cell]
    notes: Sequence[str] = ()
    source: str = ""
    images: int | None = None
    """How many were judged, where that is known."""


@dataclass(frozen=True)
class Results:
    """The table of one data set: numbers on different data do not stand in one column."""

    data: str
    measures: Sequence[Measure]
    rows: Sequence[Row]

    @property
    def compared(self) -> bool:
        """Whether any published number is in it."""
        return any(cell.paper is not None for row in self.rows for cell in row.cells.values())


def results(found: Findings, references: References) -> list[Results]:
    """For each data set: rows of evaluations, means over seeds, then runs that nobody has evaluated."""
    owners = owners_of(found.evaluations, found.runs)
    pairs = list(zip(found.evaluations, owners, strict=True))
    shown = [(e, run) for e, run in pairs if run is None or not e.has_nothing_yet]
    rows = [_of_evaluation(evaluation, run, references) for evaluation, run in shown]
    rows += _means(shown, rows)
    judged = {run.folder for _, run in shown if run is not None}
    begun = {run.folder for run in owners if run is not None}
    rows += [_of_run(r, references, begun=r.folder in begun) for r in found.runs if r.folder not in judged]
    tables: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        tables[row.data].append(row)
    return [_table(data, members) for data, members in tables.items()]


def _table(data: str, rows: Sequence[Row]) -> Results:
    return Results(data, in_order(measure for row in rows for measure in row.cells), rows)


def _of_evaluation(evaluation: Evaluation, run: Run | None, references: References) -> Row:
    reference = references.get(evaluation.name or "")
    compared = None if reference is None or why_not_compared(evaluation, run, reference) else reference
    step = evaluation.step_size
    cells = {measure: _cell(measure, value, None, compared, step) for measure, value in _attacked(evaluation).items()}
    for margins in evaluation.margins:
        if margins.of in _MARGINS and margins.mean is not None:
            measure = Measure(_MARGINS[margins.of], norm=margins.norm)
            cells[measure] = _cell(measure, margins.mean, margins.std, compared)
    return Row(
        label=evaluation.label,
        kind=f"quick {evaluation.kind}" if evaluation.quick else evaluation.kind,
        images=evaluation.count,
        data=evaluation.data,
        cells=cells,
        notes=notes_of_evaluation(evaluation, run, reference),
        source=reference.source if reference else "",
    )


def _attacked(evaluation: Evaluation) -> dict[Measure, float]:
    """Accuracies by measure; the parts of AutoAttack have a section of their own."""
    found = {}
    for name, value in evaluation.accuracy.items():
        attack, radius = evaluation.radius_of(name)
        if "/" not in attack:
            found[Measure(attack, radius, evaluation.norm) if attack != "clean" else clean()] = value
    return found


def _cell(
    measure: Measure, value: float, spread: float | None, reference: Reference | None, step: float | None = None
) -> Cell:
    return Cell(ours=value, spread=spread, paper=None if reference is None else published(measure, reference, step))


def published(measure: Measure, reference: Reference, step: float | None) -> float | None:
    """The paper's number for a measure, where it is of the same thing; ``step`` is that of PGD."""
    if measure.attack in (MARGIN, MARGIN_TRAIN):
        column = "margin_train" if measure.attack == MARGIN_TRAIN else "margin_test"
        return reference.number(column) if measure.norm == "l2" else None
    if measure.attack == "clean":
        return reference.number("clean")
    if measure.radius is None or measure.attack == ROBUST:
        return None
    return reference.attacked(measure.attack, norm=measure.norm, eps=measure.radius.value, step=step)


def _of_run(run: Run, references: References, *, begun: bool) -> Row:
    reference = references.get(run.name)
    last: dict[Measure, float] = {}
    for key, measure in (("test_clean", clean()), ("test_robust", Measure(ROBUST))):
        curve = run.curve(key)
        if curve:
            last[measure] = curve[-1][1]
    less = "" if reference is None else trained_less({**run.config, "epochs": run.done}, reference)
    compared = None if less else reference
    cells = {measure: _cell(measure, value, None, compared) for measure, value in last.items()}
    why = "no image is judged yet" if begun else "not evaluated"
    notes = [f"{why}: as watched in training", *state(run), *differences(run.config, reference)]
    notes += [f"{less}, so it is not compared with the paper"] if less and cells else []
    return Row(
        label=run.label,
        kind="run",
        data=run.data,
        cells=cells,
        notes=notes,
        source=reference.source if reference and cells else "",
    )


def _means(pairs: Sequence[tuple[Evaluation, Run | None]], rows: Sequence[Row]) -> list[Row]:
    """A row for each recipe reproduced with several seeds, or run with seeds that are all it differs in."""
    groups: dict[str, dict[object, tuple[Evaluation, Row]]] = {}
    for (evaluation, run), row in zip(pairs, rows, strict=True):
        settings = settings_of(evaluation, run)
        if evaluation.kind == "reproduction":
            groups.setdefault(f"{evaluation.quick} {evaluation.name}", {})[evaluation.folder] = evaluation, row
        elif evaluation.name and settings and evaluation.finished and not evaluation.quick:
            groups.setdefault(_but_for_the_seed(evaluation, settings), {})[str(settings.get("seed", 0))] = (
                evaluation,
                row,
            )
    found = [list(members.values()) for members in groups.values() if len(members) > 1]
    names = [f"{members[0][0].name}, mean of {len(members)} seeds" for members in found]
    labels = unique(names, [_hints(members[0][0]) for members in found])
    return [_mean(label, [row for _, row in members]) for label, members in zip(labels, found, strict=True)]


def _but_for_the_seed(evaluation: Evaluation, settings: Mapping[str, object]) -> str:
    """Everything that two evaluations of the same thing have in common."""
    trained = {key: value for key, value in settings.items() if key != "seed"}
    radii = [radius.value for radius in evaluation.eps]
    how = (evaluation.attacks, evaluation.norm, radii, evaluation.step_size, evaluation.search, evaluation.weights)
    on = (evaluation.name, evaluation.data, evaluation.split, evaluation.count)
    return json.dumps([trained, how, on], sort_keys=True, default=str)


def _hints(evaluation: Evaluation) -> list[str]:
    """What tells the means of a recipe apart."""
    return [evaluation.norm, f"eps {', '.join(radius.written for radius in evaluation.eps)}", str(evaluation.folder)]


def _mean(label: str, rows: Sequence[Row]) -> Row:
    cells = {}
    for measure in in_order(measure for row in rows for measure in row.cells):
        values = [cell.ours for row in rows if (cell := row.cells.get(measure)) and cell.ours is not None]
        paper = next((row.cells[measure].paper for row in rows if measure in row.cells), None)
        cells[measure] = Cell(ours=fmean(values), spread=stdev(values) if len(values) > 1 else None, paper=paper)
    return Row(
        label=label,
        kind="quick mean" if rows[0].kind.startswith("quick") else "mean",
        data=rows[0].data,
        images=rows[0].images if len({row.images for row in rows}) == 1 else None,
        cells=cells,
        notes=["± over seeds", *(note for note in rows[0].notes if all(note in row.notes for row in rows))],
        source=rows[0].source,
    )


def followup_line(report: Mapping[str, Any]) -> str:
    """The numbers of a finished evaluation that no column of a table has room for."""
    images = f"{report['data']['count']:,} images"
    if report["distance"] is not None:
        return f"{_distances(report)}; {images}"
    eps, *more = report["eps"]
    if more:
        return f"{_curves(report['curves'])}; {images}"
    shown = ", ".join(f"{name} {report['accuracy'][name]:.2f}" for name in report["attacks"])
    return f"{shown} at eps {eps['written']}; {images}"


def _distances(report: Mapping[str, Any]) -> str:
    found, norm = report["distance"], report["norm"]
    if found["median"] is None:
        return f"no adversarial image was found ({norm})"
    rank = found["rank_correlation"]
    shown = "" if rank is None else f", rank correlation with the margin {rank:.3f}"
    return f"median distance {found['median']:.3f} ({norm}){shown}"


def _curves(curves: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{attack} " + ", ".join(f"{point['accuracy']:.2f} at {point['written']}" for point in points)
        for attack, points in curves.items()
    )
