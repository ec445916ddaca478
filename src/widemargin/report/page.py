"""The page: which sections, under which title, in one HTML file that needs nothing else.

The sections of words are here: alarms and notes, which come before the numbers they put in doubt; the results;
AutoAttack part by part; examples with their adversarial twins; how each evaluation was made; the commands that make it
again. Those of charts are in ``sections.py``. How a section looks is said by a template.
"""

import base64
import io
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from widemargin.config.checkpoint import CONFIG
from widemargin.core.schema import LiteralFloat
from widemargin.errors import InputError
from widemargin.evaluation.folder import Evaluation, Radius
from widemargin.evaluation.gallery import Bytes, Gallery
from widemargin.report.charts import stacked
from widemargin.report.compare import Cell, References, attack_title, changes, lead_to, norm_title
from widemargin.report.findings import Findings, Sweep
from widemargin.report.results import Measure, Results, Row
from widemargin.report.runs import Run
from widemargin.report.sections import (
    Figure,
    Section,
    counted,
    distance_section,
    duration,
    eps_section,
    first,
    listed,
    margins_section,
    sweeps_section,
    training_section,
)
from widemargin.report.svg import Text, color_class, legend, minus
from widemargin.report.tables import Entry, Head, Table
from widemargin.training.alarms import meaning_of
from widemargin.types import Alarm

OwnedAlarms = Sequence[tuple[str, Alarm]]
"""Alarms, each with whose it is."""


def alarms_section(found: Findings) -> Section | None:
    """Every alarm of every evaluation, or that there is none; those of training; then the evaluations' notes."""
    checked = [evaluation for evaluation in found.evaluations if evaluation.alarms is not None]
    warned = [run for run in found.runs if run.alarms]
    if not found.evaluations and not warned:
        return None
    raised = [(evaluation.label, alarm) for evaluation in checked for alarm in evaluation.alarms or ()]
    unchecked = [evaluation.label for evaluation in found.evaluations if evaluation.alarms is None]
    lines = [f"No alarms in {counted(len(checked), 'evaluation')}."] if checked and not raised else []
    if unchecked:
        lines.append(f"Not checked for alarms: {listed(unchecked)}.")
    lines += [f"{evaluation.label}: {note}" for evaluation in found.evaluations for note in evaluation.notes]
    tables = [_alarm_table(raised)] if raised else []
    tables += [_training_alarm_table(warned)] if warned else []
    more = {"alarms": [*raised, *_training_alarms(warned)]}
    return Section(id="alarms", title="Alarms", lines=lines, tables=tables, template="alarms.html", more=more)


def _alarm_table(raised: OwnedAlarms) -> Table:
    heads = [Head("Evaluation"), Head("Alarm"), Head("What was seen"), Head("What it suggests")]
    rows = [(Entry(label), [Entry(a.name), Entry(a.message), Entry(a.suggestion)]) for label, a in raised]
    return Table(title="Alarms", heads=heads, rows=rows, words=True)


def _training_alarm_table(runs: Sequence[Run]) -> Table:
    heads = [Head("Run"), Head("Epoch"), Head("Alarm"), Head("What it means"), Head("What it suggests")]
    told = [(run.label, alarm, meaning_of(alarm.name)) for run in runs for alarm in run.alarms]
    rows = [
        (Entry(label), [Entry(str(a.epoch)), Entry(a.name), Entry(m.message), Entry(m.suggestion)])
        for label, a, m in told
    ]
    return Table(title="Alarms in training", heads=heads, rows=rows, words=True)


def _training_alarms(runs: Sequence[Run]) -> OwnedAlarms:
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


Fact = Callable[[Evaluation], str]
MOST = 100
"""A table of more columns is none that anybody reads."""


