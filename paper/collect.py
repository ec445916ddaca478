"""What is said of several seeds of a row, in one line where it differs in its numbers alone.

Where things are in the tree: ``rows/<recipe>/seed-<n>/`` for each job; notes, figures and the page beside it.

Jobs in the folders that ``widemargin reproduce`` made: finished ones, and those that are not.

Numbers cut to what a reader or a figure can use, so that the tree stays small and diffs are legible.

From a job's folder to the few files that are kept of it: no weights, no line per example.

``config.toml`` and ``metrics.jsonl`` are the run's, ``result.json`` and ``evaluation.json`` its judgment,
``autoattack.json``, ``autoattack-8-255.json`` and ``eps.json`` later ones. ``margins.json`` has histogram counts,
``distance.json`` at most 1,000 pairs of margin and distance. What was collected of the job before is replaced.

The collected jobs, read back: all a page or a figure is made of.

What the numbers of a table were made with, in one sentence: hardware, engine, precision, versions, time.

What several seeds of a recipe measured in training, as one curve.

The name of the attack that a run was watched with.
"""

import json
import os
import re
import shutil
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from widemargin.config.checkpoint import CONFIG
from widemargin.core.files import make_folder, write_text_atomic
from widemargin.core.records import Fields, read_json, read_lines, read_text
from widemargin.errors import InputError
from widemargin.evaluation.folder import (
    DIGESTS,
    EXAMPLES,
    REPORT,
    Examples,
    Radius,
    curves,
    read_examples,
)
from widemargin.margins import WIDTHS, count_margins
from widemargin.report.compare import changes
from widemargin.report.findings import AGAIN, Run, read_run

NUMBER = re.compile(r"([0-9]+(?:[.,][0-9]+)*%?)")


def by_seed(said: Sequence[tuple[int, str]]) -> list[str]:
    """One line for the seeds of which the same is said, but for its numbers."""
    alike: dict[tuple[int, tuple[str, ...]], list[tuple[int, list[str]]]] = {}
    times: Counter[tuple[int, tuple[str, ...]]] = Counter()
    for seed, text in said:
        parts = NUMBER.split(text)  # words, a number, words, ...
        words = tuple(parts[::2])
        alike.setdefault((times[seed, words], words), []).append((seed, parts))
        times[seed, words] += 1
    return [_in_one_line(members) for members in alike.values()]


def _in_one_line(members: Sequence[tuple[int, list[str]]]) -> str:
    """What the seeds have in common once, from the first number that differs to the last for each of them."""
    who = f"seed{'s' * (len(members) > 1)} {', '.join(str(seed) for seed, _ in members)}"
    texts = [parts for _, parts in members]
    first = texts[0]
    differs = [place for place, part in enumerate(first) if any(parts[place] != part for parts in texts)]
    if not differs:
        return f"{who}: {''.join(first)}"
    begin, end = differs[0], differs[-1] + 1
    each = ("; " if len(differs) > 1 else ", ").join("".join(parts[begin:end]) for parts in texts)
    return f"{who}: {''.join(first[:begin])}{each}{''.join(first[end:])}"


ROWS, NOTES, FIGURES, PAGE = "rows", "notes", "figures", "README.md"
CONFIG_FILE, METRICS, RESULT = "config.toml", "metrics.jsonl", "result.json"
EVALUATION, MARGINS, DISTANCE = "evaluation.json", "margins.json", "distance.json"
AUTOATTACK, AUTOATTACK_8_255, EPS = "autoattack.json", "autoattack-8-255.json", "eps.json"


def job_folder(into: Path, recipe: str, seed: int) -> Path:
    """The folder of one job."""
    return into / ROWS / recipe.replace("/", "-") / f"seed-{seed}"


RUN = "run"


@dataclass(frozen=True)
class FoundJob:
    """A finished job."""

    folder: Path
    result: Fields
    recipe: str
    seed: int


@dataclass
class FoundJobs:
    """What the folders hold."""

    finished: list[FoundJob] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)


def find_jobs(folders: Sequence[Path], into: Path) -> FoundJobs:
    """Search the folders; refuses quick runs, a job that is there twice, and the tree itself."""
    found = FoundJobs()
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder; give what 'widemargin reproduce --out' named")
        if (into / ROWS).resolve() in (folder.resolve(), *folder.resolve().parents):
            raise InputError(f"{folder} holds what was collected already; give what 'widemargin reproduce --out' named")
        before = len(found.finished)
        for inside in _folders(folder, into / ROWS):
            _look(inside, found)
        if len(found.finished) == before:
            raise InputError(f"{folder} holds no finished job of 'widemargin reproduce'; was it the right folder?")
    _refuse_twins(found.finished)
    return found


