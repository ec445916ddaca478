"""The result of an evaluation: put together from its shards, and what a reader of the numbers must know beside them.

On disk it is ``report.json`` and ``examples.jsonl`` (``folder.py``).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.attacks.names import AUTOATTACK, GradientAttack, variant_names
from widemargin.attacks.pgd import PGD
from widemargin.config.checkpoint import software_versions
from widemargin.core.screen import as_text
from widemargin.errors import InputError
from widemargin.evaluation.accuracy import percent
from widemargin.evaluation.autoattack import FEWEST_FOR_APGD_T, PARTS, parts_for
from widemargin.evaluation.certified import summarize_certified
from widemargin.evaluation.columns import CLEAN, Column, labels
from widemargin.evaluation.comparison import NUMBERS, wilson
from widemargin.evaluation.distance import rank_correlation
from widemargin.evaluation.folder import (
    FORMAT,
    UNKNOWN,
    Distance,
    ModelInfo,
    Radius,
    write_folder,
)
from widemargin.evaluation.gallery import GALLERY, Bytes, Gallery, Integers
from widemargin.evaluation.judged_shard import BY, PROVEN, JudgedShard, sibling
from widemargin.evaluation.minimal_norm import ONLY_FAB
from widemargin.evaluation.settings import CERTIFIED, SEARCHES, EvaluationSettings, eps_text
from widemargin.evaluation.shards import Shard, Store
from widemargin.evaluation.summary import show_report
from widemargin.margins import MANY_CLASSES, summarize
from widemargin.types import Alarm

_OF_DATA = ("data", "source", "split", "whole")
SHOWN, STEPS = 8, 20
"""Images of a gallery, and steps of its PGD where nothing else is asked for."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Accuracy in percent and verdicts, (N,) bool, by label: the attack, with its eps where there are several."""

    settings: EvaluationSettings
    subject: ModelInfo
    accuracy: dict[str, float]
    verdicts: dict[str, Tensor]
    columns: dict[str, Column]
    """What each label is of."""
    targets: Tensor
    """(N,): the classes of the images."""
    measured: tuple[str, ...] = ()
    """The keys of a line beside its verdicts."""
    partial: dict[str, int] = field(default_factory=dict)
    """What the folder has of some of the images alone, and of how many; it is left out."""
    margin: Tensor | None
    margin_proven: Tensor | None = None
    """(N,) bool, where classes are so many that not all were looked at (``margins.margins_by_candidates``)."""
    distance: Tensor | None
    distance_by: tuple[str | None, ...] = ()
    """The attack that found each; None where the image is misclassified, and where none was found."""
    distance_method: str = ONLY_FAB
    """Which attacks looked for it (``minimal_norm.METHODS``)."""
    certified: Tensor | None = None
    """(N,): proven radii, NaN where there is none."""
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

    @property
    def attacked(self) -> dict[str, tuple[float, Tensor]]:
        """By label: the attack's eps and what it left right."""
        return {
            name: (column.radius, self.verdicts[name])
            for name, column in self.columns.items()
            if column.radius is not None
        }

    @property
    def eps(self) -> tuple[Radius, ...]:
        """Those asked for, then others at which attacks were found in the folder."""
        asked = {float(eps): Radius(eps_text(eps), float(eps)) for eps in self.settings.eps}
        others = {
            column.radius: Radius(column.written, column.radius)
            for column in self.columns.values()
            if column.radius is not None and not column.own_eps
        }
        if others and not self.settings.attacked:  # what was given, if anything, was for nothing
            return tuple(others.values())
        return tuple((asked | {value: eps for value, eps in others.items() if value not in asked}).values())

    @property
    def attacks(self) -> tuple[str, ...]:
        """Those asked for, then others found in the folder."""
        whole = [column.attack for column in self.columns.values() if column.radius is not None and not column.is_part]
        made_of = {variant for name in whole for variant in variant_names(name)}
        return tuple(dict.fromkeys([*self.settings.attacks, *(name for name in whole if name not in made_of)]))

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Wilson's 95% interval of each accuracy, in percent."""
        return {name: wilson(int(right.sum()), self.count) for name, right in self.verdicts.items()}

    def _by_class(self) -> dict[str, Any]:
        """How many images a class has, and its accuracy by label; None where it has none."""
        counts = torch.bincount(self.targets).tolist()
        right = {
            name: torch.bincount(self.targets[found], minlength=len(counts)) for name, found in self.verdicts.items()
        }
        shares = {
            name: [100 * one / count if count else None for one, count in zip(found.tolist(), counts, strict=True)]
            for name, found in right.items()
        }
        return {"count": counts, "accuracy": shares}

    def _strongest(self) -> dict[str, Any]:
        """Of each attack that is the worst of several, how many images each of them broke first, and alone."""
        labels_of = {column: name for name, column in self.columns.items()}
        found = {}
        for column, name in labels_of.items():
            variants = [sibling(column, variant) for variant in variant_names(column.attack)]
            there = [labels_of[variant] for variant in variants if variant in labels_of]
            if not there:
                continue
            wrong = torch.stack([~self.verdicts[variant] for variant in there]) & self.verdicts[CLEAN]
            alone, before = wrong & (wrong.sum(0) == 1), wrong.cumsum(0) - wrong.long()
            found[name] = {
                variant: {"first": int((wrong[n] & (before[n] == 0)).sum()), "alone": int(alone[n].sum())}
                for n, variant in enumerate(there)
            }
        return found

    def __str__(self) -> str:
        """What the command prints: the table, what was measured, the notes and the alarms."""
        return as_text(lambda console: show_report(console, self.to_json(), self.files))

    def to_json(self) -> dict[str, Any]:
        """What ``report.json`` holds."""
        settings, subject = self.settings, self.subject
        return {
            "format": FORMAT,
            **{key: value for key, value in asdict(subject).items() if key not in _OF_DATA},
            "data": self._data(),
            "norm": settings.norm,
            "eps": [asdict(radius) for radius in self.eps],
            "step_size": self._step_size(),
            "seed": settings.seed,
            "shard_size": settings.shard_size,
            "batch_size": settings.batch_size,
            "attacks": list(self.attacks),
            "columns": {name: column.to_json() for name, column in self.columns.items()},
            "search": settings.search,
            "accuracy": self.accuracy,
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "classes": self._by_class(),
            "strongest": self._strongest(),
            "curves": self.curves,
            "margins": self._margins(),
            "margins_proven": None if self.margin_proven is None else percent(self.margin_proven),
            "distance": self._distance(),
            "certified": self._certified(),
            "alarms": [asdict(alarm) for alarm in self.alarms],
            "notes": list(self.notes),
            "versions": software_versions(),
            "device": self.device,
            "precision": self._precision(),
            "seconds": self.seconds,
        }

    def _precision(self) -> str:
        return "float32 (no TF32)" + (
            f"; attacks searched with {SEARCHES[self.settings.search]}" if self.settings.searches_copy else ""
        )

    def _data(self) -> dict[str, Any]:
        subject = self.subject
        table = {"name": subject.data, "split": subject.split, "count": self.count}
        more = {"source": subject.source, "whole": subject.whole}
        return table | {key: value for key, value in more.items() if value is not None}

    def _step_size(self) -> float | None:
        """As given; eps/4 for one eps; None for several, with eps/4 where columns say no more."""
        settings = self.settings
        if len(self.eps) == 1:
            step = settings.step_at(self.eps[0].value)
            return self.eps[0].value / 4 if step is None else float(step)
        return None if settings.step_size is None else float(settings.step_size)

    def _margins(self) -> dict[str, Any] | None:
        if self.margin is None:
            return None
        correct = self.margin[self.verdicts["clean"]]
        return {"all": asdict(summarize(self.margin)), "correct": asdict(summarize(correct))}

    def _distance(self) -> dict[str, Any] | None:
        if self.distance is None:
            return None
        chosen = self.verdicts["clean"]
        found = self.distance[chosen & self.distance.isfinite()]
        winners = Counter(name for name in self.distance_by if name is not None)
        return asdict(
            Distance(
                method=self.distance_method,
                found_by=dict(winners.most_common()),
                count=len(found),
                median=float(found.quantile(0.5)) if len(found) else None,
                rank_correlation=(
                    None if self.margin is None else rank_correlation(self.margin[chosen], self.distance[chosen])
                ),
            )
        )

    def _certified(self) -> dict[str, Any] | None:
        if self.certified is None:
            return None
        eps = {radius.written: radius.value for radius in self.eps}
        return asdict(summarize_certified(self.certified, self.verdicts["clean"], eps))