def facts_section(found: Findings) -> Section | None:
    """A column for each evaluation; facts that nobody states are left out."""
    if not found.evaluations:
        return None
    shown = found.evaluations[:MOST]
    lines = [f"Of the first {MOST} of {len(found.evaluations):,} evaluations."] if len(found.evaluations) > MOST else []
    rows = [(Entry(name), [Entry(fact(e) or "-") for e in shown]) for name, fact in FACTS.items()]
    stated = [(name, entries) for name, entries in rows if any(entry.text != "-" for entry in entries)]
    heads = [Head("Fact"), *(Head(evaluation.label) for evaluation in shown)]
    table = Table(title="What was evaluated, and how", heads=heads, rows=stated, words=True)
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


def commands_section(found: Findings, references: References, folders: Sequence[Path], out: Path) -> Section:
    """Train, sweep, evaluate, report."""
    typed: list[list[str]] = [train_command(run, references) for run in found.runs]
    typed += [sweep_command(sweep, references) for sweep in found.sweeps]
    typed += [evaluate_command(evaluation) for evaluation in found.evaluations if _from_command_line(evaluation)]
    typed.append(["widemargin", "report", *map(str, folders), "--out", str(out)])
    return Section(
        id="reproduce",
        title="How to reproduce",
        lines=[
            "These commands make the runs, the evaluations and this page again, each in its own folder; what is "
            "finished there is not done again. Add --data-dir or --import where you gave them."
        ],
        commands=[shlex.join(command) for command in dict.fromkeys(map(tuple, typed))],
        template="commands.html",
    )


def train_command(run: Run, references: References) -> list[str]:
    """The recipe with its changes, or the run's own configuration file where that cannot be said."""
    out = ["--out", str(run.folder)]
    settings = _settings(run.name, run.config, references)
    if settings is None:
        return ["widemargin", "train", str(run.folder / CONFIG), *out]
    return ["widemargin", "train", run.name, *settings, *out]


def _settings(name: str, config: Mapping[str, Any], references: References) -> list[str] | None:
    reference = references.get(name)
    if reference is None or not config:
        return None
    overrides = changes(config, reference.settings)
    if not lead_to(overrides, reference.settings, config):
        return None
    return [word for override in overrides for word in ("--set", override)]


def sweep_command(sweep: Sweep, references: References) -> list[str]:
    """The grid over the recipe; what all its points changed is read off one of them."""
    grid = [word for key, values in sweep.grid.items() for word in ("--grid", f"{key}={','.join(values)}")]
    settings = _settings(sweep.recipe, sweep.config, references) or []
    pairs = zip(settings[::2], settings[1::2], strict=True)
    common = [word for pair in pairs if pair[1].partition("=")[0] not in sweep.grid for word in pair]
    return ["widemargin", "sweep", sweep.recipe, *grid, *common, "--out", str(sweep.folder)]


def evaluate_command(evaluation: Evaluation) -> list[str]:
    """The evaluation with everything that its numbers depend on."""
    words = ["widemargin", "evaluate", evaluation.target]
    options = {
        "--attacks": ",".join(evaluation.attacks),
        "--eps": ",".join(map(_typed, evaluation.eps)),
        "--norm": evaluation.norm,
        "--step-size": "" if evaluation.step_size is None else repr(evaluation.step_size),
        "--seed": "" if evaluation.seed is None else str(evaluation.seed),
    }
    if evaluation.kind == "evaluation":
        normalize = evaluation.normalize or ""
        options |= {
            "--dataset": (evaluation.source or evaluation.data) if evaluation.split == "test" else "",
            "--split": "" if evaluation.split == "test" else evaluation.split,
            "--limit": "" if evaluation.count is None else str(evaluation.count),
            "--shard-size": "" if evaluation.shard_size is None else str(evaluation.shard_size),
            "--batch-size": "" if evaluation.batch_size is None else str(evaluation.batch_size),
            "--search": "" if evaluation.search == "float32" else evaluation.search,
            "--head-scale": "" if evaluation.head_scale is None else repr(evaluation.head_scale),
            "--normalize": "" if normalize.startswith("unknown") else normalize,
            "--out": str(evaluation.folder),
        }
    words += [word for option, value in options.items() if value for word in (option, value)]
    return [*words, "--distance"] if evaluation.distance is not None else words


