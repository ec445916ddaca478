"""Our numbers beside the published ones: what may be compared, and what must be said with it.

A run, or an evaluation, goes by the name of a recipe. The recipe's settings and published numbers come from the caller
as a ``Reference``: reports know no recipes. Numbers stand beside each other where they are of the same thing (data,
norm, eps, step size) and the run is not much smaller than its recipe; how it differs is written as the ``--set``
options that make the difference.
"""

import copy
import json
import math
import re
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from widemargin.core.records import shortened
from widemargin.core.schema import LiteralFloat
from widemargin.errors import InputError
from widemargin.evaluation.folder import Evaluation
from widemargin.report.runs import Run
from widemargin.report.tables import markdown_lines
from widemargin.report.wording import MARGIN, MARGIN_TRAIN, counted

Result = Mapping[str, Any]
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One number of ours, where we have it, and the paper's, where it has one."""

    ours: float | None
    spread: float | None
    """The standard deviation over seeds, with two seeds or more."""
    paper: float | None

    @classmethod
    def over_seeds(cls, values: Sequence[float], paper: float | None) -> "Cell":
        """Their mean, and their spread where there are two or more."""
        return cls(
            ours=statistics.fmean(values) if values else None,
            spread=statistics.stdev(values) if len(values) > 1 else None,
            paper=paper,
        )

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
    """A cell for each column of a table of the paper, over the results of its seeds."""
    ours = {column: [_ours(column, result) for result in results] for column in columns}
    return {
        column: Cell.over_seeds([value for value in ours[column] if value is not None], _number(published.get(column)))
        for column in columns
    }


def _ours(column: str, result: Result) -> float | None:
    if column.startswith("margin_"):
        mean: float | None = result[column]["mean"]
        return mean
    accuracy: dict[str, float] = result["accuracy"]
    if column == "pgd":  # the table of both networks: each row's own PGD
        return next((value for name, value in accuracy.items() if name.startswith("pgd")), None)
    return accuracy.get(column)


def _number(published: Any) -> float | None:
    """Of a margin its mean."""
    number: float | None = published[0] if isinstance(published, list) else published
    return number


def markdown(title: str, columns: Sequence[str], rows: Sequence[tuple[str, dict[str, Cell]]], note: str = "") -> str:
    """The comparison as a Markdown table."""
    lines = [f"## {title}", "", "ours / paper (difference)" + (f". {note}" if note else ""), ""]
    cells = ([name, *(found[column].text() for column in columns)] for name, found in rows)
    lines += markdown_lines(["row", *columns], cells, align=["---"] * (1 + len(columns)))
    return "\n".join(lines) + "\n"


def followup_line(report: Mapping[str, Any]) -> str:
    """The numbers of a finished evaluation that no column of a table has room for."""
    found, norm = report["distance"], report["norm"]
    eps, *more = report["eps"]
    if found is not None and found["median"] is None:
        said = f"no adversarial image was found ({norm})"
    elif found is not None:
        rank = found["rank_correlation"]
        said = f"median distance {found['median']:.3f} ({norm})"
        said += "" if rank is None else f", rank correlation with the margin {rank:.3f}"
        proven = (report.get("certified") or {}).get("median")
        said += "" if proven is None else f", median certified radius {proven:.3f}"
    elif more:
        curves = {
            attack: ", ".join(f"{point['accuracy']:.2f} at {point['written']}" for point in points)
            for attack, points in report["curves"].items()
        }
        said = "; ".join(f"{attack} {curve}" for attack, curve in curves.items())
    else:
        accuracies = ", ".join(f"{name} {report['accuracy'][name]:.2f}" for name in report["attacks"])
        said = f"{accuracies} at eps {eps['written']}"
    return f"{said}; {report['data']['count']:,} images"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One recipe: ``settings`` as in ``config.toml``, ``results`` by column (percent; margins as mean and std)."""

    settings: Settings
    results: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    """Where the numbers stand, such as "table 3, AT+EMR"."""
    note: str = ""

    @property
    def plan(self) -> Settings:
        """How the recipe is judged."""
        plan: Settings = self.settings.get("evaluation", {})
        return plan

    def number(
        self, attack: str, *, norm: str = "", eps: float | None = None, step: float | None = None
    ) -> float | None:
        """The published accuracy, or mean margin, if it is of the same thing: at another eps or step it is not."""
        if attack in (MARGIN, MARGIN_TRAIN):
            column = "margin_train" if attack == MARGIN_TRAIN else "margin_test"
            return _number(self.results.get(column)) if norm == "l2" else None
        if attack == "clean":
            return _number(self.results.get("clean"))
        if eps is None or norm != self.plan.get("norm", "linf") or not self.same_eps(eps):
            return None
        is_pgd = attack.startswith("pgd")
        if is_pgd and not self.same_step(step, eps):
            return None
        generic = "pgd" if is_pgd and attack in self.plan.get("attacks", ()) else attack
        return _number(self.results.get(attack, self.results.get(generic)))

    def same_eps(self, eps: float) -> bool:
        """Whether the recipe is judged at this eps."""
        ours = _size(self.plan.get("eps"))
        return ours is not None and math.isclose(ours, eps, rel_tol=1e-6)

    def same_step(self, step: float | None, eps: float) -> bool:
        """Whether the recipe's PGD has this step; None stands for eps/4, and 0.0078 is as good as 2/255."""
        return math.isclose(step or eps / 4, self.step or eps / 4, rel_tol=0.02)

    @property
    def step(self) -> float | None:
        """The step of the recipe's PGD."""
        return _size(self.plan.get("step_size"))


