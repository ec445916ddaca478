"""One shard judged: every attack at every eps, margins and distances; each finished piece is written down at once.

Whatever the model, attacks see float32 images in, float32 logits out (``Float32Classifier``). A shard ends as a header
and a line for each example: its verdicts, and which part of AutoAttack broke it at each eps.
"""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.attacks.names import AUTOATTACK
from widemargin.attacks.threat import make_threat
from widemargin.core import randomness
from widemargin.core.checks import check_labels, check_logits
from widemargin.core.precision import allowing_tf32, default_type
from widemargin.core.records import Record
from widemargin.errors import InputError
from widemargin.evaluation.autoattack import PARTS, break_survivors, make_reference, parts_for
from widemargin.evaluation.certified import ALL, certified_radii
from widemargin.evaluation.distance import minimal_distance
from widemargin.evaluation.minimal_norm import ONLY_FAB, NearestSearch
from widemargin.evaluation.settings import EvaluationSettings, eps_text
from widemargin.evaluation.shards import Shard, Store
from widemargin.losses import decided, predicted
from widemargin.margins import effective_margin

Progress = Callable[[int, str], None]
"""Takes the number of a shard and what is being done to it."""
NAN = "nan"
"""A margin that is no number, in the files: JSON has none."""
UNDECIDED = "undecided"
"""Attacked images for which the model gives no prediction, in a shard's record."""


class Float32Classifier(nn.Module):
    """The model between float32 images in [0, 1] and float32 logits.

    A float64 or bfloat16 model keeps its own arithmetic; a model of flat inputs sees them flat. It may write into its
    images, which are a copy, and makes its tensors of the type that its user has as default.
    """

    def __init__(self, model: nn.Module, *, flat: bool = False) -> None:
        super().__init__()
        self.model = model
        self.flat = flat
        self.dtype = _input_dtype(model)
        self.default = torch.get_default_dtype()
        self.training = model.training

    def forward(self, x: Tensor) -> Tensor:
        """Float32 logits."""
        x = x.flatten(1) if self.flat else x
        with default_type(self.default):
            logits: Tensor = self.model(x.to(self.dtype, copy=True))
        check_logits("evaluate", logits, batch=len(x))
        return logits.float()


def _input_dtype(model: nn.Module) -> torch.dtype:
    """That of the first matrix or kernel, which images meet; a scale in front of it may be of any."""
    found = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    weights = [parameter for parameter in found if parameter.dim() > 1]
    return next((parameter.dtype for parameter in weights + found), torch.float32)


