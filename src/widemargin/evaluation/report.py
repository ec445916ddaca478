"""The result of an evaluation, in memory and as ``report.json`` and ``examples.jsonl`` for everybody else.

What a reader of the numbers must know about how they were made, whatever they are.

A few examples with their adversarial twins, kept for the page that shows them.

``examples.jsonl``: one line for each example, as far as it is written.

``gallery.npz``: a few images, their adversarial twins, and what the model called both.

The sizes that the archive and its arrays claim are checked before anything is inflated, and nothing is unpickled.

An evaluation, whatever it was read from: a ``report.json``, the shards of an unfinished one, a ``result.json``.

An evaluation folder: ``report.json``, ``examples.jsonl`` and, where asked for, ``gallery.npz``.

An evaluation still under way: ``settings.json`` and the shards finished so far, without a ``report.json``.
"""

import io
import json
import math
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from widemargin.attacks.pgd import FGSM, PGD
from widemargin.config.checkpoint import software_versions
from widemargin.core.fields import Fields, attempted, read_json
from widemargin.core.files import write_atomic, write_text_atomic
from widemargin.core.records import (
    DIGEST,
    MIB,
    Digested,
    Lines,
    changed,
    check_shard,
    digest_of_file,
    read_text,
    sealed,
)
from widemargin.errors import InputError
from widemargin.evaluation.accuracy import percent
from widemargin.evaluation.autoattack import FEWEST_FOR_APGD_T, PARTS, parts_for
from widemargin.evaluation.distance import rank_correlation
from widemargin.evaluation.settings import AUTOATTACK, EvaluationSettings, eps_text
from widemargin.evaluation.shards import Shard, Store
from widemargin.margins import summarize
from widemargin.types import Alarm

FORMAT = "widemargin-evaluation-1"
IN_MEMORY = "tensors in memory"
EXAMPLES, GALLERY = "examples", "gallery"
"""Of the digests of these files in ``report.json``, which has one of itself too."""
_OF_DATA = ("data", "source", "split", "whole")


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
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
    subject: ModelInfo
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
            "eps": [{"written": eps_text(eps), "value": float(eps)} for eps in settings.eps],
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
    subject: ModelInfo,
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
            {"eps": float(eps), "written": eps_text(eps), "accuracy": accuracy[settings.label(name, eps)]}
            for eps in sorted(settings.eps, key=float)
        ]
        for name in names
    }


def write_report(report: Report, store: Store, shard_numbers: Iterable[int]) -> None:
    """``report.json`` and ``examples.jsonl`` in the store's folder."""
    if store.folder is None:
        return
    examples = Digested(example for number in shard_numbers for example in store.shard(number)[1])
    write_text_atomic(store.folder / "examples.jsonl", "".join(json.dumps(example) + "\n" for example in examples))
    record = report.to_json() | {EXAMPLES: examples.digest}
    gallery = store.folder / "gallery.npz"
    if gallery.is_file():
        record[GALLERY] = digest_of_file(gallery)
    write_text_atomic(store.folder / "report.json", json.dumps(sealed(record), indent=2) + "\n")


UNKNOWN = "unknown: the file does not say"


def notes_for(settings: EvaluationSettings, num_classes: int, refuted: int = 0, again: int = 0) -> tuple[str, ...]:
    """Plain sentences; none for an ordinary evaluation.

    ``refuted`` finds were adversarial in the search alone, the distances of ``again`` were searched in float32 too.
    """
    notes = []
    left_out = [part for part in PARTS if part not in parts_for(num_classes)]
    if AUTOATTACK in settings.attacks and left_out:
        notes.append(
            f"AutoAttack ran without its part {', '.join(left_out)}, whose loss needs {FEWEST_FOR_APGD_T} classes; "
            f"this model has {num_classes}."
        )
    if AUTOATTACK in settings.attacks and settings.search == "tf32":
        notes.append(
            "AutoAttack searched with TF32, and all that its parts found was checked in float32, if need be after a "
            f"few more steps; so many finds still were not adversarial there and do not count: {refuted}."
        )
    if settings.distance and settings.search == "tf32":
        notes.append(
            "Distances were searched with TF32 and count where float32 sees the boundary within 3%; so many images "
            f"were searched again in float32: {again}."
        )
    return tuple(notes)