def _typed(radius: Radius) -> str:
    """As it was written, unless that was short for a longer number."""
    try:
        return radius.written if float(LiteralFloat(radius.written)) == radius.value else repr(radius.value)
    except InputError:
        return repr(radius.value)


def _from_command_line(evaluation: Evaluation) -> bool:
    """Whether a command can say it: not of a model or of images that lived in memory only."""
    return bool(evaluation.target) and not any(
        name.endswith("in memory") for name in (evaluation.target, evaluation.data)
    )


def results_section(found: Sequence[Results]) -> Section | None:
    """A table for each data set; without any number there is none."""
    tables = [_results_table(results, alone=len(found) == 1) for results in found if results.measures]
    return Section(id="results", title="Results", tables=tables) if tables else None


def _results_table(found: Results, *, alone: bool) -> Table:
    notes = [f"{row.label}: {'; '.join(row.notes)}." for row in found.rows if row.notes]
    return Table(
        title="Results" if alone else f"On {found.data or 'unnamed data'}",
        heads=[Head("Run"), *(Head(measure.title, measure.detail) for measure in found.measures)],
        rows=[(_row_name(row), [_number_entry(m, row.cells.get(m)) for m in found.measures]) for row in found.rows],
        notes=[*_results_notes(found), *notes],
    )


def _number_entry(measure: Measure, cell: Cell | None) -> Entry:
    """One number as it is printed everywhere."""
    if cell is None or cell.ours is None:
        return Entry("-")
    spread = f" ± {measure.number(cell.spread)}" if cell.spread is not None else ""
    if cell.paper is None:
        return Entry(measure.number(cell.ours) + spread)
    difference = minus(measure.number(cell.difference, signed=True))
    return Entry(measure.number(cell.ours) + spread, (f"paper {measure.number(cell.paper)}", difference))


def _row_name(row: Row) -> Entry:
    compared = any(cell.paper is not None for cell in row.cells.values())
    return Entry(row.label, f"paper: {row.source}" if row.source and compared else ())


def _results_notes(found: Results) -> list[str]:
    notes = ["Accuracy in percent."]
    if found.compared:
        notes.append("Below a number: the published one of the recipe of that name, and ours minus it.")
    if any(measure.is_margin for measure in found.measures):
        notes.append("Margins: mean ± standard deviation over correctly classified images, pixels in [0, 1].")
    return [" ".join(notes)]


AUTOATTACK = "autoattack"
WRONG, ROBUST = "Wrong unattacked", "Still right"


@dataclass(frozen=True)
class Breakdown:
    """One AutoAttack run: (part, images broken) in the order of the attack."""

    label: str
    parts: tuple[tuple[str, int], ...]


def autoattack_section(found: Findings) -> Section | None:
    """Bars and counts for each evaluation with AutoAttack."""
    rows = [row for evaluation in found.evaluations for row in breakdowns(evaluation)]
    if not rows:
        return None
    drawn, left_out = first(rows)
    names = list(dict.fromkeys(name for row in rows for name, _ in row.parts if name not in (WRONG, ROBUST)))
    styles = {WRONG: "part-wrong", ROBUST: "part-right"} | {n: f"part-{i % 4}" for i, n in enumerate(names)}
    described = "; ".join(f"{row.label}: {_in_words(row.parts)}" for row in drawn)
    text = Text(id="breakdown", title="What AutoAttack's parts broke", description=described, x="", y="")
    bars = [(row.label, [(attack_title(name), styles[name], count) for name, count in row.parts]) for row in drawn]
    figure = Figure(picture=stacked(text, bars), title=text.title, caption="Each bar is all images of one evaluation.")
    order = [WRONG, *names, ROBUST]
    table = Table(
        title="Images broken by each part of AutoAttack",
        heads=[Head("Evaluation"), *(Head(attack_title(name)) for name in order)],
        rows=[(Entry(row.label), [_count(dict(row.parts).get(name)) for name in order]) for row in rows],
    )
    keys = [(attack_title(name), styles[name]) for name in order]
    return Section(
        id="autoattack",
        title="AutoAttack, part by part",
        lines=["Each part attacks only the images that all parts before it left right.", *left_out],
        figures=[figure],
        tables=[table],
        template="breakdown.html",
        more={"keys": keys},
    )