def _size(value: Any) -> float | None:
    """A number, or one written as "8/255"."""
    try:
        return None if value is None else float(LiteralFloat(value))
    except (InputError, TypeError):
        return None


References = Mapping[str, Reference]


def changes(settings: Settings, recipe: Settings, prefix: str = "") -> list[str]:
    """``["epochs=3", "model.hidden=[64]"]``: what turns the recipe into these settings."""
    found = []
    for key in dict.fromkeys([*recipe, *settings]):
        ours, theirs, path = settings.get(key), recipe.get(key), prefix + key
        if ours == theirs or path == "name":
            continue
        if ours is None:
            found.append(f"{path}=none")
        elif isinstance(ours, dict) and isinstance(theirs, dict) and ours.get("kind") == theirs.get("kind"):
            found += changes(ours, theirs, f"{path}.")
        else:
            found.append(f"{path}={toml_value(ours)}")
    return found


def toml_value(value: Any) -> str:
    """A value as TOML writes it on one line."""
    if isinstance(value, dict):
        keys = (key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key) for key in value)
        pairs = zip(keys, map(toml_value, value.values()), strict=True)
        return "{" + ", ".join(f"{key} = {item}" for key, item in pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    if isinstance(value, bool | str):
        return json.dumps(value)
    if value is None:
        return "none"
    return repr(value) if isinstance(value, int | float) else str(value)


def lead_to(overrides: list[str], recipe: Settings, settings: Settings) -> bool:
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
    whole = evaluation.whole or TEST_IMAGES.get(evaluation.data)
    notes = [] if evaluation.finished else [f"unfinished: {evaluation.count or 0:,} examples so far"]
    if evaluation.quick:
        notes.append("made quick: a short run and short attacks, not to be compared")
    if run is not None:
        notes += state(run)
    if evaluation.split != "test":
        notes.append("judged on held-out images")
    elif evaluation.finished and evaluation.count is not None and whole is not None and evaluation.count < whole:
        notes.append(f"judged on the first {evaluation.count:,} of {whole:,} test images")
    if reference is not None and reference.note and settings_of(evaluation, run):
        notes.append(reference.note)
    if evaluation.quick or reference is None:
        return notes
    if why := why_not_compared(evaluation, run, reference):
        return [*notes, f"{why}, so it is not compared with the paper"]
    return notes + (_attacked_otherwise(evaluation, reference) if reference.results else [])


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


def trained_less(settings: Settings, reference: Reference) -> str:
    """What makes a run too small to be held against its recipe; empty where nothing does."""
    ours, theirs = settings.get("epochs"), reference.settings.get("epochs", 0)
    if isinstance(ours, int) and 2 * ours < theirs:
        return f"it was trained for {counted(ours, 'epoch')}, its recipe for {theirs:,}"
    data = settings.get("data")
    limit = data.get("train_limit") if isinstance(data, dict) else None
    whole = "train_limit" not in reference.settings.get("data", {})
    return f"it was trained on {limit:,} images alone" if isinstance(limit, int) and whole else ""


def settings_of(evaluation: Evaluation, run: Run | None) -> Settings:
    """The configuration of what was judged; empty where it is not known."""
    return evaluation.config or (run.config if run is not None else {})


def differs_from(settings: Settings, reference: Reference | None) -> str:
    """Which settings of the recipe were changed, as the options that change them; empty where none is."""
    if reference is None or not settings:
        return ""
    found = changes(settings, reference.settings)
    changed = [shortened(change, 200) for change in found if not change.startswith(HARMLESS)]
    return ", ".join(changed[:MANY]) + (f" and {len(changed) - MANY} more" if len(changed) > MANY else "")


def _attacked_otherwise(evaluation: Evaluation, reference: Reference) -> list[str]:
    """At another eps, or by PGD with another step."""
    notes, norm = [], reference.plan.get("norm", "linf")
    compared = [radius.value for radius in evaluation.eps if reference.same_eps(radius.value)]
    if evaluation.eps and (norm != evaluation.norm or not compared):
        notes.append(f"published under attack only at {norm} eps {reference.plan.get('eps')}")
    other_step = not all(reference.same_step(evaluation.step_size, eps) for eps in compared)
    if other_step and any(name.startswith("pgd") for name in evaluation.accuracy):
        ours, theirs = (f"{step:g}" if step else "eps/4" for step in (evaluation.step_size, reference.step))
        notes.append(f"its PGD has steps of {ours}, the recipe's of {theirs}, so it is not compared")
    return notes


def state(run: Run) -> list[str]:
    """How far an unfinished run is."""
    lost = [f"the metrics of {run.lost} epochs are lost"] if run.lost else []
    if run.finished or run.unread or run.planned is None:
        return lost
    return [f"epoch {run.done} of {run.planned}", *lost]