@dataclass(frozen=True)
class Judge:
    """A model, what to do to it, and where results go."""

    model: Float32Classifier
    search_model: Float32Classifier
    """What attacks search on: the model, or a copy of it (``tf32_search.search_model``)."""
    settings: EvaluationSettings
    store: Store
    device: torch.device
    progress: Progress

    def judge(self, shard: Shard) -> None:
        """Finish one shard."""
        x, y = shard.images.to(self.device), shard.labels.to(self.device)
        clean = self._piece(shard, "clean", lambda: self._clean(shard, x))
        check_labels("evaluate", shard.labels, batch=len(y), num_classes=clean["classes"])
        predictions = torch.tensor(clean["predictions"])
        columns: dict[str, Tensor] = {"clean": predictions == shard.labels}
        pieces = {"clean": clean}
        for eps in self.settings.eps:
            for name in self.settings.attacks:
                if name == AUTOATTACK:
                    pieces |= self._autoattack(shard, x, y, columns, eps, clean["classes"])
                elif name != "clean":
                    label = self.settings.label(name, eps)
                    pieces[label] = self._piece(shard, label, self._gradient_attack(shard, x, y, name, eps))
                    columns[label] = torch.tensor(pieces[label]["correct"], dtype=torch.bool)
        measured = self._measured(shard, x, y, clean["classes"])
        header: Record = {"first": shard.first, "count": len(y)}
        header["seconds"] = {name: piece["seconds"] for name, piece in (pieces | measured).items()}
        undecided = {name: piece[UNDECIDED] for name, piece in pieces.items() if piece.get(UNDECIDED)}
        if undecided:
            header[UNDECIDED] = {name: [shard.first + n for n in where] for name, where in undecided.items()}
        if self.settings.search == "tf32":
            header["refuted"] = sum(piece.get("refuted", 0) for piece in pieces.values())
            header["again"] = measured.get("distance", {}).get("again", 0)
        rows = example_rows(self.settings, shard, predictions, columns, pieces, measured)
        self.store.write_shard(shard.number, header, rows)

    def _piece(self, shard: Shard, name: str, compute: Callable[[], Record]) -> Record:
        """A piece from the store, or computed and written there."""
        found = self.store.part(shard.number, name)
        if found is None:
            self.progress(shard.number, name)
            began = time.monotonic()
            found = compute()
            found["seconds"] = round(time.monotonic() - began, 3)
            self.store.write_part(shard.number, name, found)
        return found

    def _clean(self, shard: Shard, x: Tensor) -> Record:
        with torch.no_grad():
            logits = torch.cat([self.model(images) for images in x.split(self.settings.batch_size)])
        none = (~decided(logits)).nonzero()[:, 0].tolist()
        if none:
            raise InputError(
                f"evaluate: the model gives no prediction for {len(none)} of images {shard.first} to "
                f"{shard.first + len(x) - 1}, the first is image {shard.first + none[0]}: a logit is NaN or +inf, or "
                "all are -inf; find the operator (0/0, log 0, an overflow) that makes them"
            )
        return {"predictions": logits.argmax(1).tolist(), "classes": logits.shape[1]}

    def _gradient_attack(self, shard: Shard, x: Tensor, y: Tensor, name: str, eps: float) -> Callable[[], Record]:
        attack = self.settings.attack(name, eps)

        def compute() -> Record:
            correct: list[bool] = []
            known: list[bool] = []
            for number, (images, labels) in enumerate(
                zip(x.split(self.settings.batch_size), y.split(self.settings.batch_size), strict=True)
            ):
                generator = randomness.derived(self.settings.seed, "evaluate", shard.number, number)
                with allowing_tf32() if self.settings.search == "tf32" else nullcontext():
                    x_adv = images if attack is None else attack(self.search_model, images, labels, generator=generator)
                with torch.no_grad():
                    logits = self.model(x_adv)
                correct += predicted(logits, labels).tolist()
                known += decided(logits).tolist()
            return {"correct": correct, UNDECIDED: [position for position, yes in enumerate(known) if not yes]}

        return compute

    def _autoattack(
        self, shard: Shard, x: Tensor, y: Tensor, columns: dict[str, Tensor], eps: float, classes: int
    ) -> dict[str, Record]:
        """Adds a column after each part and one for the whole; returns the pieces."""
        settings = self.settings
        reference, threat = self._reference(self.search_model, eps, classes), make_threat(settings.norm, eps)
        survivors, pieces = columns["clean"].clone(), {}
        for part in parts_for(classes):
            label = settings.label(f"{AUTOATTACK}/{part}", eps)

            def compute(part: str = part, survivors: Tensor = survivors) -> Record:
                alive = survivors.to(x.device)
                size, tf32 = settings.batch_size, threat if settings.search == "tf32" else None
                found = break_survivors(
                    self.model, x, y, alive, reference=reference, part=part, batch_size=size, tf32=tf32
                )
                record: Record = {"broken": found.positions, UNDECIDED: found.undecided}
                return record | ({"refuted": found.refuted} if tf32 else {})

            pieces[label] = self._piece(shard, label, compute)
            survivors = survivors.clone()
            survivors[pieces[label]["broken"]] = False
            columns[label] = survivors
        columns[settings.label(AUTOATTACK, eps)] = survivors
        return pieces

    def _reference(self, model: Float32Classifier, eps: float, classes: int) -> Any:
        norm, seed, most = self.settings.norm, self.settings.seed, self.settings.max_steps
        return make_reference(
            model, eps=eps, norm=norm, seed=seed, num_classes=classes, device=self.device, max_steps=most
        )

    def _measured(self, shard: Shard, x: Tensor, y: Tensor, classes: int) -> dict[str, Record]:
        settings, pieces = self.settings, {}
        if settings.margins:
            pieces["margin"] = self._piece(shard, "margin", lambda: {"values": _numbers(self._margin(x, y))})
        if settings.distance is not None:
            name = "distance" if settings.distance == ONLY_FAB else f"distance-{settings.distance}"
            pieces["distance"] = self._piece(shard, name, lambda: self._distance(x, y, classes))
        if settings.certify is not None:
            pieces["certified"] = self._piece(shard, "certified", lambda: {"values": self._certified(shard, x, y)})
        return pieces

    def _certified(self, shard: Shard, x: Tensor, y: Tensor) -> list[Any]:
        certify = self.settings.certify or ALL
        return certified_radii(self.model, x, y, self.settings.norm, first=shard.first, certify=certify)

    def _distance(self, x: Tensor, y: Tensor, classes: int) -> Record:
        settings = self.settings
        tf32 = settings.search == "tf32"
        found = minimal_distance(
            self.model,
            x,
            y,
            search=self._nearest_search(self.model, classes),
            batch_size=settings.batch_size,
            seed=settings.seed,
            tf32_search=self._nearest_search(self.search_model, classes) if tf32 else None,
        )
        record: Record = {"values": _numbers(found.values)} | ({"again": found.again} if tf32 else {})
        return record if settings.distance == ONLY_FAB else record | {"by": found.by}  # as in earlier versions

    def _nearest_search(self, model: Float32Classifier, classes: int) -> NearestSearch:
        settings = self.settings
        return NearestSearch(
            reference=self._reference(model, 1.0, classes),
            norm=settings.norm,
            method=settings.distance or ONLY_FAB,
            max_steps=settings.max_steps,
        )

    def _margin(self, x: Tensor, y: Tensor) -> Tensor:
        size = self.settings.batch_size
        pairs = zip(x.split(size), y.split(size), strict=True)
        return torch.cat([effective_margin(self.model, images, labels, self.settings.norm) for images, labels in pairs])


