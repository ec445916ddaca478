"""Evaluation folders compared: what they say of each image, whether that was found in the same way, which is better.

Verdicts are compared only where the attack, its norm, eps and step are the same on both sides; margins and certified
radii only in the same norm, distances only where the same attacks looked for them. The comparison itself is in
``comparison.py``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from widemargin.core.records import Fields, Lines, read_table
from widemargin.errors import InputError
from widemargin.evaluation.columns import Column, columns_of_settings
from widemargin.evaluation.comparison import NUMBERS, Comparison, JudgedImages, compare_judged, strongest_common
from widemargin.evaluation.examples import EXAMPLES
from widemargin.evaluation.folder import AGAIN, REPORT, SHARDS, Evaluation, read_evaluation

Folders = str | Path | Sequence[str | Path]
ENDLESS = {"margin": torch.inf, "distance": torch.inf, "certified": torch.nan}
"""What a record's null stands for where the image is classified correctly; not every image is certified."""


@dataclass(frozen=True)
class JudgedFolder:
    """An evaluation, as it is read, and what it says of each image."""

    evaluation: Evaluation
    images: JudgedImages
    columns: Mapping[str, Column]
    """By label, what each verdict depends on."""


def compare(first: Folders, second: Folders, by: str | None = None) -> Comparison:
    """Compare the models of two evaluation folders, or the seeds of two models, a folder each.

    ``by`` is an attack's name as ``report.json`` has it, "clean", "margin", "distance" or "certified"; the strongest
    attack that all were judged by unless given. Of one folder each, images are paired; of several, seeds are.
    """
    sides = read_sides(first, second)
    return compare_sides(sides, by or strongest_common([judged.images for side in sides for judged in side]))


def read_sides(first: Folders, second: Folders) -> tuple[list[JudgedFolder], list[JudgedFolder]]:
    """Both sides, each with at least one folder."""
    ours, theirs = ([read_judged(Path(folder)) for folder in listed_folders(side)] for side in (first, second))
    return ours, theirs


def listed_folders(folders: Folders) -> list[str | Path]:
    """One folder or several."""
    return [folders] if isinstance(folders, str | Path) else list(folders)


def read_judged(folder: Path) -> JudgedFolder:
    """What a finished evaluation says of each image."""
    if not (folder / REPORT).is_file():
        raise InputError(
            f"compare: {folder} has no {REPORT}; give the folder of a finished evaluation, which widemargin evaluate "
            "TARGET --out FOLDER makes"
        )
    faults: list[str] = []
    evaluation = read_evaluation(folder, faults)
    if evaluation is None or evaluation.examples is None:
        raise InputError(
            f"compare: {faults[0]}" if faults else f"compare: {folder} holds no evaluation of single images"
        )
    labels: list[int] = []
    verdicts: dict[str, list[bool]] = {}
    numbers: dict[str, list[float]] = {}
    for line, row in enumerate(Lines(folder / EXAMPLES), start=1):
        fields = Fields(folder / EXAMPLES, row, f"line {line}: ")
        labels.append(fields.whole("label") or 0)
        flags = fields.table("verdicts").values
        for name, value in flags.items():
            verdicts.setdefault(name, []).append(value is True)
        for name in NUMBERS:
            if name in row:
                numbers.setdefault(name, []).append(_number(fields, name, correct=flags.get("clean") is True))
    return JudgedFolder(
        evaluation,
        JudgedImages(
            name=str(folder),
            labels=torch.tensor(labels),
            verdicts={name: torch.tensor(column) for name, column in verdicts.items() if len(column) == len(labels)},
            numbers={
                name: torch.tensor(column, dtype=torch.double)
                for name, column in numbers.items()
                if len(column) == len(labels)
            },
            seed=_seed(evaluation),
            images=_digests(folder, evaluation),
        ),
        _columns(evaluation),
    )


def _columns(evaluation: Evaluation) -> dict[str, Column]:
    """As the report has them, or as earlier versions implied them."""
    kept = read_table(evaluation.file, AGAIN).get("columns")
    if kept is None:
        settings = {
            "eps": [radius.written for radius in evaluation.eps],
            "radii": [radius.value for radius in evaluation.eps],
            "attacks": evaluation.attacks,
            "step_size": evaluation.step_size,
        }
        return columns_of_settings(settings)
    try:
        return {str(name): Column.from_json(table) for name, table in kept.items()}
    except (AttributeError, KeyError, TypeError):
        raise InputError(f"{evaluation.file}: columns must say of each attack what it was; {AGAIN}") from None


