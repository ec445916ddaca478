"""An evaluation, whatever it was read from: a ``report.json``, the shards of an unfinished one, a ``result.json``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from widemargin.reports.inputs.examples import Examples
from widemargin.reports.inputs.gallery_file import Gallery

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
class Alarm:
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
    alarms: Sequence[Alarm] | None = None
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