def _folders(folder: Path, tree: Path) -> Iterator[Path]:
    """The folder and those inside it, in order; not hidden ones, not inside a job, not the tree."""
    for here, inside, files in os.walk(folder):
        yield Path(here)
        job = RESULT in files or RUN in inside
        kept = [] if job else sorted(name for name in inside if not name.startswith("."))
        inside[:] = [name for name in kept if (Path(here) / name).resolve() != tree.resolve()]


def _look(folder: Path, found: FoundJobs) -> None:
    path = folder / RESULT
    if not path.is_file():
        if (folder / RUN).is_dir() or (folder.name.startswith("seed-") and (folder / "output.txt").is_file()):
            found.unfinished.append(folder)
        return
    content = read_json(path, AGAIN)
    if not isinstance(content, dict) or not {"recipe", "seed", "accuracy", "quick"} <= content.keys():
        return
    result = Fields(path, content)
    if content["quick"]:
        raise InputError(f"{path} is of a --quick run, whose numbers mean nothing; give folders of full runs")
    found.finished.append(FoundJob(folder, result, result.text("recipe"), result.whole("seed") or 0))


def _refuse_twins(jobs: Sequence[FoundJob]) -> None:
    seen: dict[tuple[str, int], Path] = {}
    for job in jobs:
        other = seen.setdefault((job.recipe, job.seed), job.folder)
        if other.resolve() != job.folder.resolve():
            raise InputError(f"{other} and {job.folder} are both {job.recipe}, seed {job.seed}; give one of them")


KEPT = 6
"""Significant digits of what training measured."""


