"""What an evaluation leaves in its folder, and the record of a whole evaluation that is read back from there.

``settings.json`` comes first, then the shards as they are finished (``shards.py``); at the end ``report.json`` sums up,
with a digest of itself and of ``examples.jsonl`` (``examples.py``) and ``gallery.npz`` (``gallery.py``). The names and
keys of ``report.json`` are written in ``report.py`` and read here, and nobody else knows them.

Whoever reads may be given anything: every reader has a bound, and what cannot be shown is refused in one line.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from widemargin.core.files import write_text_atomic
from widemargin.core.records import Digested, Fields, Record, attempted, digest_of_file, read_json, sealed
from widemargin.errors import InputError
from widemargin.evaluation.examples import EXAMPLES, Examples, read_examples
from widemargin.evaluation.gallery import GALLERY, Gallery, read_gallery
from widemargin.margins import MarginSummary
from widemargin.types import Alarm

REPORT = "report.json"
SETTINGS, SHARDS = "settings.json", "shards"
DIGESTS = {EXAMPLES: "examples", GALLERY: "gallery"}
"""The keys of ``report.json`` under which it has the digests of the other two."""
UNKNOWN = "unknown: the file does not say"
"""How images are normalized in public weights whose file says nothing of it."""
FAMILY = "widemargin-evaluation-"
FORMAT = f"{FAMILY}1"
IN_MEMORY = "tensors in memory"
AGAIN = "evaluate again, which makes it anew from the shards"
COLUMNS = 1000
"""Accuracies of one evaluation: some attacks at some eps."""
CLASSES = 100_000
"""That a label may tell apart."""
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
    method: str = "fab-t"
    """Which attacks looked for it (``minimal_norm.METHODS``); earlier versions had one and did not say."""
    found_by: Mapping[str, int] = field(default_factory=dict)
    """Of how many correctly classified images each attack found the nearest adversarial one."""


@dataclass(frozen=True)
class Certified:
    """Radii that are proven, of ``count`` first images: the median of those classified right, and the percentage of all
    that are certified at each eps, by how it is written.
    """

    count: int
    median: float | None
    accuracy: Mapping[str, float]


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
    classes: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    """By attack, the accuracy in percent of each class; None of one without images."""
    curves: Mapping[str, Sequence[tuple[Radius, float]]] = field(default_factory=dict)
    margins: Sequence[Margins] = ()
    margin_norm: str = "linf"
    """Of the examples' margins."""
    distance: Distance | None = None
    certified: Certified | None = None
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
        classes=_classes(report.table("classes").table("accuracy")),
        curves=curves(report.table("curves")),
        margins=[margins(report.table("margins").table(of), of, margin_norm) for of in report.table("margins").values],
        margin_norm=margin_norm,
        distance=_distance(report.table("distance")),
        certified=_certified(report.table("certified")),
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


def _classes(table: Fields) -> dict[str, list[float | None]]:
    """Of so few attacks and classes as a file of ours can have."""
    if len(table.values) > COLUMNS or any(len(table.list(name)) > CLASSES for name in table.values):
        raise InputError(
            f"{table.path} has more classes than {CLASSES:,}, or accuracies of more than {COLUMNS:,} attacks"
        )
    return {
        name: [
            Fields(table.path, {"share": share}, f"{table.prefix}{name}: ").percent("share")
            for share in table.list(name)
        ]
        for name in table.values
    }


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
    return Distance(
        row.count("count") or 0,
        row.number("median"),
        row.number("rank_correlation"),
        row.text("method", Distance.method),
        {name: int(count) for name, count in row.table("found_by").numbers().items()},
    )


def _certified(row: Fields) -> Certified | None:
    if not row.values:
        return None
    return Certified(row.count("count") or 0, row.number("median"), accuracies(row.table("accuracy")))


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