def collect(
    store: Store,
    shard_numbers: Iterable[int],
    settings: EvaluationSettings,
    subject: ModelInfo,
    alarms: list[Alarm],
    device: str,
) -> Report:
    """Put the finished shards together: what is asked for, and whatever else the folder has of all these images."""
    shards = [store.shard(number) for number in shard_numbers]
    count = sum(len(shard.labels) for shard in shards)
    asked = {
        column: column for eps in settings.eps for name in settings.attacks for column in [settings.column(name, eps)]
    }
    found = Counter(column for shard in shards for column in shard.verdicts for _ in shard.labels)
    ways = shards[0].depends
    measured = Counter(
        key
        for shard in shards
        for key in shard.measured
        for _ in shard.labels
        if shard.depends.get(key.removesuffix(BY)) == ways.get(key.removesuffix(BY))
    )
    _check_complete({column.attack: found[column] for column in asked}, count, store.folder)
    _check_complete({name: measured[name] for name in settings.measured}, count, store.folder)
    names = labels(asked.get(column, column) for column in found if found[column] == count)
    flags = {
        name: torch.tensor([right for shard in shards for right in shard.verdicts[column]], dtype=torch.bool)
        for column, name in names.items()
    }
    seconds: dict[str, float] = {}
    undecided: dict[str, list[int]] = {}
    for shard in shards:
        for key, value in shard.seconds.items():
            name = names.get(key, "") if isinstance(key, Column) else key
            if name:
                seconds[name] = round(seconds.get(name, 0.0) + value, 3)
        for column, images in shard.undecided.items():
            if column in names:
                undecided.setdefault(names[column], []).extend(images)
    tensors = {
        key: torch.tensor([_number(v, c) for shard in shards for v, c in _with_clean(shard, key)], dtype=torch.float32)
        for key in ("margin", "distance")
        if measured[key] == count
    }
    accuracy = {name: percent(values) for name, values in flags.items()}
    return Report(
        settings=settings,
        subject=subject,
        accuracy=accuracy,
        verdicts=flags,
        columns={name: column for column, name in names.items()},
        targets=torch.tensor([label for shard in shards for label in shard.labels]),
        measured=tuple(key for key in measured if measured[key] == count),
        partial={
            **{column.piece: found[column] for column in found if found[column] < count},
            **{key: there for key, there in measured.items() if there < count and key in NUMBERS},
        },
        margin=tensors.get("margin"),
        margin_proven=_proven(shards) if "margin" in tensors else None,
        distance=tensors.get("distance"),
        certified=_certified(shards) if measured[CERTIFIED] == count else None,
        distance_by=tuple(by for shard in shards for by in _found_by(shard)) if measured["distance"] == count else (),
        distance_method=shards[0].depends.get("distance", ONLY_FAB),
        alarms=alarms,
        seconds=seconds,
        device=device,
        count=count,
        files=store.folder,
        refuted=sum(shard.counts.get("refuted", 0) for shard in shards),
        again=sum(shard.counts.get("again", 0) for shard in shards),
        undecided=undecided,
        curves=_curves(accuracy, names),
    )


