"""One shard judged: every attack at every eps, margins and distances; each finished piece is written down at once.

Whatever the model, attacks see float32 images in, float32 logits out (``Float32Classifier``). What is known of the
shard already is not found out again; what is new stands beside it (``judged_shard.py``).
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.attacks.names import AUTOATTACK, variant_names
from widemargin.attacks.threat import make_threat
from widemargin.core import randomness
from widemargin.core.checks import check_labels, check_logits
from widemargin.core.precision import default_type
from widemargin.core.records import Record
from widemargin.errors import InputError
from widemargin.evaluation.autoattack import PARTS, break_survivors, make_reference, parts_for
from widemargin.evaluation.certified import ALL, certified_radii
from widemargin.evaluation.columns import CLEAN, Column, labels
from widemargin.evaluation.cpu_search import arithmetic
from widemargin.evaluation.distance import minimal_distance
from widemargin.evaluation.judged_shard import BOUND, BY, PROVEN, JudgedShard, part_column, sibling
from widemargin.evaluation.minimal_norm import ONLY_FAB, NearestSearch
from widemargin.evaluation.settings import CERTIFIED, EvaluationSettings
from widemargin.evaluation.shards import Shard, Store
from widemargin.losses import decided, predicted
from widemargin.margins import MANY_CLASSES, margins_by_candidates

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
            output = self.model(x.to(self.dtype, copy=True))
        return check_logits("evaluate", output, batch=len(x)).float()


def _input_dtype(model: nn.Module) -> torch.dtype:
    """That of the first matrix or kernel, which images meet; a scale in front of it may be of any."""
    found = [parameter for parameter in model.parameters() if parameter.is_floating_point()]
    weights = [parameter for parameter in found if parameter.dim() > 1]
    return next((parameter.dtype for parameter in weights + found), torch.float32)


def is_judged(
    store: Store, number: int, judged: JudgedShard | None, settings: EvaluationSettings, num_classes: int
) -> bool:
    """Whether a shard has all that is asked for; refuses an attack that is another one now under its old name."""
    if judged is None:
        return False
    asked = settings.columns(num_classes)
    codes = {column.attack: column.code for column in asked if column.code}
    for column in judged.verdicts:
        if column.code != codes.get(column.attack, column.code):
            raise InputError(
                f"evaluate.attacks: {column.attack} was another attack when it was judged here (its settings, its "
                "source or its networks' weights have changed); give it another name, with a pair (name, attack)"
            )
    return all(_has(store, number, judged, column, settings) for column in asked) and all(
        _has_measured(judged, name, depends, settings) for name, depends in settings.measured.items()
    )


def _has(store: Store, number: int, judged: JudgedShard, column: Column, settings: EvaluationSettings) -> bool:
    if column not in judged.verdicts:
        return False
    if not settings.save_adversarial or column.attack in (CLEAN, AUTOATTACK) or variant_names(column.attack):
        return True
    return column in judged.images and store.images_file(number, column.piece).is_file()


def _has_measured(judged: JudgedShard, name: str, depends: Any, settings: EvaluationSettings) -> bool:
    if name not in judged.measured or judged.depends.get(name) != depends:
        return False
    if name != CERTIFIED:
        return True
    count = len(judged.labels) if settings.certify == ALL else int(settings.certify or 0) - judged.first
    return all(radius is not None for radius in judged.measured[name][: max(0, count)])


@dataclass(frozen=True)
class Judge:
    """A model, what to do to it, and where results go."""

    model: Float32Classifier
    search_model: Float32Classifier
    """What attacks search on: the model, or a copy of it (``tf32_search.py``, ``cpu_search.py``)."""
    settings: EvaluationSettings
    store: Store
    device: torch.device
    progress: Progress
    num_classes: int

    def judge(self, shard: Shard, judged: JudgedShard | None = None) -> None:
        """Finish one shard, of which something may be known; in the order in which columns are made of others."""
        x, y = shard.images.to(self.device), shard.labels.to(self.device)
        check_labels("evaluate", shard.labels, batch=len(y), num_classes=self.num_classes)
        if judged is None:
            clean = self._clean(shard, x)
            judged = JudgedShard.begun(shard.first, shard.labels.tolist(), clean["predictions"], clean["seconds"])
        asked = self.settings.columns(self.num_classes)
        names = labels(asked)
        for column in asked:
            if not _has(self.store, shard.number, judged, column, self.settings):
                self._judge_column(shard, x, y, judged, column, names[column])
        for name, depends in self.settings.measured.items():
            if not _has_measured(judged, name, depends, self.settings):
                self._measure(shard, x, y, judged, name, depends)
        self.store.write_shard(shard.number, *judged.lines())

    def _judge_column(self, shard: Shard, x: Tensor, y: Tensor, judged: JudgedShard, column: Column, name: str) -> None:
        """Add the column to what is known."""
        parts = [part_column(column, part) for part in parts_for(self.num_classes)]
        clean = torch.tensor(judged.verdicts[Column(attack=CLEAN)], dtype=torch.bool)
        if column.attack == AUTOATTACK:
            judged.verdicts[column] = judged.verdicts[parts[-1]]
            return
        if variants := [sibling(column, variant) for variant in variant_names(column.attack, self.num_classes)]:
            judged.verdicts[column] = [
                all(right) for right in zip(*(judged.verdicts[v] for v in variants), strict=True)
            ]
            return
        if column.is_part or column.attack in PARTS:
            if column.is_part and column != parts[0]:
                clean = torch.tensor(judged.verdicts[parts[parts.index(column) - 1]], dtype=torch.bool)
            piece = self._piece(shard, column.piece, name, self._part(shard, x, y, clean, column), column)
            clean[piece["broken"]] = False
            judged.verdicts[column] = clean.tolist()
        else:
            piece = self._piece(shard, column.piece, name, self._attack(shard, x, y, clean, column), column)
            judged.verdicts[column] = piece["correct"]
        judged.seconds[column] = piece["seconds"]
        if piece.get(UNDECIDED):
            judged.undecided[column] = [shard.first + position for position in piece[UNDECIDED]]
        if "refuted" in piece:
            judged.counts["refuted"] = judged.counts.get("refuted", 0) + piece["refuted"]
        if "images" in piece:
            judged.images[column] = piece["images"]

    def _piece(
        self, shard: Shard, name: str, called: str, compute: Callable[[], Record], column: Column | None = None
    ) -> Record:
        """A piece from the store, or computed and written there."""
        found = self.store.part(shard.number, name, column)
        if column is not None and self.settings.save_adversarial and found is not None:
            has_images = "images" in found and self.store.images_file(shard.number, name).is_file()
            found = found if has_images else None
        if found is None:
            self.progress(shard.number, called)
            began = time.monotonic()
            found = compute()
            found["seconds"] = round(time.monotonic() - began, 3)
            self.store.write_part(shard.number, name, found)
        return found

    def _clean(self, shard: Shard, x: Tensor) -> Record:
        """What it predicts."""

        def compute() -> Record:
            with torch.no_grad():
                logits = torch.cat([self.model(images) for images in x.split(self.settings.batch_size)])
            none = (~decided(logits)).nonzero()[:, 0].tolist()
            if none:
                raise InputError(
                    f"evaluate: the model gives no prediction for {len(none)} of images {shard.first} to "
                    f"{shard.first + len(x) - 1}, the first is image {shard.first + none[0]}: a logit is NaN or +inf, "
                    "or all are -inf; find the operator (0/0, log 0, an overflow) that makes them"
                )
            return {"predictions": logits.argmax(1).tolist(), "classes": logits.shape[1]}

        return self._piece(shard, CLEAN, CLEAN, compute)

    def _attack(self, shard: Shard, x: Tensor, y: Tensor, clean: Tensor, column: Column) -> Callable[[], Record]:
        """An attack with a name, or one of the user's own, on every image."""
        settings, size = self.settings, self.settings.batch_size
        own = settings.own_attack(column.attack)
        eps = next((eps for eps in settings.eps if float(eps) == column.radius), column.radius)
        assert eps is not None
        attack = settings.attack(column.attack, eps)

        def perturbed(images: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
            if own is not None:
                torch.manual_seed(generator.initial_seed())  # it may draw from there; the state is put back in the end
                with torch.enable_grad():
                    return own.run(self.model, images, targets, eps=eps, norm=settings.norm, generator=generator)
            with arithmetic(settings.search):
                return images if attack is None else attack(self.search_model, images, targets, generator=generator)

        def compute() -> Record:
            correct: list[Tensor] = []
            known: list[Tensor] = []
            found: list[Tensor] = []
            for number, (images, targets) in enumerate(zip(x.split(size), y.split(size), strict=True)):
                generator = randomness.derived(settings.seed, "evaluate", shard.number, number)
                x_adv = perturbed(images, targets, generator)
                with torch.no_grad():
                    logits = self.model(x_adv)
                correct.append(predicted(logits, targets))
                known.append(decided(logits))
                found += [x_adv] if settings.save_adversarial else []
            record: Record = {
                "correct": torch.cat(correct).tolist(),
                UNDECIDED: (~torch.cat(known)).nonzero()[:, 0].tolist(),
            }
            if settings.save_adversarial:
                broken = (clean.to(x.device) & ~torch.cat(correct)).nonzero()[:, 0]
                record["images"] = self._save(shard, column, broken, torch.cat(found)[broken])
            return record

        return compute

    def _part(self, shard: Shard, x: Tensor, y: Tensor, survivors: Tensor, column: Column) -> Callable[[], Record]:
        """A part of AutoAttack, on the survivors of those before or alone."""
        settings, eps = self.settings, column.radius
        assert eps is not None
        threat = make_threat(settings.norm, eps) if settings.searches_copy else None

        def compute() -> Record:
            found = break_survivors(
                self.model,
                x,
                y,
                survivors.to(x.device),
                reference=self._reference(self.search_model, eps),
                part=column.attack.removeprefix(f"{AUTOATTACK}/"),
                batch_size=settings.batch_size,
                within=threat,
                search=settings.search,
            )
            record: Record = {"broken": found.positions, UNDECIDED: found.undecided}
            if settings.save_adversarial:
                record["images"] = self._save(shard, column, torch.tensor(found.positions), found.images)
            return record | ({"refuted": found.refuted} if threat else {})

        return compute

    def _save(self, shard: Shard, column: Column, positions: Tensor, images: Tensor) -> str:
        """Keep the adversarial images found at these positions; returns the digest of their file."""
        positions = positions.cpu().long()
        arrays = {
            "index": (shard.first + positions).numpy(),
            "label": shard.labels[positions].numpy(),
            "images": images.cpu().numpy(),
        }
        return self.store.write_images(shard.number, column.piece, arrays)

    def _reference(self, model: Float32Classifier, eps: float) -> Any:
        norm, seed, most = self.settings.norm, self.settings.seed, self.settings.max_steps
        return make_reference(
            model, eps=eps, norm=norm, seed=seed, num_classes=self.num_classes, device=self.device, max_steps=most
        )

    def _measure(self, shard: Shard, x: Tensor, y: Tensor, judged: JudgedShard, name: str, depends: Any) -> None:
        """Add a measurement to what is known: its values, and whatever more it says of each image."""
        measure = {
            "margin": lambda: self._margin(x, y),
            "distance": lambda: self._distance(x, y),
            CERTIFIED: lambda: self._certified(shard, x, y, judged.measured.get(name, [])),
        }[name]
        if name != CERTIFIED:
            judged.set_aside(name)
            if judged.bring_back(name, depends):
                return
        way = self.settings.certify if name == CERTIFIED else depends
        piece = self._piece(shard, name if way is None else f"{name}-{way}", name, measure)
        judged.measured |= {name: piece["values"]} | ({f"{name}{BY}": piece["by"]} if "by" in piece else {})
        judged.seconds[name] = piece["seconds"]
        if depends is not None:
            judged.depends[name] = depends
        if "again" in piece:
            judged.counts["again"] = piece["again"]

    def _certified(self, shard: Shard, x: Tensor, y: Tensor, known: list[Any]) -> Record:
        """After the radii that are known of the first images those of more."""
        certify = self.settings.certify or ALL
        known = known[: known.index(None)] if None in known else known
        rest = slice(len(known), None)
        found = certified_radii(
            self.model, x[rest], y[rest], self.settings.norm, first=shard.first + len(known), certify=certify
        )
        return {"values": [*known, *found]}

    def _distance(self, x: Tensor, y: Tensor) -> Record:
        settings = self.settings
        found = minimal_distance(
            self.model,
            x,
            y,
            search=self._nearest_search(self.model),
            batch_size=settings.batch_size,
            seed=settings.seed,
            search_on_copy=self._nearest_search(self.search_model) if settings.searches_copy else None,
            arithmetic=lambda: arithmetic(settings.search),
        )
        record: Record = {"values": _numbers(found.values)} | ({"again": found.again} if settings.searches_copy else {})
        return record if settings.distance == ONLY_FAB else record | {"by": found.by}  # as in earlier versions

    def _nearest_search(self, model: Float32Classifier) -> NearestSearch:
        settings = self.settings
        return NearestSearch(
            reference=self._reference(model, 1.0),
            norm=settings.norm,
            method=settings.distance or ONLY_FAB,
            max_steps=settings.max_steps,
        )

    def _margin(self, x: Tensor, y: Tensor) -> Record:
        size = self.settings.batch_size
        pairs = zip(x.split(size), y.split(size), strict=True)
        found = [margins_by_candidates(self.model, images, targets, self.settings.norm) for images, targets in pairs]
        record: Record = {"values": _numbers(torch.cat([part.margins for part in found]))}
        if self.num_classes <= MANY_CLASSES:
            return record
        proven = torch.cat([part.proven for part in found]).tolist()
        return record | {"by": [PROVEN if one else BOUND for one in proven]}


def _numbers(values: Tensor) -> list[float | str | None]:
    """What JSON can hold: null for an infinity, a word for what is no number."""
    return [NAN if math.isnan(v) else None if math.isinf(v) else v for v in values.cpu().tolist()]