def rounded(value: Any, digits: int = KEPT) -> Any:
    """The value with every float in it rounded to so many significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item, digits) for item in value]
    return value


PAIRS, DIGITS = 1000, 4
LEFT_OUT = ("config", "histograms", "quick")
"""Of ``result.json``: these are in files of their own, or always the same."""


def collect(folders: Sequence[Path], into: Path) -> tuple[list[str], list[Path]]:
    """Keep every finished job of the folders; returns their names, and the folders of unfinished jobs."""
    found = find_jobs(folders, into)
    kept = [(job, _files(job)) for job in found.finished]  # all are read before anything is written
    _refuse_mixtures(kept, into)
    for job, texts in kept:
        _write(job_folder(into, job.recipe, job.seed), texts)
    return [f"{job.recipe}, seed {job.seed}" for job in found.finished], found.unfinished


def _refuse_mixtures(kept: Sequence[tuple[FoundJob, Mapping[str, str]]], into: Path) -> None:
    """The seeds of a row are averaged, so they must be runs of one recipe; what was only watched may differ."""
    given = {job_folder(into, job.recipe, job.seed): (job.folder, texts[CONFIG_FILE]) for job, texts in kept}
    there = (place for row in {place.parent for place in given} for place in row.glob("seed-*") if place not in given)
    first: dict[Path, tuple[Path, dict[str, Any]]] = {}
    for place in [*given, *sorted(there)]:
        folder, text = given.get(place) or (place, read_text(place / CONFIG_FILE))
        settings = {key: value for key, value in tomllib.loads(text).items() if key not in ("seed", "watch")}
        other, theirs = first.setdefault(place.parent, (folder, settings))
        if settings != theirs:
            raise InputError(
                f"{other} and {folder} are seeds of one row, but not of one recipe "
                f"({', '.join(changes(settings, theirs)[:3])} in the latter); keep one kind, move the other away"
            )


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    if folder.is_dir():
        shutil.rmtree(folder)
    make_folder(folder)
    for name, text in texts.items():
        write_text_atomic(folder / name, text)


def _files(job: FoundJob) -> dict[str, str]:
    lines, cut_off = read_lines(job.folder / "run" / METRICS)
    if cut_off:
        raise InputError(f"{job.folder / 'run' / METRICS} is cut off, but the job is finished; was it damaged?")
    tables = {
        RESULT: {key: value for key, value in job.result.values.items() if key not in LEFT_OUT},
        EVALUATION: _report(job.folder / "evaluation"),
        AUTOATTACK: _report(job.folder / "autoattack"),
        AUTOATTACK_8_255: _report(job.folder / "autoattack-8-255"),
        EPS: _report(job.folder / "eps"),
        MARGINS: _margins(job),
        DISTANCE: _distance(job.folder / "distance"),
    }
    texts = {
        CONFIG_FILE: read_text(job.folder / "run" / CONFIG_FILE),
        METRICS: "".join(json.dumps(rounded(line)) + "\n" for line in lines),
    }
    return texts | {name: _text(table) for name, table in tables.items() if table}


def _text(table: Mapping[str, Any]) -> str:
    """A table as JSON, a field a line, so that thousands of counts are one."""
    lines = [f"  {json.dumps(key)}: {json.dumps(rounded(value))}" for key, value in table.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _report(folder: Path) -> dict[str, Any]:
    """The report of an evaluation, without the paths of the machine it was made on."""
    path = folder / REPORT
    content = read_json(path) if path.is_file() else {}
    if not isinstance(content, dict):
        raise InputError(f"{path} must be a table; evaluate again")
    return {key: value for key, value in content.items() if key not in ("target", *DIGESTS.values())}


def _margins(job: FoundJob) -> dict[str, Any]:
    """Counts in L2 where the table reports margins, else those of the evaluation in its own norm."""
    found = job.result.table("histograms")
    kept = {name: {"norm": "l2"} | dict(found.table(name).values) for name in found.values}
    examples = read_examples(job.folder / "evaluation" / EXAMPLES)
    if "margin_test" in kept or examples is None or not examples.finite_margins():
        return kept
    norm = Fields(job.folder / "evaluation" / REPORT, _report(job.folder / "evaluation")).text("norm", "linf")
    counted = count_margins(torch.tensor(examples.finite_margins()), width=WIDTHS[norm])
    return kept | {
        "margin_test": {"norm": norm, "width": counted.width, "first": counted.first, "counts": list(counted.counts)}
    }


def _distance(folder: Path) -> dict[str, Any]:
    report, examples = _report(folder), read_examples(folder / EXAMPLES)
    if not report or examples is None:
        return {}
    pairs = _pairs(examples)
    shown = {key: report.get(key) for key in ("norm", "distance", "data", "precision", "device", "versions", "seconds")}
    return shown | {"pairs": pairs}


def _pairs(examples: Examples) -> list[list[float]]:
    """(margin, distance) of the first correctly classified images."""
    return [[rounded(value, DIGITS) for value in pair] for pair in examples.margin_and_distance()[:PAIRS]]


@dataclass(frozen=True)
class Counts:
    """Margins counted in bins of ``width``, the first of them at ``first`` widths."""

    norm: str
    width: float
    first: int
    counts: Sequence[int]
    without: int = 0
    """Images that have no margin: the network says the same all around them."""


@dataclass(frozen=True)
class Pairs:
    """(margin, distance) of some images, and how their orders agree."""

    norm: str
    pairs: Sequence[tuple[float, float]]
    correlation: float | None
    precision: str = "unknown"


@dataclass(frozen=True)
class EpsCurve:
    """Accuracy without attack, and under one at each eps, the smallest first."""

    clean: float
    points: Sequence[tuple[Radius, float]]


@dataclass(frozen=True, kw_only=True)
class CollectedJob:
    """One recipe with one seed."""

    recipe: str
    seed: int
    result: Fields
    run: Run
    evaluation: Fields
    autoattack: Fields
    autoattack_8_255: Fields
    """At the eps of RobustBench, on the first images."""
    margins: Counts | None
    """Of the test images, misclassified ones left of zero."""
    distance: Pairs | None
    over_eps: EpsCurve | None

    @property
    def correct_without_margin(self) -> tuple[int, int]:
        """(how many correctly classified test images have no margin and are in no mean, how many there are)."""
        images, clean = self.evaluation.table("data").whole("count"), self.result.table("accuracy").number("clean")
        measured = self.result.table("margin_test").whole("count")
        if images is None or clean is None or measured is None:
            return 0, 0
        correct = round(clean * images / 100)
        return max(0, correct - measured), correct

    def numbers(self) -> dict[str, Any]:
        """Accuracies, AutoAttack's among them where it was run later, and margins."""
        accuracy = self.result.table("accuracy").numbers()
        later = self.autoattack.table("accuracy").number("autoattack")
        accuracy |= {} if later is None else {"autoattack": later}
        names = ("margin_train", "margin_test")
        return {"accuracy": accuracy} | {name: {"mean": self.result.table(name).number("mean")} for name in names}


def read_tree(into: Path) -> list[CollectedJob]:
    """Every job, by recipe and seed."""
    folders = [path.parent for path in (into / ROWS).glob(f"*/seed-*/{RESULT}")]
    if not folders:
        raise InputError(
            f"{into / ROWS} holds no collected job; give the folders that 'widemargin reproduce --out' named"
        )
    return sorted((_job(folder) for folder in folders), key=lambda job: (job.recipe, job.seed))


