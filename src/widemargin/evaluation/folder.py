"""What an evaluation leaves in its folder, written and read here: nothing else knows its names and keys.

``settings.json`` comes first, then the shards as they are finished (``shards.py``); at the end ``report.json`` sums up
and ``examples.jsonl`` has a line for each example. ``gallery.npz`` has a few images with their adversarial twins.
``report.json`` carries a digest of itself and of the other two.

Whoever reads may be given anything: every reader has a bound, the sizes that an archive and its arrays claim are
checked before anything is inflated, nothing is unpickled, and what cannot be shown is refused in one line.
"""

import io
import json
import math
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from widemargin.core.files import write_atomic, write_text_atomic
from widemargin.core.records import (
    DIGEST,
    MIB,
    Digested,
    Fields,
    Lines,
    Record,
    attempted,
    changed,
    digest_of,
    digest_of_file,
    parsed,
    read_json,
    read_text,
    sealed,
)
from widemargin.errors import InputError
from widemargin.margins import MarginSummary
from widemargin.types import Alarm

REPORT, EXAMPLES, GALLERY = "report.json", "examples.jsonl", "gallery.npz"
SETTINGS, SHARDS = "settings.json", "shards"
DIGESTS = {EXAMPLES: "examples", GALLERY: "gallery"}
"""The keys of ``report.json`` under which it has the digests of the other two."""
FAMILY = "widemargin-evaluation-"
FORMAT = f"{FAMILY}1"
IN_MEMORY = "tensors in memory"
AGAIN = "evaluate again, which makes it anew from the shards"
SHARD_AGAIN = "remove it, and the same evaluation judges its images again"
COLUMNS = 1000
"""Accuracies of one evaluation: some attacks at some eps."""
SHARD = 32 * MIB
Kind = Literal["evaluation", "reproduction"]


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


@dataclass(frozen=True)
class Radius:
    """An eps as it was written and as a number: the same two in ``report.json``."""

    written: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Margins(MarginSummary):
    """Effective margins ``of`` which images: "correct", "all", or "train" (correctly classified training images)."""

    of: str
    norm: str


@dataclass(frozen=True)
class Distance:
    """The adversarial distance found, and how its order agrees with the margin's."""

    count: int
    median: float | None
    rank_correlation: float | None


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


MOST = 24
"""So many examples are kept."""
INFLATED, SIDE = 32 * MIB, 1024
"""Bytes of an array, and pixels along a side of an image: more is no small picture on a page."""
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

    def write(self, path: Path) -> None:
        """Write ``gallery.npz``, whole or not at all."""
        content = io.BytesIO()
        np.savez_compressed(content, **vars(self))
        write_atomic(path, lambda partial: partial.write_bytes(content.getvalue()))


ARRAYS = tuple(field.name for field in fields(Gallery))
CLASSES = ("labels", "predictions", "adversarial_predictions")


def read_gallery(path: Path, digest: str = "") -> Gallery | None:
    """Read the gallery, whose report may know its digest; None where there is none."""
    if not path.is_file():
        return None
    if digest and digest_of_file(path) != digest:
        raise changed(path, "remove it, and evaluate again")
    try:
        with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
            held = {name.removesuffix(".npy"): archive.getinfo(name) for name in archive.namelist()}
            arrays = {name: _array(archive, held[name]) for name in ARRAYS if name in held}
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


@dataclass(frozen=True, kw_only=True)
class Evaluation(ModelInfo):
    """An evaluation as it is read, from a ``report.json``, unfinished shards or a job's result: what a reader of the
    numbers must know, empty where nobody says it. ``label`` is its name on the page.
    """

    folder: Path
    file: Path
    kind: Kind = "evaluation"
    finished: bool = True
    target: str = ""
    weights: str = ""
    selection: str = ""
    data: str = ""
    count: int | None = None
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
    alarms: Sequence[Alarm] | None = None
    """None where nobody looked for any."""
    notes: Sequence[str] = ()
    """What is to be known about how the numbers were made."""
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    precision: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
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


def write_folder(folder: Path, record: Record, examples: Iterable[Mapping[str, Any]]) -> None:
    """``examples.jsonl`` and ``report.json``, which has the digests of all that stands beside it."""
    passed = Digested(examples)
    write_text_atomic(folder / EXAMPLES, "".join(json.dumps(example) + "\n" for example in passed))
    record = {**record, DIGESTS[EXAMPLES]: passed.digest}
    if (folder / GALLERY).is_file():
        record[DIGESTS[GALLERY]] = digest_of_file(folder / GALLERY)
    write_text_atomic(folder / REPORT, json.dumps(sealed(record), indent=2) + "\n")