def notes_on_records(without_digest: int, *, late: bool) -> tuple[str, ...]:
    """What could not be checked of records of earlier versions."""
    notes = []
    if without_digest:
        notes.append(
            "Earlier versions wrote shards without a digest; of so many, images, labels and counts were checked, and "
            f"verdicts could not be: {without_digest}."
        )
    if late:
        notes.append(
            "An earlier version began this evaluation and did not record the model's answers; only its weights were "
            "compared when it went on."
        )
    return tuple(notes)


def notes_on(subject: ModelInfo) -> tuple[str, ...]:
    """Whether public weights may want other images, and whether a run is under way; one may stop early."""
    if subject.normalize == UNKNOWN:
        return (
            "Nothing in the file of the weights says how images are normalized, so they are given as they are, in "
            "[0, 1]; if the weights were trained behind a normalization, give it (--normalize cifar10, or MEAN,STD).",
        )
    config = subject.config or {}
    planned = config.get("epochs")
    if subject.weights != "last" or subject.epoch is None or planned is None or config.get("stopping"):
        return ()
    if subject.epoch >= planned:
        return ()
    return (f"The run is not finished: these are its weights after {subject.epoch} of {planned} epochs.",)


GalleryGALLERY, SHOWN, STEPS = "gallery.npz", 8, 20


def is_displayable(shard: Shard) -> bool:
    """Whether these are images in gray or in color."""
    return shard.shows_images and shard.images.shape[1] in (1, 3)


def write_gallery(
    model: nn.Module, shard: Shard, settings: EvaluationSettings, folder: Path, device: torch.device
) -> None:
    """The first images and what the last gradient attack makes of them at the largest eps; PGD-20 for AutoAttack."""
    name, attack = _strongest(settings)
    x, y = shard.images[:SHOWN].to(device), shard.labels[:SHOWN].to(device)
    x_adv = attack(model, x, y)
    content = io.BytesIO()
    np.savez_compressed(
        content,
        images=_bytes(x),
        adversarial=_bytes(x_adv),
        labels=y.cpu().numpy(),
        predictions=_predictions(model, x),
        adversarial_predictions=_predictions(model, x_adv),
        attack=np.array(name),
    )

    def write(partial: Path) -> None:
        partial.write_bytes(content.getvalue())

    write_atomic(folder / GalleryGALLERY, write)


def _strongest(settings: EvaluationSettings) -> tuple[str, PGD | FGSM]:
    """The attack, and its name as the results have it: "pgd20", or "pgd20@8/255" where there are several eps."""
    eps = max(settings.eps, key=float)
    attacks = [(name, attack) for name in settings.attacks if (attack := settings.attack(name, eps)) is not None]
    usual = f"pgd{STEPS}", PGD(eps=eps, step_size=eps / 4, steps=STEPS, norm=settings.norm)
    name, attack = attacks[-1] if attacks else usual
    return settings.label(name, eps), attack