def _number(fields: Fields, name: str, *, correct: bool) -> float:
    value = fields.values[name]
    if value == "nan":
        return torch.nan
    if value is None:
        return ENDLESS[name] if correct else -torch.inf
    return fields.number(name) or 0.0


def _seed(evaluation: Evaluation) -> int | None:
    """Of the training run, where one of ours made the weights."""
    seed = (evaluation.config or {}).get("seed")
    return seed if isinstance(seed, int) else None


def _digests(folder: Path, evaluation: Evaluation) -> dict[int, str] | None:
    """The digest of each shard's images, by the first of them, where they are still there; shards have one size."""
    files = sorted((folder / SHARDS).glob("*.sha256"))
    size = evaluation.shard_size
    if size is None:
        return None
    return {size * int(path.stem): f"{size} {path.read_text()[:80]}" for path in files if path.stem.isdecimal()}


def compare_sides(sides: tuple[Sequence[JudgedFolder], Sequence[JudgedFolder]], by: str) -> Comparison:
    """The comparison by one name; refused where the sides were judged otherwise. Models have their recipes' names."""
    everything = [judged for side in sides for judged in side]
    first = everything[0]
    for other in everything[1:]:
        ours, theirs = (found_by(judged, by) for judged in (first, other))
        if ours != theirs and all(
            by in {**judged.images.verdicts, **judged.images.numbers} for judged in (first, other)
        ):
            raise InputError(
                f"compare: {by} is {_told(ours)} in {first.images.name} and {_told(theirs)} in {other.images.name}; "
                "evaluate both in the same way"
            )
    ours_judged, theirs_judged = ([_comparable(judged, first) for judged in side] for side in sides)
    comparison = compare_judged(ours_judged, theirs_judged, by)
    names = [{judged.evaluation.name for judged in side} for side in sides]
    if names[0] == names[1] or any(len(side) > 1 or None in side for side in names):
        return comparison
    ((ours_named,), (theirs_named,)) = names
    return replace(comparison, first=str(ours_named), second=str(theirs_named))


def _comparable(judged: JudgedFolder, other: JudgedFolder) -> JudgedImages:
    """With digests of the images only where both were cut into shards of one size, else none would be equal."""
    same = judged.evaluation.shard_size == other.evaluation.shard_size
    return judged.images if same else replace(judged.images, images=None)


def found_by(judged: JudgedFolder, by: str) -> dict[str, Any]:
    """What a column depends on, in words of the report."""
    evaluation, column = judged.evaluation, judged.columns.get(by)
    if by == "clean":
        return {}
    if by == "distance":
        return {"norm": evaluation.norm, "method": evaluation.distance and evaluation.distance.method}
    if column is None:
        return {"norm": evaluation.norm}
    steps = {"step size": "eps/4" if column.step_size is None else column.step_size}
    found = {"norm": evaluation.norm, "eps": column.radius} | (steps if column.attack.startswith("pgd") else {})
    return found | ({"code": column.code[:12]} if column.code else {})


def _told(found: dict[str, Any]) -> str:
    words = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in found.items()}
    return ", ".join(f"{key} {value}" for key, value in words.items())


def known_to(judged: JudgedFolder) -> set[str]:
    """The names by which it can be compared."""
    return judged.images.verdicts.keys() | judged.images.numbers.keys()


def common_names(sides: tuple[Sequence[JudgedFolder], Sequence[JudgedFolder]]) -> list[str]:
    """Attacks, not their parts, and numbers that all of them have and found in the same way."""
    everything = [judged for side in sides for judged in side]
    first, *others = everything
    names = [name for name in first.images.verdicts if "/" not in name.partition("@")[0]] + list(first.images.numbers)
    return [
        name
        for name in names
        if all(name in known_to(other) for other in others)
        and all(found_by(other, name) == found_by(first, name) for other in others)
    ]
