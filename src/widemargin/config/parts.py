"""The plain parts of a run: data, optimizer, what is watched, how it is judged, averaging, stopping."""

import math
from dataclasses import dataclass
from typing import Literal

from widemargin.attacks import FGSM, PGD, attack_named
from widemargin.checks import choice
from widemargin.data import AUGMENTATIONS
from widemargin.errors import InputError
from widemargin.schedules import Constant, Schedule
from widemargin.threat import make_threat
from widemargin.types import Norm

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
        if not self.name.strip():
            raise InputError("data.name is empty; give a data set's name or the path of an .npz file or image folder")
        choice("data", "augmentation", self.augmentation, tuple(AUGMENTATIONS))
        if self.held_out < 0:
            raise InputError(f"data.held_out must be at least 0, got {self.held_out}; 0 holds out none")
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
        legal = {"lr": self.lr > 0, "momentum": 0 <= self.momentum < 1, "weight_decay": self.weight_decay >= 0}
        for field, fits in legal.items():
            if not (fits and math.isfinite(getattr(self, field))):
                raise InputError(
                    f"optimizer.{field} is out of range: {getattr(self, field)!r}; usual are lr 0.01 to 0.1, "
                    "momentum 0.9, weight_decay 0 to 0.01"
                )


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
            raise InputError(f"watch.every must be at least 1, got {self.every}; 1 measures after every epoch")
        if self.margin_samples is not None and self.margin_samples < 1:
            raise InputError(
                f"watch.margin_samples must be at least 1, got {self.margin_samples}; "
                "set watch.margins = [] to measure none"
            )
        if len(set(self.margins)) != len(self.margins):
            raise InputError(f"watch.margins names a split twice: {list(self.margins)}; leave one out")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How the finished run is judged, unless the command line says otherwise."""

    attacks: tuple[str, ...]
    eps: float
    step_size: float | None = None
    norm: Norm = "linf"

    def __post_init__(self) -> None:
        make_threat(self.norm, self.eps)
        kinds = [self.attack(name) or name for name in self.attacks]
        twice = [name for name, kind in zip(self.attacks, kinds, strict=True) if kinds.count(kind) > 1]
        if twice:
            raise InputError(f"evaluation.attacks names an attack twice: {twice}; leave one out")

    def attack(self, name: str) -> PGD | FGSM | None:
        """The gradient attack of that name; None for "clean" and for "autoattack", which is more than one."""
        if name in ("clean", "autoattack"):
            return None
        return attack_named(name, eps=self.eps, step_size=self.step_size, norm=self.norm)

    def strongest(self) -> PGD | FGSM | None:
        """The last attack of the plan, by custom the strongest."""
        attacks = [attack for name in self.attacks if (attack := self.attack(name)) is not None]
        return attacks[-1] if attacks else None


@dataclass(frozen=True, kw_only=True)
class AveragingConfig:
    """Weight averaging (EMA): the averaged weights are what is validated, kept and judged.

    With ``beside`` the trained weights are, as without averaging; the averaged ones are validated too, choose their own
    best epoch, and are kept in the run's folder ``averaged``. One run then gives both arms of a comparison.
    """

    decay: float = 0.999
    beside: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.decay < 1:
            raise InputError(f"averaging.decay must be in (0, 1), got {self.decay!r}; 0.999 is usual")


@dataclass(frozen=True, kw_only=True)
class StoppingConfig:
    """Early stopping: end the run when the validation score has not improved for ``patience`` watched epochs."""

    patience: int

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise InputError(
                f"stopping.patience must be at least 1 epoch, got {self.patience}; remove stopping to train to the end"
            )