def _check_complete(found: Mapping[str, int], count: int, folder: Path | None) -> None:
    """Every example has every verdict and measurement that the settings ask for."""
    for name, there in found.items():
        if there != count:
            raise InputError(
                f"{folder}: {there} of {count} examples in the shards have {name!r}; remove the shards that lack it, "
                "and the same command makes them again"
            )


def _certified(shards: Iterable[JudgedShard]) -> Tensor:
    """NaN where no radius was asked for."""
    radii = [float("nan") if radius is None else radius for shard in shards for radius in shard.measured[CERTIFIED]]
    return torch.tensor(radii, dtype=torch.float64)


def _proven(shards: Iterable[JudgedShard]) -> Tensor | None:
    """Which margins are; None where every class was looked at."""
    found = [shard.measured.get(f"margin{BY}", [PROVEN] * len(shard.labels)) for shard in shards]
    told = any(f"margin{BY}" in shard.measured for shard in shards)
    return torch.tensor([by == PROVEN for part in found for by in part]) if told else None


def _found_by(shard: JudgedShard) -> list[str | None]:
    """The attack that found each distance; earlier versions had one and did not say."""
    clean, sizes = shard.verdicts[Column(attack=CLEAN)], shard.measured["distance"]
    fab = [ONLY_FAB if right and size is not None else None for right, size in zip(clean, sizes, strict=True)]
    return shard.measured.get(f"distance{BY}", fab)