def _bytes(images: Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    return (images * 255).round().to(torch.uint8).cpu().numpy()


def _predictions(model: nn.Module, x: Tensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
    with torch.no_grad():
        return model(x).argmax(1).cpu().numpy()  # type: ignore[no-any-return]


ExamplesEXAMPLES = "examples.jsonl"


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Columns over the examples; None where an example has no such number."""

    margins: Sequence[float | None]
    distances: Sequence[float | None]
    correct: Sequence[bool]
    broken_by: Sequence[str | None]
    broken_at: Sequence[Mapping[str, str]]
    """By eps as written, the part of AutoAttack that broke it there; empty in files from before it was kept."""

    def __len__(self) -> int:
        return len(self.correct)

    def finite_margins(self) -> list[float]:
        """Every margin that is a number."""
        return [margin for margin in self.margins if margin is not None]

    def margin_and_distance(self) -> list[tuple[float, float]]:
        """(margin, distance) of the correctly classified examples that have both."""
        rows = zip(self.margins, self.distances, self.correct, strict=True)
        return [(m, d) for m, d, right in rows if right and m is not None and d is not None]


def read_examples(path: Path, digest: str = "") -> Examples | None:
    """The examples of an evaluation, whose report may know their digest; None without any."""
    if not path.is_file():
        return None
    lines = Digested(Lines(path))
    examples = examples_of(path, lines)
    if digest and lines.digest != digest:
        raise changed(path, "evaluate again, which makes it anew from the shards, or move it away")
    return examples


def examples_of(path: Path, lines: Iterable[Mapping[str, Any]]) -> Examples | None:
    """Turn the lines, of which one at a time is held, into columns; None without any."""
    margins, distances, correct, broken_by, broken_at = [], [], [], [], []
    for number, line in enumerate(lines, start=1):
        row = Fields(path, line, f"line {number}: ")
        margins.append(_finite(row, "margin"))
        distances.append(_finite(row, "distance"))
        correct.append(_clean_verdict(row))
        broken_by.append(row.text("broken_by") or None)
        broken_at.append(row.table("broken_at").words())
    if not correct:
        return None
    return Examples(margins=margins, distances=distances, correct=correct, broken_by=broken_by, broken_at=broken_at)


def _finite(row: Fields, key: str) -> float | None:
    return None if row.values.get(key) == "nan" else row.number(key)


def _clean_verdict(row: Fields) -> bool:
    verdict = row.table("verdicts").values.get("clean")
    if verdict is None:
        return row.values.get("prediction") == row.values.get("label")
    if not isinstance(verdict, bool):
        raise InputError(f"{row.path}: {row.prefix}verdicts.clean must be true or false, got {verdict!r}")
    return verdict


GALLERY_FILE = "gallery.npz"
MOST = 24
"""So many examples are kept."""
INFLATED, SIDE = 32 * MIB, 1024
"""Bytes of an array, and pixels along a side of an image: more is no small picture on a page."""
CLASSES = ("labels", "predictions", "adversarial_predictions")
Array = np.ndarray[Any, np.dtype[Any]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """Images (G, C, H, W) and classes (G,)."""

    images: Bytes
    adversarial: Bytes
    labels: Integers
    predictions: Integers
    adversarial_predictions: Integers
    attack: str


def read_gallery(path: Path, digest: str = "") -> Gallery | None:
    """Read the gallery, whose report may know its digest; None where there is none."""
    if not path.is_file():
        return None
    if digest and digest_of_file(path) != digest:
        raise changed(path, "remove it, and evaluate again")
    try:
        with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
            held = {name.removesuffix(".npy"): archive.getinfo(name) for name in archive.namelist()}
            wanted = [name for name in ("images", "adversarial", *CLASSES, "attack") if name in held]
            arrays = {name: _array(archive, held[name]) for name in wanted}
    except Exception as error:  # zipfile, zlib and numpy fail in many ways on bytes nobody wrote
        raise InputError(f"{path} is not a readable .npz file ({error}); evaluate again, or move it away") from None
    return _gallery(path, arrays)


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """One array, whose header tells the truth about its size."""
    if member.file_size > INFLATED:
        raise ValueError(f"{member.filename} has {member.file_size:,} bytes, more than the {INFLATED:,} of a gallery")
    with archive.open(member) as packed:
        stream = io.BytesIO(packed.read(INFLATED))
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError(f"{member.filename} is no array of a gallery")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    content = stream.read()
    if dtype.hasobject or dtype.fields is not None or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"{member.filename} claims {shape} {dtype} and has {len(content):,} bytes")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


def _gallery(path: Path, arrays: dict[str, Array]) -> Gallery:
    missing = [key for key in ("images", "adversarial", *CLASSES) if key not in arrays]
    if missing:
        raise InputError(f"{path} has no {missing[0]!r}; evaluate again, or move it away")
    images, adversarial = arrays["images"], arrays["adversarial"]
    fits = images.ndim == 4 and images.dtype == np.uint8 and images.shape[1] in (1, 3)
    if not fits or adversarial.shape != images.shape or adversarial.dtype != np.uint8:
        raise InputError(f"{path}: images and adversarial must be (G, 1 or 3, H, W) uint8, got {images.shape}")
    if not all(1 <= side <= SIDE for side in images.shape[2:]):
        raise InputError(f"{path}: images must have 1 to {SIDE} pixels along each side, got {images.shape}")
    if any(arrays[key].shape != images.shape[:1] or arrays[key].dtype.kind not in "iu" for key in CLASSES):
        raise InputError(f"{path}: labels and predictions must be ({len(images)},) whole numbers, one for each image")
    return Gallery(
        images=images[:MOST].copy(),
        adversarial=adversarial[:MOST].copy(),
        attack=str(arrays["attack"])[:80] if arrays.get("attack", images).shape == () else "",
        **{key: arrays[key][:MOST].astype(np.int64) for key in CLASSES},
    )


Kind = Literal["evaluation", "reproduction"]


@dataclass(frozen=True)
class Radius:
    """An eps as it was written and as a number."""

    written: str
    value: float


@dataclass(frozen=True)
class Margins:
    """Effective margins: ``of`` which images ("correct", "all", or "train": correctly classified training images)."""

    of: str
    norm: str
    count: int
    mean: float | None
    std: float | None
    quantiles: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Distance:
    """The adversarial distance found, and how its order agrees with the margin's."""

    count: int
    median: float | None
    rank_correlation: float | None


@dataclass(frozen=True)
class ReadAlarm:
    """Something that makes the numbers doubtful, and what to do."""

    name: str
    message: str
    suggestion: str


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a reader of the numbers must know; ``label`` is its name on the page."""

    folder: Path
    file: Path
    kind: Kind = "evaluation"
    finished: bool = True
    target: str = ""
    name: str | None = None
    weights: str = ""
    checkpoint: str = ""
    """The checksum of the file that held the weights."""
    selection: str = ""
    epoch: int | None = None
    data: str = ""
    source: str = ""
    """What the command line calls the data, where that is not its name."""
    head_scale: float | None = None
    normalize: str = ""
    split: str = "test"
    count: int | None = None
    whole: int | None = None
    """How many images the split has, where fewer were judged and somebody wrote it down."""
    norm: str = "linf"
    eps: Sequence[Radius] = ()
    step_size: float | None = None
    seed: int | None = None
    shard_size: int | None = None
    batch_size: int | None = None
    attacks: Sequence[str] = ()
    search: str = "float32"
    """The arithmetic in which attacks searched."""
    accuracy: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, Sequence[tuple[Radius, float]]] = field(default_factory=dict)
    margins: Sequence[Margins] = ()
    margin_norm: str = "linf"
    """Of the examples' margins."""
    distance: Distance | None = None
    alarms: Sequence[ReadAlarm] | None = None
    """None where nobody looked for any."""
    notes: Sequence[str] = ()
    """What is to be known about how the numbers were made."""
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    precision: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    """Of the run that made the weights; empty where nobody knows it."""
    quick: bool = False
    examples: Examples | None = None
    gallery: Gallery | None = None
    label: str = ""

    @property
    def has_nothing_yet(self) -> bool:
        """Whether it has begun and not one image is judged."""
        return not self.finished and not self.accuracy

    def radius_of(self, name: str) -> tuple[str, Radius | None]:
        """("pgd20", 8/255) for "pgd20@8/255", and for "pgd20" where there is one eps; ("clean", None)."""
        attack, _, written = name.partition("@")
        if attack == "clean":
            return attack, None
        known = [radius for radius in self.eps if not written or radius.written == written]
        return attack, known[0] if known else None


REPORT = "report.json"
AGAIN = "evaluate again, which makes it anew from the shards"
EXAMPLES_DIGEST, GALLERY_DIGEST = "examples", "gallery"
COLUMNS = 1000
"""Accuracies of one evaluation: some attacks at some eps."""
FAMILY, READ_FORMAT = "widemargin-evaluation-", "widemargin-evaluation-1"


def read_evaluation(folder: Path, faults: list[str] | None = None) -> Evaluation | None:
    """Read a finished evaluation; None where ``report.json`` is somebody else's."""
    path = folder / REPORT
    content = read_json(path, AGAIN)
    if not isinstance(content, dict) or not str(content.get("format", "")).startswith(FAMILY):
        return None
    if content["format"] != READ_FORMAT:
        raise InputError(
            f"{path} has the format {content['format']!r}, this version reads {READ_FORMAT!r}; update widemargin"
        )
    return _evaluation(folder, Fields(path, content), faults)


def _evaluation(folder: Path, report: Fields, faults: list[str] | None) -> Evaluation:
    data, norm = report.table("data"), report.text("norm", "linf")
    margin_norm = report.text("margin_norm") or norm
    if not report.table("accuracy").values:
        raise InputError(f"{report.path} has no accuracy; evaluate again")
    return Evaluation(
        folder=folder,
        file=report.path,
        target=report.text("target"),
        name=report.text("name") or None,
        weights=report.text("weights"),
        checkpoint=report.text("checkpoint"),
        selection=report.text("selection"),
        epoch=report.count("epoch"),
        data=data.text("name"),
        source=data.text("source"),
        head_scale=report.number("head_scale"),
        normalize=report.text("normalize"),
        split=data.text("split", "test"),
        count=data.count("count"),
        whole=data.count("whole"),
        norm=norm,
        eps=[radius(row) for row in report.tables("eps")],
        step_size=report.number("step_size"),
        seed=report.whole("seed"),
        shard_size=report.count("shard_size"),
        batch_size=report.count("batch_size"),
        attacks=report.texts("attacks"),
        search=_search(report),
        accuracy=accuracies(report.table("accuracy")),
        curves=curves(report.table("curves")),
        margins=[margins(report.table("margins").table(of), of, margin_norm) for of in report.table("margins").values],
        margin_norm=margin_norm,
        distance=_distance(report),
        alarms=[
            ReadAlarm(a.text("name", "alarm"), a.text("message"), a.text("suggestion"))
            for a in report.tables("alarms")[:COLUMNS]
        ],
        notes=report.texts("notes")[:COLUMNS],
        versions=report.table("versions").words(),
        device=report.text("device"),
        precision=report.text("precision"),
        seconds=report.table("seconds").numbers(),
        config=report.table("config").values,
        examples=attempted(
            partial(read_examples, digest=report.text(EXAMPLES_DIGEST)), folder / ExamplesEXAMPLES, faults
        ),
        gallery=attempted(partial(read_gallery, digest=report.text(GALLERY_DIGEST)), folder / GALLERY_FILE, faults),
    )


def radius(row: Fields) -> Radius:
    """One eps."""
    value = row.number("value")
    if value is None:
        raise InputError(f"{row.path}: {row.prefix}value is missing; evaluate again")
    return Radius(row.text("written", f"{value:g}"), value)


def accuracies(table: Fields) -> dict[str, float]:
    """Accuracy in percent by attack, and by eps where there are several."""
    if len(table.values) > COLUMNS:
        raise InputError(f"{table.path} holds {len(table.values):,} accuracies, more than {COLUMNS:,}")
    return table.percents()


def margins(row: Fields, of: str, norm: str) -> Margins:
    """One summary of margins."""
    quantiles = row.table("quantiles")
    for key in quantiles.values:
        if not re.fullmatch(r"[01]|0?\.[0-9]{1,9}|1\.0{1,9}", key):
            raise InputError(f"{row.path}: {quantiles.prefix}{key} must be a share such as 0.25")
    return Margins(of, norm, row.count("count") or 0, row.number("mean"), row.number("std"), quantiles.numbers())


def _search(report: Fields) -> str:
    """Older files say it in the words for people alone."""
    told = "tf32" if report.text("precision").endswith("searched with TF32") else "float32"
    return report.text("search", told)


def _distance(report: Fields) -> Distance | None:
    row = report.table("distance")
    if not row.values:
        return None
    return Distance(row.count("count") or 0, row.number("median"), row.number("rank_correlation"))


def curves(table: Fields) -> dict[str, list[tuple[Radius, float]]]:
    """Attack -> accuracy at each eps, the smallest first."""
    return {attack: sorted(_curve(table.tables(attack)), key=lambda point: point[0].value) for attack in table.values}


def _curve(rows: list[Fields]) -> list[tuple[Radius, float]]:
    found = [(row, row.number("eps"), row.percent("accuracy")) for row in rows]
    return [
        (Radius(row.text("written", f"{eps:g}"), eps), accuracy)
        for row, eps, accuracy in found
        if eps is not None and accuracy is not None
    ]


SETTINGS, SHARDS = "settings.json", "shards"
SHARD = 32 * MIB
KEPT = ("verdicts", "prediction", "label", "margin", "distance", "broken_by", "broken_at")
Table = Mapping[str, Any]


def is_unfinished_evaluation(folder: Path) -> bool:
    """Whether an evaluation was begun here: its settings are the first thing it writes."""
    return (folder / SETTINGS).is_file() and ((folder / SHARDS).is_dir() or b'"attacks"' in _start(folder / SETTINGS))


def _start(path: Path) -> bytes:
    """Enough of a file, which may be anybody's, to see whose it is."""
    try:
        with path.open("rb") as stream:
            return stream.read(10_000)
    except OSError:
        return b""


def read_unfinished(folder: Path, faults: list[str] | None = None) -> Evaluation | None:
    """What can be said so far; None where the settings are somebody else's."""
    content = read_json(folder / SETTINGS)
    if not isinstance(content, dict) or not {"attacks", "eps", "norm"} <= content.keys():
        return None
    settings, tally = Fields(folder / SETTINGS, content), _Tally()
    examples = examples_of(folder / SHARDS, tally.counted(_examples(folder / SHARDS, content, faults)))
    return Evaluation(
        folder=folder,
        file=settings.path,
        finished=False,
        data=settings.text("data"),
        count=len(examples) if examples else 0,
        norm=settings.text("norm", "linf"),
        margin_norm=settings.text("norm", "linf"),
        eps=[_radius(settings, value) for value in settings.list("eps")],
        step_size=settings.number("step_size"),
        seed=settings.whole("seed"),
        shard_size=settings.count("shard_size"),
        batch_size=settings.count("batch_size"),
        attacks=settings.texts("attacks"),
        accuracy=tally.accuracy(),
        examples=examples,
    )


def _examples(shards: Path, settings: Table, faults: list[str] | None) -> Iterator[Table]:
    """The examples of all shards, each shard once. A damaged one is left out whole."""
    seen: dict[int, Path] = {}
    for path in sorted(shards.glob("*.jsonl")):
        yield from attempted(partial(_shard, settings=settings, seen=seen), path, faults) or ()


def _shard(path: Path, settings: Table, seen: dict[int, Path]) -> Sequence[Table]:
    """Its examples, each of which can be shown; ``seen`` are the shards so far, by their first image."""
    lines: Sequence[Table] = list(Lines(path, SHARD))
    if lines and DIGEST in lines[0]:
        images = path.with_suffix(".sha256")
        header, lines = check_shard(path, lines, settings, read_text(images).strip() if images.is_file() else "")
        other = seen.setdefault(header["first"], path)
        if other != path:
            raise InputError(f"{path} holds the same images as {other}; remove one of them")
    examples = [  # a header has no verdicts; in earlier versions it may be missing
        {key: line[key] for key in KEPT if key in line} for line in lines if isinstance(line.get("verdicts"), dict)
    ]
    examples_of(path, examples)
    return examples


class _Tally:
    """How many examples are right by each verdict, counted in passing."""

    def __init__(self) -> None:
        self._right: Counter[str] = Counter()
        self._all: Counter[str] = Counter()

    def counted(self, lines: Iterable[Table]) -> Iterator[Table]:
        for line in lines:
            for name, verdict in line["verdicts"].items():
                self._right[name] += bool(verdict)
                self._all[name] += 1
            if len(self._all) > COLUMNS:
                raise InputError(f"the examples hold more than {COLUMNS:,} kinds of verdicts; were they damaged?")
            yield line

    def accuracy(self) -> dict[str, float]:
        return {name: 100.0 * self._right[name] / count for name, count in self._all.items()}


def _radius(settings: Fields, value: Any) -> Radius:
    """An eps as it is kept: as written, or as written and as a number."""
    written = value[0] if isinstance(value, list) and value else value
    one = Fields(settings.path, {"eps": written}, settings.prefix)
    size = one.size("eps")
    if size is None:
        raise InputError(f"{settings.path}: eps has no size; evaluate again")
    return Radius(one.text("eps"), size)
