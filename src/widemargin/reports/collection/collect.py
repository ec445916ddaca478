"""From a job's folder to the few files that are kept of it: no weights, no line per example.

``config.toml`` and ``metrics.jsonl`` are the run's, ``result.json`` and ``evaluation.json`` its judgment,
``autoattack.json``, ``autoattack-8-255.json`` and ``eps.json`` later ones. ``margins.json`` has histogram counts,
``distance.json`` at most 1,000 pairs of margin and distance. What was collected of the job before is replaced.
"""

import json
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from widemargin.errors import InputError
from widemargin.files import make_folder, write_text_whole
from widemargin.margins.histogram import WIDTHS, count_margins
from widemargin.records import read_lines, read_text
from widemargin.reports.changes import changes
from widemargin.reports.collection import layout
from widemargin.reports.collection.found_jobs import FoundJob, find_jobs
from widemargin.reports.collection.rounding import rounded
from widemargin.reports.inputs.evaluation_folder import EXAMPLES_DIGEST, GALLERY_DIGEST, REPORT
from widemargin.reports.inputs.examples import EXAMPLES, Examples, read_examples
from widemargin.reports.inputs.fields import Fields, read_json

PAIRS, DIGITS = 1000, 4
LEFT_OUT = ("config", "histograms", "quick")
"""Of ``result.json``: these are in files of their own, or always the same."""


def collect(folders: Sequence[Path], into: Path) -> tuple[list[str], list[Path]]:
    """Keep every finished job of the folders; returns their names, and the folders of unfinished jobs."""
    found = find_jobs(folders, into)
    kept = [(job, _files(job)) for job in found.finished]  # all are read before anything is written
    _refuse_mixtures(kept, into)
    for job, texts in kept:
        _write(layout.job_folder(into, job.recipe, job.seed), texts)
    return [f"{job.recipe}, seed {job.seed}" for job in found.finished], found.unfinished


def _refuse_mixtures(kept: Sequence[tuple[FoundJob, Mapping[str, str]]], into: Path) -> None:
    """The seeds of a row are averaged, so they must be runs of one recipe; what was only watched may differ."""
    given = {layout.job_folder(into, job.recipe, job.seed): (job.folder, texts[layout.CONFIG]) for job, texts in kept}
    there = (place for row in {place.parent for place in given} for place in row.glob("seed-*") if place not in given)
    first: dict[Path, tuple[Path, dict[str, Any]]] = {}
    for place in [*given, *sorted(there)]:
        folder, text = given.get(place) or (place, read_text(place / layout.CONFIG))
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
        write_text_whole(folder / name, text)


def _files(job: FoundJob) -> dict[str, str]:
    lines, cut_off = read_lines(job.folder / "run" / layout.METRICS)
    if cut_off:
        raise InputError(f"{job.folder / 'run' / layout.METRICS} is cut off, but the job is finished; was it damaged?")
    tables = {
        layout.RESULT: {key: value for key, value in job.result.values.items() if key not in LEFT_OUT},
        layout.EVALUATION: _report(job.folder / "evaluation"),
        layout.AUTOATTACK: _report(job.folder / "autoattack"),
        layout.AUTOATTACK_8_255: _report(job.folder / "autoattack-8-255"),
        layout.EPS: _report(job.folder / "eps"),
        layout.MARGINS: _margins(job),
        layout.DISTANCE: _distance(job.folder / "distance"),
    }
    texts = {
        layout.CONFIG: read_text(job.folder / "run" / layout.CONFIG),
        layout.METRICS: "".join(json.dumps(rounded(line)) + "\n" for line in lines),
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
    return {key: value for key, value in content.items() if key not in ("target", EXAMPLES_DIGEST, GALLERY_DIGEST)}


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