def _with_clean(shard: JudgedShard, key: str) -> Iterator[tuple[Any, bool]]:
    return zip(shard.measured[key], shard.verdicts[Column(attack=CLEAN)], strict=True)


def _number(value: Any, clean: bool) -> float:
    """Null is endless: far inside the class, or far outside."""
    return float(value) if value is not None else float("inf") if clean else float("-inf")


def _curves(accuracy: dict[str, float], names: Mapping[Column, str]) -> dict[str, list[dict[str, Any]]]:
    """Accuracy over eps of each attack, the smallest eps first."""
    curves: dict[str, list[dict[str, Any]]] = {}
    for column, name in names.items():
        if column.radius is not None and not column.own_eps and not column.is_part:
            point = {"eps": column.radius, "written": column.written, "accuracy": accuracy[name]}
            curves.setdefault(name.partition("@")[0], []).append(point)
    return {name: sorted(points, key=lambda point: float(point["eps"])) for name, points in curves.items()}


def write_report(report: Report, store: Store, shard_numbers: Iterable[int]) -> None:
    """``report.json`` and ``examples.jsonl`` in the store's folder."""
    if store.folder is not None:
        names = {column: name for name, column in report.columns.items()}
        examples = (row for number in shard_numbers for row in store.shard(number).rows(names, report.measured))
        write_folder(store.folder, report.to_json(), examples)


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
    how = SEARCHES[settings.search]
    if {AUTOATTACK, *PARTS} & {*settings.attacks} and settings.searches_copy:
        notes.append(
            f"AutoAttack searched with {how}, and all that its parts found was checked in float32, if need be after a "
            f"few more steps; so many finds still were not adversarial there and do not count: {refuted}."
        )
    if settings.distance is not None and settings.searches_copy:
        notes.append(
            f"Distances were searched with {how} and count where float32 sees the boundary within 3%; so many images "
            f"were searched again in float32: {again}."
        )
    return tuple(notes)


def note_on_proven(share: float) -> str:
    """How margins of many classes were found."""
    return (
        f"With more than {MANY_CLASSES} classes margins are over candidates, the nearest by logit and more; "
        f"{share:.2f}% are proven to be those over all classes, the others are upper bounds."
    )


def notes_on_columns(report: Report) -> tuple[str, ...]:
    """What the folder has of some of the images alone, and how margins of many classes were found."""
    candidates = () if report.margin_proven is None else (note_on_proven(percent(report.margin_proven)),)
    return candidates + tuple(
        f"{name} is known of {found:,} of these {report.count:,} images, so it is left out; ask for it to add the rest."
        for name, found in report.partial.items()
    )


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
    gallery = Gallery(
        images=_bytes(x),
        adversarial=_bytes(x_adv),
        labels=y.cpu().numpy(),
        predictions=_predictions(model, x),
        adversarial_predictions=_predictions(model, x_adv),
        attack=name,
    )
    gallery.write(folder / GALLERY)


def _strongest(settings: EvaluationSettings) -> tuple[str, GradientAttack]:
    """The attack, and its name as the results have it: "pgd20", or "pgd20@8/255" where there are several eps."""
    eps = max(settings.eps, key=float)
    attacks = [(name, attack) for name in settings.attacks if (attack := settings.attack(name, eps)) is not None]
    usual = f"pgd{STEPS}", PGD(eps=eps, step_size=eps / 4, steps=STEPS, norm=settings.norm)
    name, attack = attacks[-1] if attacks else usual
    return settings.label(name, eps), attack


def _bytes(images: Tensor) -> Bytes:
    return (images * 255).round().to(torch.uint8).cpu().numpy()


def _predictions(model: nn.Module, x: Tensor) -> Integers:
    with torch.no_grad():
        return model(x).argmax(1).cpu().numpy()  # type: ignore[no-any-return]