def example_rows(
    settings: EvaluationSettings,
    shard: Shard,
    predictions: Tensor,
    columns: Mapping[str, Tensor],
    pieces: Mapping[str, Record],
    measured: Mapping[str, Record],
) -> list[Record]:
    """A line for each example of a shard; ``broken_by`` is the part at the first eps that broke it."""
    broken_at = {
        eps_text(eps): _breaker(settings, pieces, eps) for eps in settings.eps if AUTOATTACK in settings.attacks
    }
    rows = []
    for position in range(len(predictions)):
        parts = {eps: parts.get(position) for eps, parts in broken_at.items()}
        names = (part if len(parts) == 1 else f"{part}@{eps}" for eps, part in parts.items() if part is not None)
        row: Record = {
            "index": shard.first + position,
            "label": int(shard.labels[position]),
            "prediction": int(predictions[position]),
            "verdicts": {label: bool(column[position]) for label, column in columns.items()},
            "broken_by": next(names, None),
            "broken_at": parts,
        }
        row |= {name: piece["values"][position] for name, piece in measured.items()}
        if "by" in measured.get("distance", {}):
            row["distance_by"] = measured["distance"]["by"][position]
        rows.append(row)
    return rows


def _breaker(settings: EvaluationSettings, pieces: Mapping[str, Record], eps: float) -> dict[int, str]:
    """The part of AutoAttack that broke a position at that eps."""
    labels = {part: settings.label(f"{AUTOATTACK}/{part}", eps) for part in PARTS}
    return {position: part for part, label in labels.items() if label in pieces for position in pieces[label]["broken"]}


def _numbers(values: Tensor) -> list[float | str | None]:
    """What JSON can hold: null for an infinity, a word for what is no number."""
    return [NAN if math.isnan(v) else None if math.isinf(v) else v for v in values.cpu().tolist()]
