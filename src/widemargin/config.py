"""One run, described completely: what ``config.toml`` in a run folder holds.

Every part is a frozen dataclass. What a part does is written where that part lives (the attack in ``attacks/``, the
schedule in ``schedules.py``); this module only puts them together and refuses combinations that mean nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from widemargin.attacks import FGSM, PGD, attack_named
from widemargin.checks import choice
from widemargin.data import AUGMENTATIONS
from widemargin.errors import InputError
from widemargin.models import MODELS, ModelConfig
from widemargin.objectives import Adversarial, Standard
from widemargin.regularizers import ApproximateEMR, ExactEMR, Penalty, StochasticEMR
from widemargin.schedules import SCHEDULES, Constant, Schedule
from widemargin.types import Norm, Point, Scaling

ATTACKS: dict[str, type] = {"pgd": PGD, "fgsm": FGSM}
OBJECTIVES: dict[str, type] = {"standard": Standard, "adversarial": Adversarial}
KINDS: Mapping[str, type] = ATTACKS | OBJECTIVES | SCHEDULES | MODELS

ObjectiveConfig = Standard | Adversarial
WatchedMargins = Literal["train", "test"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which images. ``held_out`` training images, class-stratified, become the validation split."""

    name: str
    augmentation: str = "none"
    held_out: int = 0
    train_limit: int | None = None
    test_limit: int | None = None

    def __post_init__(self) -> None:
        choice("data", "augmentation", self.augmentation, tuple(AUGMENTATIONS))
        if self.held_out < 0:
            raise InputError(f"data.held_out must be at least 0, got {self.held_out}")
        for field in ("train_limit", "test_limit"):
            limit = getattr(self, field)
            if limit is not None and limit < 1:
                raise InputError(f"data.{field} must be at least 1, got {limit}; leave it out to use every image")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """SGD with momentum; weight decay on every parameter, as all the compared methods do."""

    lr: float
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Schedule = Constant()

    def __post_init__(self) -> None:
        for field, legal in (
            ("lr", self.lr > 0),
            ("momentum", 0 <= self.momentum < 1),
            ("weight_decay", self.weight_decay >= 0),
        ):
            if not (legal and math.isfinite(getattr(self, field))):
                raise InputError(
                    f"optimizer.{field} is out of range: {getattr(self, field)!r}; usual are lr 0.01 to 0.1, "
                    "momentum 0.9, weight_decay 0 to 0.01"
                )


@dataclass(frozen=True, kw_only=True)
class EMRConfig:
    """Effective margin regularization in a run: which form, how strong, where and when."""

    kind: Literal["exact", "approximate", "stochastic"]
    weight: float
    temperature: float | None = None
    projections: int | None = None
    at: Point = "clean"
    scaling: Scaling = "mean"
    every: int = 1
    schedule: Schedule = Constant()

    def __post_init__(self) -> None:
        choice("emr", "kind", self.kind, ("exact", "approximate", "stochastic"))
        if self.temperature is not None and self.kind != "approximate":
            raise InputError(
                f'emr.temperature has no effect on {self.kind} EMR; remove it, or use kind = "approximate"'
            )
        if self.projections is not None and self.kind != "stochastic":
            raise InputError(f'emr.projections has no effect on {self.kind} EMR; remove it, or use kind = "stochastic"')
        self.penalty()

    def penalty(self) -> Penalty:
        """The penalty this describes."""
        return Penalty(
            name="emr",
            regularizer=self._regularizer(),
            weight=self.weight,
            at=self.at,
            scaling=self.scaling,
            every=self.every,
            schedule=self.schedule,
        )

    def _regularizer(self) -> ExactEMR | ApproximateEMR | StochasticEMR:
        if self.kind == "exact":
            return ExactEMR()
        if self.kind == "approximate":
            return ApproximateEMR(temperature=1.0 if self.temperature is None else self.temperature)
        return StochasticEMR(projections=1 if self.projections is None else self.projections)


@dataclass(frozen=True, kw_only=True)
class WatchConfig:
    """What is measured after an epoch, besides the training loss; each part can be switched off for cost.

    With a validation split, ``attack`` also chooses the best checkpoint. Test curves are only logged, never used.
    """

    every: int = 1
    attack: PGD | FGSM | None = None
    test: bool = True
    margins: tuple[WatchedMargins, ...] = ("train", "test")
    margin_samples: int | None = None

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError(f"watch.every must be at least 1, got {self.every}")
        if self.margin_samples is not None and self.margin_samples < 1:
            raise InputError(
                f"watch.margin_samples must be at least 1, got {self.margin_samples}; "
                "set watch.margins = [] to measure none"
            )
        if len(set(self.margins)) != len(self.margins):
            raise InputError(f"watch.margins names a split twice: {list(self.margins)}")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How the finished run is judged, unless the command line says otherwise."""

    attacks: tuple[str, ...]
    eps: float
    step_size: float | None = None
    norm: Norm = "linf"

    def __post_init__(self) -> None:
        for name in self.attacks:
            if name != "clean":
                attack_named(name, eps=self.eps, step_size=self.step_size, norm=self.norm)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run."""

    name: str
    seed: int = 0
    epochs: int
    batch_size: int
    data: DataConfig
    model: ModelConfig
    objective: ObjectiveConfig = Standard()
    optimizer: OptimizerConfig
    emr: EMRConfig | None = None
    watch: WatchConfig = WatchConfig()
    evaluation: EvaluationConfig | None = None

    def __post_init__(self) -> None:
        for field in ("epochs", "batch_size"):
            if getattr(self, field) < 1:
                raise InputError(f"{field} must be at least 1, got {getattr(self, field)}")
        if self.emr is not None and self.emr.at == "adversarial" and not self.objective.attacks:
            raise InputError(
                'emr.at = "adversarial" has no effect in standard training, which makes no adversarial images; '
                'use emr.at = "clean" or another objective'
            )

    def penalties(self) -> tuple[Penalty, ...]:
        """The penalties of this run."""
        return () if self.emr is None else (self.emr.penalty(),)
