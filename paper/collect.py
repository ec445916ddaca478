"""From the folders of ``widemargin reproduce`` to the few files that are kept of each job.

No weights and no line per example: ``config.toml`` and ``metrics.jsonl`` are the run's, ``result.json`` and
``evaluation.json`` its judgment, ``autoattack.json``, ``eps.json`` and so on later ones. ``margins.json`` has histogram
counts, ``distance.json`` at most 1,000 pairs of margin and distance, ``certified.json`` the certified radii with both.
Numbers are cut to what a reader or a figure can use, so that the tree stays small and diffs are legible. What was
collected of the job before is replaced.
"""

import json
import os
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from paper.tree import (
    AUTOATTACK,
    AUTOATTACK_8_255,
    AUTOATTACK_1000,
    CERTIFIED,
    DISTANCE,
    EPS,
    EVALUATION,
    MARGINS,
    ROWS,
    STRONGEST,
    job_folder,
)
from widemargin.config.checkpoint import CONFIG, METRICS
from widemargin.core.files import make_folder, write_text_atomic
from widemargin.core.records import Fields, Lines, read_json, read_table, read_text
from widemargin.errors import InputError
from widemargin.evaluation.examples import EXAMPLES, Examples, read_examples
from widemargin.evaluation.folder import DIGESTS, REPORT
from widemargin.jobs.job import RESULT, RUN
from widemargin.margins import WIDTHS, count_margins
from widemargin.report.compare import changes
from widemargin.report.findings import AGAIN


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
        for inside in _job_folders(folder, into / ROWS):
            _add_job(inside, found)
        if len(found.finished) == before:
            raise InputError(f"{folder} holds no finished job of 'widemargin reproduce'; was it the right folder?")
    _refuse_repeated(found.finished)
    return found


def _job_folders(folder: Path, tree: Path) -> Iterator[Path]:
    """The folder and those inside it, in order; not hidden ones, not inside a job, not the tree."""
    for here, inside, files in os.walk(folder):
        yield Path(here)
        job = RESULT in files or RUN in inside
        kept = [] if job else sorted(name for name in inside if not name.startswith("."))
        inside[:] = [name for name in kept if (Path(here) / name).resolve() != tree.resolve()]


def _add_job(folder: Path, found: FoundJobs) -> None:
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


def _refuse_repeated(jobs: Sequence[FoundJob]) -> None:
    seen: dict[tuple[str, int], Path] = {}
    for job in jobs:
        other = seen.setdefault((job.recipe, job.seed), job.folder)
        if other.resolve() != job.folder.resolve():
            raise InputError(f"{other} and {job.folder} are both {job.recipe}, seed {job.seed}; give one of them")


PRECISION = 6
"""Significant digits of what training measured."""


def rounded(value: Any, digits: int = PRECISION) -> Any:
    """The value with every float in it rounded to so many significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: rounded(item, digits) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item, digits) for item in value]
    return value


PAIRS, PAIR_PRECISION = 1000, 4
REPORTS = (EVALUATION, AUTOATTACK, AUTOATTACK_8_255, AUTOATTACK_1000, STRONGEST, EPS)
"""Reports of evaluations in the folders of these names, kept whole."""
LEFT_OUT = ("config", "histograms", "quick")
"""Of ``result.json``: these are in files of their own, or always the same."""


def collect(folders: Sequence[Path], into: Path) -> tuple[list[str], list[Path]]:
    """Keep every finished job of the folders; returns their names, and the folders of unfinished jobs."""
    found = find_jobs(folders, into)
    kept = [(job, _kept_files(job)) for job in found.finished]  # all are read before anything is written
    _refuse_mixtures(kept, into)
    for job, texts in kept:
        _write(job_folder(into, job.recipe, job.seed), texts)
    return [f"{job.recipe}, seed {job.seed}" for job in found.finished], found.unfinished


DIFFER = ("seed", "watch", "init_from")
"""Settings in which the seeds of a row may differ; a row that begins with another one's weights has a path for each."""


def _refuse_mixtures(kept: Sequence[tuple[FoundJob, Mapping[str, str]]], into: Path) -> None:
    """The seeds of a row are averaged, so they must be runs of one recipe; what was only watched may differ."""
    given = {job_folder(into, job.recipe, job.seed): (job.folder, texts[CONFIG]) for job, texts in kept}
    there = (place for row in {place.parent for place in given} for place in row.glob("seed-*") if place not in given)
    first: dict[Path, tuple[Path, dict[str, Any]]] = {}
    for place in [*given, *sorted(there)]:
        folder, text = given.get(place) or (place, read_text(place / CONFIG))
        settings = {key: value for key, value in tomllib.loads(text).items() if key not in DIFFER}
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


def _kept_files(job: FoundJob) -> dict[str, str]:
    lines = [*(read := Lines(job.folder / RUN / METRICS))]
    if read.cut_off:
        raise InputError(f"{job.folder / 'run' / METRICS} is cut off, but the job is finished; was it damaged?")
    tables = {
        RESULT: {key: value for key, value in job.result.values.items() if key not in LEFT_OUT},
        **{name: _report(job.folder / Path(name).stem) for name in REPORTS},
        MARGINS: _margins(job),
        DISTANCE: _distance(job.folder / "distance"),
        CERTIFIED: _certified(job.folder / "certified"),
    }
    config = read_text(job.folder / RUN / CONFIG)
    texts = {CONFIG: config, METRICS: "".join(json.dumps(rounded(line)) + "\n" for line in lines)}
    texts |= {name: _json_text(table) for name, table in tables.items() if table}
    begun = tomllib.loads(config).get("init_from")
    if begun is None:
        return texts
    place = "/".join(Path(begun).parts[-3:])  # recipe, seed, run: without the folders of the machine it was made on
    return {name: text.replace(json.dumps(begun), json.dumps(place)) for name, text in texts.items()}


def _json_text(table: Mapping[str, Any]) -> str:
    """A table as JSON, a field a line, so that thousands of counts are one."""
    lines = [f"  {json.dumps(key)}: {json.dumps(rounded(value))}" for key, value in table.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _report(folder: Path) -> dict[str, Any]:
    """The report of an evaluation, without the paths of the machine it was made on."""
    path = folder / REPORT
    content = read_table(path, "evaluate again") if path.is_file() else {}
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
    return {} if not report or examples is None else _circumstances(report) | {"pairs": _pairs(examples)}


def _circumstances(report: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a report whose images are."""
    return {key: report.get(key) for key in ("norm", "distance", "data", "precision", "device", "versions", "seconds")}


def _certified(folder: Path) -> dict[str, Any]:
    report, examples = _report(folder), read_examples(folder / EXAMPLES)
    if not report or examples is None:
        return {}
    rows = zip(examples.certified, examples.margins, examples.distances, examples.correct, strict=True)
    triples = [rounded([*row], PAIR_PRECISION) for *row, right in rows if right and None not in row]
    return _circumstances(report) | {name: report.get(name) for name in ("certified", "alarms")} | {"triples": triples}


def _pairs(examples: Examples) -> list[list[float]]:
    """(margin, distance) of the first correctly classified images."""
    return [[rounded(value, PAIR_PRECISION) for value in pair] for pair in examples.margin_and_distance()[:PAIRS]]
