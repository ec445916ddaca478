"""The result of an evaluation: put together from its shards, and what a reader of the numbers must know beside them.

On disk it is ``report.json`` and ``examples.jsonl`` (``folder.py``).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.attacks.names import AUTOATTACK, GradientAttack
from widemargin.attacks.pgd import PGD
from widemargin.config.checkpoint import software_versions
from widemargin.errors import InputError
from widemargin.evaluation.accuracy import percent
from widemargin.evaluation.autoattack import FEWEST_FOR_APGD_T, PARTS, parts_for
from widemargin.evaluation.certified import summarize_certified
from widemargin.evaluation.distance import rank_correlation
from widemargin.evaluation.folder import (
    FORMAT,
    Distance,
    ModelInfo,
    Radius,
    write_folder,
)
from widemargin.evaluation.gallery import GALLERY, Bytes, Gallery, Integers
from widemargin.evaluation.minimal_norm import ONLY_FAB
from widemargin.evaluation.settings import EvaluationSettings, eps_text
from widemargin.evaluation.shards import Shard, Store
from widemargin.margins import summarize
from widemargin.types import Alarm

_OF_DATA = ("data", "source", "split", "whole")
SHOWN, STEPS = 8, 20
"""Images of a gallery, and steps of its PGD where nothing else is asked for."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Accuracy in percent and verdicts, (N,) bool, by attack; several eps make names such as "pgd20@2/255"."""

    settings: EvaluationSettings
    subject: ModelInfo
    accuracy: dict[str, float]
    verdicts: dict[str, Tensor]
    margin: Tensor | None
    distance: Tensor | None
    distance_by: tuple[str | None, ...] = ()
    certified: Tensor | None = None
    """(N,): proven radii, NaN where there is none."""
    """The attack that found each; None where the image is misclassified, and where none was found."""
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
        """By attack: its eps and what it left right."""
        eps = {eps_text(eps): float(eps) for eps in self.settings.eps}
        first = float(self.settings.eps[0])
        return {
            name: (eps.get(name.partition("@")[2], first), right)
            for name, right in self.verdicts.items()
            if name != "clean"
        }

    def to_json(self) -> dict[str, Any]:
        """What ``report.json`` holds."""
        settings, subject = self.settings, self.subject
        return {
            "format": FORMAT,
            **{key: value for key, value in asdict(subject).items() if key not in _OF_DATA},
            "data": self._data(),
            "norm": settings.norm,
            "eps": [asdict(Radius(eps_text(eps), float(eps))) for eps in settings.eps],
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
            "certified": self._certified(),
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
        chosen = self.verdicts["clean"]
        found = self.distance[chosen & self.distance.isfinite()]
        winners = Counter(name for name in self.distance_by if name is not None)
        return asdict(
            Distance(
                method=self.settings.distance or ONLY_FAB,
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
        eps = {eps_text(eps): float(eps) for eps in self.settings.eps}
        return asdict(summarize_certified(self.certified, self.verdicts["clean"], eps))


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
    by: list[str | None] = []
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
            if "distance" in example:
                found = example["verdicts"]["clean"] and example["distance"] is not None
                by.append(example.get("distance_by", ONLY_FAB if found else None))
            if "certified" in example:
                radius = example["certified"]
                measured.setdefault("certified", []).append(float("nan") if radius is None else float(radius))
            for name in ("margin", "distance"):
                if name in example:
                    endless = float("inf") if example["verdicts"]["clean"] else float("-inf")
                    measured.setdefault(name, []).append(endless if example[name] is None else float(example[name]))
    _check_columns(verdicts, measured, settings, store.folder)
    flags = {name: torch.tensor(values, dtype=torch.bool) for name, values in verdicts.items()}
    accuracy = {name: percent(values) for name, values in flags.items()}
    tensors = {
        name: torch.tensor(values, dtype=torch.float64 if name == "certified" else torch.float32)
        for name, values in measured.items()
    }
    return Report(
        settings=settings,
        subject=subject,
        accuracy=accuracy,
        verdicts=flags,
        margin=tensors.get("margin"),
        distance=tensors.get("distance"),
        distance_by=tuple(by),
        certified=tensors.get("certified"),
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
    wishes = {
        "margin": settings.margins,
        "distance": settings.distance is not None,
        "certified": settings.certify is not None,
    }
    asked |= {name for name, wanted in wishes.items() if wanted}
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
    if store.folder is not None:
        examples = (example for number in shard_numbers for example in store.shard(number)[1])
        write_folder(store.folder, report.to_json(), examples)


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
    if settings.distance is not None and settings.search == "tf32":
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