def _job(folder: Path) -> CollectedJob:
    result = _table(folder / RESULT)
    recipe, seed = result.text("recipe"), result.whole("seed")
    if not recipe or seed is None:
        raise InputError(f"{result.path} has no recipe or no seed; collect the job again")
    evaluation = _table(folder / EVALUATION)
    return CollectedJob(
        recipe=recipe,
        seed=seed,
        result=result,
        run=read_run(folder),
        evaluation=evaluation,
        autoattack=_table(folder / AUTOATTACK),
        autoattack_8_255=_table(folder / AUTOATTACK_8_255),
        margins=_counts(_table(folder / MARGINS).table("margin_test"), evaluation),
        distance=_tree_pairs(_table(folder / DISTANCE)),
        over_eps=_eps_curve(_table(folder / EPS)),
    )


def _table(path: Path) -> Fields:
    """A file of the job; empty where there is none."""
    content = read_json(path) if path.is_file() else {}
    if not isinstance(content, dict):
        raise InputError(f"{path} must be a table; collect the job again")
    return Fields(path, content)


def _counts(table: Fields, evaluation: Fields) -> Counts | None:
    """``evaluation`` says how many test images there are."""
    width, first = table.number("width"), table.whole("first")
    if not table.values or not width or first is None:
        return None
    counts = [int(count) for count in table.list("counts")]
    images = evaluation.table("data").whole("count") or 0
    return Counts(table.text("norm", "l2"), width, first, counts, max(0, images - sum(counts)))


def _tree_pairs(table: Fields) -> Pairs | None:
    pairs = [(float(margin), float(distance)) for margin, distance in table.list("pairs")]
    if not pairs:
        return None
    correlation = table.table("distance").number("rank_correlation")
    return Pairs(table.text("norm", "l2"), pairs, correlation, table.text("precision", "unknown"))


def _eps_curve(table: Fields) -> EpsCurve | None:
    clean, found = table.table("accuracy").number("clean"), curves(table.table("curves"))
    points = next(iter(found.values()), [])
    return EpsCurve(clean, points) if clean is not None and points else None


def circumstances(jobs: Sequence[CollectedJob]) -> str:
    """Each kind that occurs, the most frequent first, with how many jobs have it where they differ."""
    parts = [
        f"Hardware: {kinds(job.result.text('device', 'unknown') for job in jobs)}.",
        f"Trained with: {kinds(job.result.text('engine', 'unknown') for job in jobs)}.",
        f"Judged in: {kinds(job.evaluation.text('precision', 'unknown') for job in jobs)}.",
        f"Versions: {kinds(_versions(job.result.table('versions')) for job in jobs)}.",
    ]
    trained = {(job.result.text("trained_as", job.recipe), job.seed): job for job in jobs}  # rows may share a run
    training = _hours(_sum(trained.values(), "training_seconds"))
    judging = _hours(_sum(jobs, "evaluation_seconds"))
    together = max(job.result.whole("workers") or 1 for job in jobs)
    shared = f", up to {together} jobs sharing the device" if together > 1 else ""
    return " ".join([*parts, f"Time of all jobs together: {training} of training, {judging} of judging{shared}."])


def _sum(jobs: Iterable[CollectedJob], key: str) -> float:
    return sum(job.result.number(key) or 0.0 for job in jobs)


def kinds(values: Iterable[str]) -> str:
    """Each value that occurs, with how many jobs have it where they differ."""
    counted = sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0]))
    if len(counted) == 1:
        return counted[0][0]
    return "; ".join(f"{value.replace(';', ',')} ({count} job{'s' * (count > 1)})" for value, count in counted)


def _versions(table: Fields) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(table.words().items())) or "unknown"


def _hours(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def over_seeds(jobs: Sequence[CollectedJob], key: str) -> tuple[list[float], list[float]]:
    """(epochs, means): of each epoch that every seed has."""
    curves = [dict(job.run.curve(key)) for job in jobs]
    epochs = sorted(set.intersection(*(set(curve) for curve in curves)))
    return epochs, [fmean(curve[epoch] for curve in curves) for epoch in epochs]


def clean_accuracy(jobs: Sequence[CollectedJob]) -> float:
    """What they end with without an attack, on test images or else held-out ones; 0 where it was not watched."""
    ends = (over_seeds(jobs, key)[1] for key in ("test_clean", "validation_clean"))
    return next((values[-1] for values in ends if values), 0.0)


def watched_attack(job: CollectedJob) -> str:
    """``PGD-20, eps 0.1``; "attacked" where the run does not say."""
    attack = Fields(job.run.folder / CONFIG, job.run.config).table("watch").table("attack")
    steps, eps = attack.whole("steps"), attack.number("eps")
    if attack.text("kind") != "pgd" or steps is None or eps is None:
        return "attacked"
    return f"PGD-{steps}, eps {eps:g}"
