"""The result of an evaluation, in memory and as ``report.json`` and ``examples.jsonl`` for everybody else."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from widemargin.checkpoints import software_versions
from widemargin.errors import InputError
from widemargin.evaluation.accuracy import percent
from widemargin.evaluation.alarms import Alarm
from widemargin.evaluation.settings import EvaluationSettings, written
from widemargin.evaluation.store import Store
from widemargin.files import write_text_whole
from widemargin.margins import summarize
from widemargin.ranks import rank_correlation
from widemargin.records import Digested, digest_of_file, sealed

FORMAT = "widemargin-evaluation-1"
IN_MEMORY = "tensors in memory"
EXAMPLES, GALLERY = "examples", "gallery"
"""Of the digests of these files in ``report.json``, which has one of itself too."""
_OF_DATA = ("data", "source", "split", "whole")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What was judged, in words a reader of the numbers needs."""

    target: str = "a model in memory"
    name: str | None = None
    weights: str = "as given"
    selection: str = "as given"
    epoch: int | None = None
    data: str = IN_MEMORY
    source: str | None = None
    """How the data is named to the command line, where its own name does not do: the path of a file."""
    split: str = "test"
    """Or "validation": what the run that made the weights held out."""
    whole: int | None = None
    """How many images the split has, where only the first of them were judged."""
    head_scale: float | None = None
    normalize: str | None = None
    """What public weights were trained behind, as it was given, or that nothing says so; None where they say it."""
    config: dict[str, Any] | None = None
    """The configuration of the run that made the weights, where one of ours did."""
    checkpoint: str | None = None
    """The checksum of the file that held them, by which the run is found again wherever it was moved."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Accuracy in percent and verdicts, (N,) bool, by attack; several eps make names such as "pgd20@2/255"."""

    settings: EvaluationSettings
    subject: Subject
    accuracy: dict[str, float]
    verdicts: dict[str, Tensor]
    margin: Tensor | None
    distance: Tensor | None
    alarms: list[Alarm]
    notes: tuple[str, ...] = ()
    """What is to be known about how the numbers were made, whatever they are."""
    seconds: dict[str, float]
    device: str
    count: int
    files: Path | None = None
    refuted: int = 0
    """What parts of AutoAttack found with TF32 and is not adversarial in float32, an image once for each part."""
    again: int = 0
    """Images whose distances were searched again in float32."""
    undecided: dict[str, list[int]] = field(default_factory=dict)
    """By attack, the images that it made into ones without a prediction, which count as broken."""
    curves: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What ``report.json`` holds."""
        settings, subject = self.settings, self.subject
        return {
            "format": FORMAT,
            **{key: value for key, value in asdict(subject).items() if key not in _OF_DATA},
            "data": self._data(),
            "norm": settings.norm,
            "eps": [{"written": written(eps), "value": float(eps)} for eps in settings.eps],
            "step_size": self._step_size(),
            "seed": settings.seed,
            "shard_size": settings.shard_size,
            "batch_size": settings.batch_size,
            "attacks": list(settings.attacks),
            "search": settings.search,
            "accuracy": self.accuracy,
            "curves": self.curves,
            "margins": self._margins(),
            "distance": self._distance(),
            "alarms": [asdict(alarm) for alarm in self.alarms],
            "notes": list(self.notes),
            "versions": software_versions(),
            "device": self.device,
            "precision": self._precision(),
            "seconds": self.seconds,
        }

    def _precision(self) -> str:
        return "float32 (no TF32)" + "; attacks searched with TF32" * (self.settings.search == "tf32")

    def _data(self) -> dict[str, Any]:
        subject = self.subject
        table = {"name": subject.data, "split": subject.split, "count": self.count}
        more = {"source": subject.source, "whole": subject.whole}
        return table | {key: value for key, value in more.items() if value is not None}

    def _step_size(self) -> float | None:
        """As given; eps/4 for one eps; None for several, each of which has its own eps/4."""
        settings = self.settings
        if settings.step_size is not None:
            return float(settings.step_size)
        return float(settings.eps[0]) / 4 if len(settings.eps) == 1 else None

    def _margins(self) -> dict[str, Any] | None:
        if self.margin is None:
            return None
        correct = self.margin[self.verdicts["clean"]]
        return {"all": asdict(summarize(self.margin)), "correct": asdict(summarize(correct))}

    def _distance(self) -> dict[str, Any] | None:
        if self.distance is None:
            return None
        found = self.distance[self.verdicts["clean"] & self.distance.isfinite()]
        correlation = None
        if self.margin is not None:
            chosen = self.verdicts["clean"]
            correlation = rank_correlation(self.margin[chosen], self.distance[chosen])
        median = float(found.quantile(0.5)) if len(found) else None
        return {"count": len(found), "median": median, "rank_correlation": correlation}


def collect(
    store: Store,
    shard_numbers: Iterable[int],
    settings: EvaluationSettings,
    subject: Subject,
    alarms: list[Alarm],
    device: str,
) -> Report:
    """Put the finished shards together."""
    verdicts: dict[str, list[bool]] = {}
    measured: dict[str, list[float]] = {}
    seconds: dict[str, float] = {}
    undecided: dict[str, list[int]] = {}
    refuted = again = 0
    for number in shard_numbers:
        header, examples = store.shard(number)
        refuted += header.get("refuted", 0)
        again += header.get("again", 0)
        for name, images in header.get("undecided", {}).items():
            undecided.setdefault(name, []).extend(images)
        for name, value in header["seconds"].items():
            seconds[name] = round(seconds.get(name, 0.0) + value, 3)
        for example in examples:
            for name, verdict in example["verdicts"].items():
                verdicts.setdefault(name, []).append(verdict)
            for name in ("margin", "distance"):
                if name in example:
                    endless = float("inf") if example["verdicts"]["clean"] else float("-inf")
                    measured.setdefault(name, []).append(endless if example[name] is None else float(example[name]))
    _check_columns(verdicts, measured, settings, store.folder)
    flags = {name: torch.tensor(values, dtype=torch.bool) for name, values in verdicts.items()}
    accuracy = {name: percent(values) for name, values in flags.items()}
    tensors = {name: torch.tensor(values, dtype=torch.float32) for name, values in measured.items()}
    return Report(
        settings=settings,
        subject=subject,
        accuracy=accuracy,
        verdicts=flags,
        margin=tensors.get("margin"),
        distance=tensors.get("distance"),
        alarms=alarms,
        seconds=seconds,
        device=device,
        count=len(flags["clean"]),
        files=store.folder,
        refuted=refuted,
        again=again,
        undecided=undecided,
        curves=_curves(accuracy, settings),
    )


def _check_columns(
    verdicts: dict[str, list[bool]], measured: dict[str, list[float]], settings: EvaluationSettings, folder: Path | None
) -> None:
    """Every example has every verdict and measurement that the settings ask for."""
    asked = {"clean", *(settings.label(name, eps) for name in settings.attacks for eps in settings.eps)}
    asked |= {name for name, wanted in (("margin", settings.margins), ("distance", settings.distance)) if wanted}
    columns = verdicts | measured
    count = len(verdicts.get("clean", []))
    for name in sorted(asked | columns.keys()):
        if len(columns.get(name, [])) != count:
            raise InputError(
                f"{folder}: {len(columns.get(name, []))} of {count} examples in the shards have {name!r}; remove the "
                "shards that lack it, and the same command makes them again"
            )


def _curves(accuracy: dict[str, float], settings: EvaluationSettings) -> dict[str, list[dict[str, Any]]]:
    names = [name for name in settings.attacks if name != "clean"]
    return {
        name: [
            {"eps": float(eps), "written": written(eps), "accuracy": accuracy[settings.label(name, eps)]}
            for eps in sorted(settings.eps, key=float)
        ]
        for name in names
    }


def write_report(report: Report, store: Store, shard_numbers: Iterable[int]) -> None:
    """``report.json`` and ``examples.jsonl`` in the store's folder."""
    if store.folder is None:
        return
    examples = Digested(example for number in shard_numbers for example in store.shard(number)[1])
    write_text_whole(store.folder / "examples.jsonl", "".join(json.dumps(example) + "\n" for example in examples))
    record = report.to_json() | {EXAMPLES: examples.digest}
    gallery = store.folder / "gallery.npz"
    if gallery.is_file():
        record[GALLERY] = digest_of_file(gallery)
    write_text_whole(store.folder / "report.json", json.dumps(sealed(record), indent=2) + "\n")