def breakdowns(evaluation: Evaluation) -> list[Breakdown]:
    """One for each eps at which AutoAttack ran; none where nobody knows on how many images."""
    if not _images(evaluation):
        return []
    suffixes = [name.removeprefix(AUTOATTACK) for name in evaluation.accuracy if _is_whole(name)]
    return [_breakdown(evaluation, suffix) for suffix in suffixes]


def _images(evaluation: Evaluation) -> int:
    return evaluation.count or (len(evaluation.examples) if evaluation.examples else 0)


def _is_whole(name: str) -> bool:
    return name.partition("@")[0] == AUTOATTACK


def _breakdown(evaluation: Evaluation, suffix: str) -> Breakdown:
    label = f"{evaluation.label}, eps {suffix[1:]}" if suffix else evaluation.label
    count = _images(evaluation)
    clean = evaluation.accuracy.get("clean", 100.0)
    left = round(clean * count / 100)
    parts = [(WRONG, count - left)]
    for name, accuracy in _parts(evaluation, suffix):
        parts.append((name, max(0, left - round(accuracy * count / 100))))
        left = round(accuracy * count / 100)
    if len(parts) == 1:
        parts += _from_examples(evaluation, suffix)
        left = round(evaluation.accuracy[AUTOATTACK + suffix] * count / 100)
    return Breakdown(label, (*parts, (ROBUST, left)))


def _parts(evaluation: Evaluation, suffix: str) -> Iterable[tuple[str, float]]:
    for name, accuracy in evaluation.accuracy.items():
        if name.startswith(f"{AUTOATTACK}/") and name.partition("@")[0] + suffix == name:
            yield name.partition("@")[0].removeprefix(f"{AUTOATTACK}/"), accuracy


def _from_examples(evaluation: Evaluation, suffix: str) -> list[tuple[str, int]]:
    """Without accuracies after each part, each example says what broke it, at each of several eps."""
    examples = evaluation.examples
    if examples is None:
        return []
    breakers = [at.get(suffix[1:]) for at in examples.broken_at] if suffix else examples.broken_by
    return list(Counter(name for name in breakers if name).items())