def read_evaluation(folder: Path, faults: list[str] | None = None) -> Evaluation | None:
    """Read a finished evaluation; None where ``report.json`` is somebody else's."""
    path = folder / REPORT
    content = read_json(path, AGAIN)
    if not isinstance(content, dict) or not str(content.get("format", "")).startswith(FAMILY):
        return None
    if content["format"] != FORMAT:
        raise InputError(
            f"{path} has the format {content['format']!r}, this version reads {FORMAT!r}; update widemargin"
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
        distance=_distance(report.table("distance")),
        alarms=[
            Alarm(row.text("name", "alarm"), row.text("message"), row.text("suggestion"))
            for row in report.tables("alarms")[:COLUMNS]
        ],
        notes=report.texts("notes")[:COLUMNS],
        versions=report.table("versions").words(),
        device=report.text("device"),
        precision=report.text("precision"),
        seconds=report.table("seconds").numbers(),
        config=dict(report.table("config").values),
        examples=attempted(partial(read_examples, digest=report.text(DIGESTS[EXAMPLES])), folder / EXAMPLES, faults),
        gallery=attempted(partial(read_gallery, digest=report.text(DIGESTS[GALLERY])), folder / GALLERY, faults),
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
    return Margins(
        of=of,
        norm=norm,
        count=row.count("count") or 0,
        mean=row.number("mean"),
        std=row.number("std"),
        quantiles=quantiles.numbers(),
    )


def _search(report: Fields) -> str:
    """Older files say it in the words for people alone."""
    told = "tf32" if report.text("precision").endswith("searched with TF32") else "float32"
    return report.text("search", told)


def _distance(row: Fields) -> Distance | None:
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


KEYS = ("verdicts", "prediction", "label", "margin", "distance", "broken_by", "broken_at")


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
        eps=[_radius_as_kept(settings, value) for value in settings.list("eps")],
        step_size=settings.number("step_size"),
        seed=settings.whole("seed"),
        shard_size=settings.count("shard_size"),
        batch_size=settings.count("batch_size"),
        attacks=settings.texts("attacks"),
        accuracy=tally.accuracy(),
        examples=examples,
    )


def _examples(shards: Path, settings: Record, faults: list[str] | None) -> Iterator[Record]:
    """The examples of all shards, each shard once. A damaged one is left out whole."""
    seen: dict[int, Path] = {}
    for path in sorted(shards.glob("*.jsonl")):
        yield from attempted(partial(_shard, settings=settings, seen=seen), path, faults) or ()


def _shard(path: Path, settings: Record, seen: dict[int, Path]) -> Sequence[Record]:
    """Its examples, each of which can be shown; ``seen`` are the shards so far, by their first image."""
    lines: Sequence[Record] = list(Lines(path, SHARD))
    if lines and DIGEST in lines[0]:
        images = path.with_suffix(".sha256")
        header, lines = check_shard(path, lines, settings, read_text(images).strip() if images.is_file() else "")
        other = seen.setdefault(header["first"], path)
        if other != path:
            raise InputError(f"{path} holds the same images as {other}; remove one of them")
    examples = [  # a header has no verdicts; in earlier versions it may be missing
        {key: line[key] for key in KEYS if key in line} for line in lines if isinstance(line.get("verdicts"), dict)
    ]
    examples_of(path, examples)
    return examples


class _Tally:
    """How many examples are right by each verdict, counted in passing."""

    def __init__(self) -> None:
        self._right: Counter[str] = Counter()
        self._all: Counter[str] = Counter()

    def counted(self, lines: Iterable[Record]) -> Iterator[Record]:
        for line in lines:
            for name, verdict in line["verdicts"].items():
                self._right[name] += bool(verdict)
                self._all[name] += 1
            if len(self._all) > COLUMNS:
                raise InputError(f"the examples hold more than {COLUMNS:,} kinds of verdicts; were they damaged?")
            yield line

    def accuracy(self) -> dict[str, float]:
        return {name: 100.0 * self._right[name] / count for name, count in self._all.items()}


def _radius_as_kept(settings: Fields, value: Any) -> Radius:
    """An eps as it is kept: as written, or as written and as a number."""
    written = value[0] if isinstance(value, list) and value else value
    one = Fields(settings.path, {"eps": written}, settings.prefix)
    size = one.size("eps")
    if size is None:
        raise InputError(f"{settings.path}: eps has no size; evaluate again")
    return Radius(one.text("eps"), size)


def shard_lines(header: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *of: Any) -> str:
    """A finished shard of an evaluation: a header line, which carries the digest of all, and a line per example."""
    head = {**header, DIGEST: digest_of(header, rows, *of)}
    return "".join(json.dumps(line) + "\n" for line in (head, *rows))


def parsed_shard(path: Path, text: str, *of: Any) -> tuple[Record, list[Record]]:
    """The same of the text of a shard."""
    return check_shard(path, [parsed(path, line, SHARD_AGAIN) for line in text.splitlines()], *of)


def check_shard(path: Path, lines: Sequence[Any], *of: Any) -> tuple[Record, list[Record]]:
    """(header, examples); refused where its digest does not fit, or, without one, where the lines cannot be a shard."""
    remedy = SHARD_AGAIN
    try:
        header, *rows = lines
        content = {key: value for key, value in header.items() if key != DIGEST}
        if DIGEST in header and header[DIGEST] != digest_of(content, rows, *of):
            raise changed(path, remedy)
        if header["count"] != len(rows) or not _is_shard(header["first"], rows):
            raise InputError(f"{path} lacks lines, or has too many or other ones; {remedy}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} holds lines that are no records of examples; {remedy}") from None
    return header, rows


def _is_shard(first: int, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these are examples one after the other, each with the same verdicts and a clean one that is true."""
    names = rows[0]["verdicts"].keys() if rows else ()
    return all(
        row["index"] == first + place
        and row["verdicts"].keys() == names
        and all(type(verdict) is bool for verdict in row["verdicts"].values())
        and row["verdicts"]["clean"] == (row["prediction"] == row["label"])
        for place, row in enumerate(rows)
    )