def _in_words(parts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{attack_title(name)} {count:,}" for name, count in parts)


def _count(count: int | None) -> Entry:
    return Entry("-" if count is None else f"{count:,}")


GRAY = 128


@dataclass(frozen=True)
class Picture:
    """An image as data, and what it is in words."""

    source: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Example:
    """Three pictures; ``fooled`` where the twin is called something else than its label."""

    pictures: tuple[Picture, Picture, Picture]
    fooled: bool


@dataclass(frozen=True)
class ShownGallery:
    """The gallery of one evaluation."""

    label: str
    caption: str
    examples: list[Example]


def gallery_section(found: Findings) -> Section | None:
    """A gallery for each evaluation that kept images."""
    kept, left_out = first([e for e in found.evaluations if e.gallery is not None and len(e.gallery.images)])
    if not kept:
        return None
    return Section(
        id="gallery",
        title="Examples and their adversarial twins",
        lines=left_out,
        template="gallery.html",
        more={"galleries": [_gallery_of(e.label, e.gallery) for e in kept if e.gallery is not None]},
    )


def _gallery_of(label: str, found: Gallery) -> ShownGallery:
    differences = found.adversarial.astype(np.int16) - found.images.astype(np.int16)
    gain = max(1, (GRAY - 1) // max(1, int(np.abs(differences).max())))
    amplified = np.clip(GRAY + gain * differences, 0, 255).astype(np.uint8)
    examples = [_example(found, amplified[number], gain, number) for number in range(len(found.images))]
    amplification = f"amplified {gain} times around gray" if gain > 1 else "shown around gray, as large as it is"
    return ShownGallery(label, f"{_attack_in_words(found.attack)}The difference is {amplification}.", examples)


def _attack_in_words(name: str) -> str:
    """With what, and at which of several eps ("pgd20@8/255")."""
    attack, _, eps = name.partition("@")
    where = f" at eps {eps}" if eps else ""
    return f"Attacked with {attack_title(attack)}{where}. " if attack else ""


def _example(found: Gallery, difference: Bytes, gain: int, number: int) -> Example:
    label = int(found.labels[number])
    said, fooled = int(found.predictions[number]), int(found.adversarial_predictions[number])
    name = f"Example {number + 1}, class {label}"
    return Example(
        (
            Picture(
                _source(found.images[number]), f"{name}: the image, called {said}", f"class {label}, called {said}"
            ),
            Picture(
                _source(found.adversarial[number]), f"{name}: its adversarial twin, called {fooled}", f"called {fooled}"
            ),
            Picture(
                _source(difference),
                f"{name}: the difference" + f", amplified {gain} times" * (gain > 1),
                "difference" + f" \N{MULTIPLICATION SIGN}{gain}" * (gain > 1),
            ),
        ),
        fooled != label,
    )


def _source(image: Bytes) -> str:
    """(C, H, W) bytes as a PNG inside the page."""
    pixels = image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0)
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(stream, format="PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode('ascii')}"


FEW, FAULTS = 3, 200


@dataclass(frozen=True, kw_only=True)
class Page:
    """A title, a sentence on what is compared, and the sections."""

    title: str
    summary: str
    sections: Sequence[Section]


def build_page(
    found: Findings,
    tables: Sequence[Results],
    references: References,
    *,
    folders: Sequence[Path],
    out: Path,
    title: str | None = None,
) -> Page:
    """Put the page together; sections without data are left out."""
    sections = [
        faults_section(found),
        alarms_section(found),
        results_section(tables),
        autoattack_section(found),
        eps_section(found),
        margins_section(found),
        distance_section(found),
        training_section(found),
        sweeps_section(found),
        gallery_section(found),
        facts_section(found),
        commands_section(found, references, folders, out),
    ]
    return Page(
        title=title or _title(found),
        summary=_summary(found, folders),
        sections=[section for section in sections if section is not None],
    )


def _title(found: Findings) -> str:
    labels = found.labels() or [f"sweep of {sweep.recipe}" for sweep in found.sweeps]
    recipes = [*(run.name for run in found.runs), *(e.name or e.label for e in found.evaluations)]
    for names in (labels, list(dict.fromkeys(recipes))):
        if len(names) <= FEW:
            return listed(names)
    return f"{counted(len(set(recipes)), 'recipe')} compared"


def _summary(found: Findings, folders: Sequence[Path]) -> str:
    parts = []
    for things, noun in ((found.runs, "run"), (found.evaluations, "evaluation"), (found.sweeps, "sweep")):
        if things:
            parts.append(counted(len(things), noun))
    waiting = sum(not run.finished and not run.unread for run in found.runs)
    waiting += sum(not evaluation.finished for evaluation in found.evaluations)
    unfinished = f", {waiting:,} of them unfinished" if waiting else ""
    return f"{listed(parts)}{unfinished}, from {listed([str(folder) for folder in folders])}."


def faults_section(found: Findings) -> Section | None:
    """The files that could not be shown, and why."""
    if not found.faults:
        return None
    lines = [f"This file could not be shown: {fault}." for fault in found.faults[:FAULTS]]
    if len(found.faults) > FAULTS:
        lines.append(f"And {len(found.faults) - FAULTS:,} more could not be shown.")
    return Section(id="not-shown", title="Files that could not be shown", lines=lines)


def html(content: Page, *, date: str, version: str) -> str:
    """The page as one HTML file; everything that came from files is escaped."""
    environment = Environment(
        loader=PackageLoader("widemargin.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"legend": legend, "color_class": color_class}
    return environment.get_template("page.html").render(page=content, date=date, version=version)
