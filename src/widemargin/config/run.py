"""One run, described completely: what ``config.toml`` in a run folder holds.

Every part is a frozen dataclass. What a part does is written where that part lives (the attack in ``attacks/``, the
schedule in ``schedules.py``); this module puts them together, refuses combinations that mean nothing, and says which
parts of a schedule a run never gets to. Models, objectives, attacks and so on of your own join by a line such as
``OBJECTIVES["mine"] = MyObjective`` (docs/adding.md).
"""

from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from widemargin.attacks import ATTACKS as OWN_ATTACKS
from widemargin.attacks.kinds import ATTACK_KINDS
from widemargin.attacks.names import AUTOATTACK, AUTOATTACK_PARTS, GradientAttack, attack_named
from widemargin.attacks.pgd import FGSM
from widemargin.attacks.threat import make_threat
from widemargin.core.checks import check_count, check_number, choice
from widemargin.core.schema import added, one_of, required, table_fields
from widemargin.data.augmentation import AUGMENTATIONS
from widemargin.data.batch_augmentation import Augmentation, MixesLabels
from widemargin.data.decoding import RandomResizedCrop
from widemargin.data.extra import extra_count
from widemargin.errors import InputError
from widemargin.heads import HEADS
from widemargin.heads.hypersphere import Hypersphere
from widemargin.heads.large_margin import GeometricAnnealing, LargeMargin, PowerAnnealing
from widemargin.heads.linear import Linear
from widemargin.models import MODELS
from widemargin.models.classifier import ModelFactory
from widemargin.models.libraries import LIBRARIES
from widemargin.objectives import OBJECTIVES
from widemargin.objectives.ikl import Ikl
from widemargin.objectives.lbgat import Lbgat
from widemargin.objectives.mail import Mail
from widemargin.objectives.standard import Standard
from widemargin.optimizers import OPTIMIZERS, SGD, Optimizer
from widemargin.regularizers.emr import ApproximateEMR, ExactEMR, StochasticEMR
from widemargin.regularizers.grad_align import GradAlign
from widemargin.regularizers.input_gradient import InputGradient
from widemargin.regularizers.penalty import Penalty
from widemargin.schedules import (
    SCHEDULES,
    Constant,
    CyclesMomentum,
    Piecewise,
    Schedule,
    Steps,
    WarmUp,
)
from widemargin.types import (
    Attack,
    LossAfterAttack,
    MakeHead,
    Norm,
    Objective,
    Point,
    Regularizer,
    Scaling,
    TakesMixedLabels,
)

OptimizerConfig = SGD
"""The optimizer that a table without a kind describes."""
BatchNormOfAverage = Literal["average", "copy"]
WatchedMargins = Literal["train", "test"]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which images. ``held_out`` training images, class-stratified, become the validation split."""

    name: str
    augmentation: str | Augmentation | tuple[str | Augmentation, ...] = one_of(AUGMENTATIONS, default="none")
    held_out: int = 0
    train_limit: int | None = None
    test_limit: int | None = None
    extra: str | tuple[str, ...] | None = added(None)
    extra_share: float | None = added(None)
    streaming: bool | None = added(None)
    image_size: int | None = added(None)

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise InputError(
                "data.name is empty; give a data set's name or the path of an .npz file, image folder or tar shards"
            )
        if self.image_size is not None:
            check_count("data.image_size", self.image_size)
        parts = tuple(_named_augmentation(part) for part in self.augmentations)
        if not parts or (len(parts) > 1 and "none" in parts):
            raise InputError(f'data.augmentation {[*parts]} does nothing in part; list what is done, or write "none"')
        object.__setattr__(self, "augmentation", parts[0] if len(parts) == 1 else parts)
        self._check_extra()
        if self.held_out < 0:
            raise InputError(f"data.held_out must be at least 0, got {self.held_out}; 0 holds out none")
        for field in ("train_limit", "test_limit"):
            limit = getattr(self, field)
            if limit is not None and limit < 1:
                raise InputError(f"data.{field} must be at least 1, got {limit}; leave it out to use every image")

    def reading(self) -> dict[str, Any]:
        """How the files are read, in arguments of ``data.open_images``."""
        return {"image_size": self.image_size, "streaming": self.streaming}

    @property
    def crops_originals(self) -> bool:
        """Whether training takes parts of the images as they are stored, and so streams them."""
        return any(part == "random-resized-crop" or isinstance(part, RandomResizedCrop) for part in self.augmentations)

    @property
    def augmentations(self) -> tuple[str | Augmentation, ...]:
        """Those of the list, or the one."""
        return self.augmentation if isinstance(self.augmentation, tuple) else (self.augmentation,)

    def _check_extra(self) -> None:
        if (self.extra is None) != (self.extra_share is None):
            given, other = ("extra", "extra_share") if self.extra_share is None else ("extra_share", "extra")
            raise InputError(
                f"data.{given} has no effect without data.{other}; set both (a file, and its share of every batch, "
                "such as 0.7), or remove it"
            )
        if self.extra is not None and (not self.extra or not all(self.extra)):
            raise InputError("data.extra is empty; give the path of an .npz file with image and label")
        if self.extra_share is not None and not 0 < self.extra_share <= 1:
            raise InputError(f"data.extra_share must be a share in (0, 1], got {self.extra_share!r}; 0.7 is usual")


def _named_augmentation(part: str | Augmentation) -> str | Augmentation:
    """One that is as its name alone makes it is its name, so that both ways to write it are equal."""
    if isinstance(part, str):
        return choice("data", "augmentation", part, tuple(AUGMENTATIONS))
    made = next((name for name, made in AUGMENTATIONS.items() if type(part) is made), None)
    return part if made is None or not _is_default(part) else made


def _mixes(part: str | Augmentation) -> bool:
    return issubclass(AUGMENTATIONS[part] if isinstance(part, str) else type(part), MixesLabels)


def _is_default(part: Any) -> bool:
    """Whether it is what its class makes of nothing."""
    return not any(required(field) for field in table_fields(part)) and bool(part == type(part)())


@dataclass(frozen=True, kw_only=True)
class WatchConfig:
    """What is measured after an epoch, besides the training loss; each part can be switched off for cost.

    With a validation split, ``attack`` also chooses the best checkpoint. Test curves are only logged, never used.
    """

    every: int = 1
    attack: Attack | None = one_of(ATTACK_KINDS, default=None)
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
        if isinstance(self.attack, FGSM) and not self.attack.clip:
            raise InputError(
                "watch.attack.clip = false leaves the threat set, which is for training; remove it, or watch with pgd"
            )


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

    def attack(self, name: str) -> GradientAttack | None:
        """The gradient attack of that name; None for "clean", AutoAttack and its parts, and your own."""
        if name in ("clean", AUTOATTACK, *AUTOATTACK_PARTS) or name in OWN_ATTACKS:
            return None
        return attack_named(name, eps=self.eps, step_size=self.step_size, norm=self.norm)

    def strongest(self) -> GradientAttack | None:
        """The last attack of the plan, by custom the strongest."""
        attacks = [attack for name in self.attacks if (attack := self.attack(name)) is not None]
        return attacks[-1] if attacks else None


@dataclass(frozen=True, kw_only=True)
class AveragingConfig:
    """Weight averaging (EMA): the averaged weights are what is validated, kept and judged.

    With ``beside`` the trained weights are, as without averaging; the averaged ones are validated too, choose their own
    best epoch, and are kept in the run's folder ``averaged``. One run then gives both arms of a comparison.

    For the first ``warmup`` epochs the average is the model, as in Wang et al. (2023), who warm up for 2.5% of all
    epochs, decay by 0.995, and give the averaged model the statistics of the trained one (``batch_norm = "copy"``).
    """

    decay: float = 0.999
    beside: bool = False
    warmup: float = added(0.0)
    batch_norm: BatchNormOfAverage = added("average")

    def __post_init__(self) -> None:
        hint = "0 averages from the first step on"
        check_number("averaging.warmup", self.warmup, is_valid=lambda n: n >= 0, rule="a number >= 0", hint=hint)
        choice("averaging", "batch_norm", self.batch_norm, get_args(BatchNormOfAverage))
        if not 0 < self.decay < 1:
            raise InputError(f"averaging.decay must be in (0, 1), got {self.decay!r}; 0.999 is usual")

    def updates(self, step: int, steps_per_epoch: int) -> float:
        """Updates of the average before this step (from 0 on) and since the warm-up; below 0 while it is the model.

        With a warm-up steps count from 1, as in the published code.
        """
        return step + 1 - self.warmup * steps_per_epoch if self.warmup else step


@dataclass(frozen=True, kw_only=True)
class AWPConfig:
    """Adversarial weight perturbation (``training/awp.py``): how far, as a share of each weight's length, and when.

    It begins after ``start`` epochs. Published: 0.01 from the beginning with AT, 0.005 after 9 epochs with TRADES.
    """

    gamma: float
    start: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.gamma < 1:
            raise InputError(f"awp.gamma must be in (0, 1), got {self.gamma!r}; 0.01 and 0.005 are usual")
        if self.start < 0:
            raise InputError(f"awp.start must be a number of epochs >= 0, got {self.start}")


@dataclass(frozen=True, kw_only=True)
class StoppingConfig:
    """Early stopping: end the run when the validation score has not improved for ``patience`` watched epochs."""

    patience: int

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise InputError(
                f"stopping.patience must be at least 1 epoch, got {self.patience}; remove stopping to train to the end"
            )


FORMS: dict[str, Callable[..., Regularizer]] = {
    "exact": ExactEMR,
    "approximate": ApproximateEMR,
    "stochastic": StochasticEMR,
}
PENALTIES = ("emr", "igr", "grad_align")
"""The tables of a run that are penalties."""
FORM_OF = {"temperature": "approximate", "projections": "stochastic"}
"""The settings that one form of EMR alone has."""


@dataclass(frozen=True, kw_only=True)
class EMRConfig:
    """Effective margin regularization: which form, for which threat, how strong, where and when."""

    kind: Literal["exact", "approximate", "stochastic"]
    weight: float
    temperature: float | None = None
    projections: int | None = None
    norm: Norm = added("l2")
    at: Point = "clean"
    scaling: Scaling = "mean"
    every: int = 1
    schedule: Schedule = one_of(SCHEDULES, default=Constant())

    def __post_init__(self) -> None:
        choice("emr", "kind", self.kind, tuple(FORMS))
        for name, form in FORM_OF.items():
            if getattr(self, name) is not None and self.kind != form:
                raise InputError(f'emr.{name} has no effect on {self.kind} EMR; remove it, or use kind = "{form}"')
        self.penalty()

    def penalty(self) -> Penalty:
        """The penalty this describes."""
        given = {name: value for name in FORM_OF if (value := getattr(self, name)) is not None}
        return _penalty("emr", FORMS[self.kind](norm=self.norm, **given), self)


@dataclass(frozen=True, kw_only=True)
class IGRConfig:
    """Input-gradient regularization: how strong, of which norm, where and when.

    With `norm = "linf"` and `squared = false` it is that of Rodriguez-Munoz et al. (2024); their weight is "6/255".
    """

    weight: float
    norm: Norm = added("l2")
    squared: bool = added(True)
    label_smoothing: float = added(0.0)
    at: Point = "clean"
    scaling: Scaling = "mean"
    every: int = 1
    schedule: Schedule = one_of(SCHEDULES, default=Constant())

    def __post_init__(self) -> None:
        self.penalty()

    def penalty(self) -> Penalty:
        """The penalty this describes."""
        regularizer = InputGradient(norm=self.norm, squared=self.squared, label_smoothing=self.label_smoothing)
        return _penalty("igr", regularizer, self)


@dataclass(frozen=True, kw_only=True)
class GradAlignConfig:
    """Gradient alignment (GradAlign): how strong, within which radius, where and when. Published: 0.2 at 8/255."""

    weight: float
    eps: float
    norm: Norm = "linf"
    at: Point = "clean"
    scaling: Scaling = "mean"
    every: int = 1
    schedule: Schedule = one_of(SCHEDULES, default=Constant())

    def __post_init__(self) -> None:
        self.penalty()

    def penalty(self) -> Penalty:
        """The penalty this describes."""
        return _penalty("grad_align", GradAlign(eps=self.eps, norm=self.norm), self)


def _penalty(name: str, regularizer: Regularizer, how: EMRConfig | IGRConfig | GradAlignConfig) -> Penalty:
    return Penalty(
        name=name,
        regularizer=regularizer,
        weight=how.weight,
        at=how.at,
        scaling=how.scaling,
        every=how.every,
        schedule=how.schedule,
    )


MODEL_KINDS: Mapping[str, type] = ChainMap(dict(LIBRARIES), MODELS)  # which lists the last one first
"""Ours, those that the user adds, and other people's."""
ANNEALINGS: dict[str, type] = {"power": PowerAnnealing, "geometric": GeometricAnnealing}


def kinds() -> Mapping[str, type]:
    """Every ``kind`` a table may have now, those added by the user included."""
    return {
        **ATTACK_KINDS,
        **SCHEDULES,
        **OPTIMIZERS,
        **AUGMENTATIONS,
        **ANNEALINGS,
        **HEADS,
        **OBJECTIVES,
        **MODEL_KINDS,
    }


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run."""

    name: str
    seed: int = 0
    epochs: int
    batch_size: int
    data: DataConfig
    model: ModelFactory = one_of(MODEL_KINDS)
    head: MakeHead = one_of(HEADS, default=Linear())
    objective: Objective = one_of(OBJECTIVES, default=Standard())
    teacher: ModelFactory | None = one_of(MODEL_KINDS, default=None)
    init_from: str | None = added(None)
    freeze_batch_norm: bool = added(False)
    optimizer: Optimizer = one_of(OPTIMIZERS, unnamed="sgd")
    emr: EMRConfig | None = None
    igr: IGRConfig | None = None
    grad_align: GradAlignConfig | None = None
    awp: AWPConfig | None = None
    averaging: AveragingConfig | None = None
    stopping: StoppingConfig | None = None
    watch: WatchConfig = WatchConfig()
    evaluation: EvaluationConfig | None = None

    def __post_init__(self) -> None:
        for field in ("epochs", "batch_size"):
            check_count(field, getattr(self, field))
        if not 0 <= self.seed < 2**63:  # what build_model takes
            raise InputError(f"seed must be in [0, 2^63), got {self.seed}; try 0")
        if self.init_from is not None and not self.init_from.strip():
            raise InputError("init_from is empty; give a run folder or a file of weights, or leave it out")
        self._check_points()
        self._check_momentum()
        self._check_lbgat()
        self._check_burn_in()
        if self.averaging is not None and self.averaging.warmup >= self.epochs:
            raise InputError(
                f"averaging.warmup must be less than epochs = {self.epochs}, got {self.averaging.warmup:g}: nothing "
                "would be averaged; lower it, or raise epochs"
            )
        self._check_awp()
        self._check_data()
        if self.stopping is not None and not self.data.held_out:
            raise InputError("stopping has no effect without a validation split; set data.held_out, or remove it")
        if self.stopping is not None and self.averaging is not None and self.averaging.beside:
            raise InputError(
                "averaging.beside = true and stopping do not go together: the two weights may be best at different "
                "epochs, and stopping would end both at once; remove stopping, or set averaging.beside = false"
            )

    def _check_points(self) -> None:
        for penalty in self.penalties():
            if penalty.at == "adversarial" and not self.objective.attacks:
                raise InputError(
                    f'{penalty.name}.at = "adversarial" has no effect in standard training, which makes no adversarial '
                    f'images; use {penalty.name}.at = "clean" or another objective'
                )

    def _check_momentum(self) -> None:
        for penalty in self.penalties():
            if isinstance(penalty.schedule, CyclesMomentum):
                raise InputError(
                    f"{penalty.name}.schedule sets a momentum, which has no effect on a weight; use a schedule that "
                    "does not, such as one-cycle"
                )

    def _check_lbgat(self) -> None:
        is_lbgat = isinstance(self.objective, Lbgat)
        if self.teacher is not None and not is_lbgat:
            raise InputError('teacher has no effect with this objective; remove it, or use objective.kind = "lbgat"')
        if not is_lbgat:
            return
        if self.teacher is None:
            raise InputError('objective "lbgat" needs a [teacher] table; the published one is kind = "lbgat-teacher"')
        if isinstance(self.head, LargeMargin) or (isinstance(self.head, Hypersphere) and self.head.margin > 0):
            raise InputError(
                "head.margin has no effect with LBGAT, whose student has no label loss; "
                "use a linear head, or a hypersphere head with margin = 0"
            )

    def _check_burn_in(self) -> None:
        if isinstance(self.objective, Mail) and self.objective.burn_in >= self.epochs:
            raise InputError(
                f"objective.burn_in must be less than epochs = {self.epochs}, got {self.objective.burn_in}: MAIL's "
                "weights would have no effect; lower objective.burn_in, or raise epochs"
            )

    def _check_awp(self) -> None:
        if self.awp is None:
            return
        if not isinstance(self.objective, LossAfterAttack):
            raise InputError(
                f"awp takes the loss twice on the same adversarial images, and {type(self.objective).__name__} has no "
                "outcome(nets, x, x_adv, y, epoch=...), its loss apart from its attack; write it, or remove awp"
            )
        if self.awp.start >= self.epochs:
            raise InputError(
                f"awp.start must be less than epochs = {self.epochs}, got {self.awp.start}: AWP would have no effect; "
                "lower awp.start, raise epochs, or remove awp"
            )

    def _check_data(self) -> None:
        """Whether the loss takes what the augmentation makes of the labels, and a batch what its share promises."""
        share, mixing = self.data.extra_share, [part for part in self.data.augmentations if _mixes(part)]
        if share is not None and extra_count(share, self.batch_size) < 1:
            raise InputError(
                f"data.extra_share must be at least one image of batch_size = {self.batch_size}, got {share:g}; raise "
                "one of them"
            )
        if not mixing:
            return
        if not (isinstance(self.objective, TakesMixedLabels) and self.objective.takes_mixed_labels):
            takers = [name for name, made in OBJECTIVES.items() if getattr(made, "takes_mixed_labels", False)]
            raise InputError(
                f"data.augmentation {mixing[0]!r} mixes labels, and {type(self.objective).__name__} needs one for each "
                f"image; remove it, or use an objective that takes them: {', '.join(takers)}"
            )
        if isinstance(self.head, LargeMargin) and self.head.margin > 1:
            raise InputError(
                f"data.augmentation {mixing[0]!r} mixes labels, and a large-margin head gives one of them a margin; "
                "remove it, or use another head"
            )

    def check_watched(self) -> None:
        """Refuse an attack that nobody would see, in a run that begins; there are older ones that have it."""
        if self.watch.attack is not None and not self.data.held_out and not self.watch.test:
            raise InputError(
                "watch.attack has no effect: there is no validation split, and the test images are not watched; "
                "set data.held_out or watch.test = true, or remove it (--set watch.attack=none)"
            )

    def penalties(self) -> tuple[Penalty, ...]:
        """The penalties of this run."""
        found = (getattr(self, name) for name in PENALTIES)
        return tuple(config.penalty() for config in found if config is not None)


def unreached(config: RunConfig) -> list[str]:
    """One sentence for each schedule of which something is left when the run ends, with the setting to change.

    Most often the epochs were changed and the schedule was forgotten.
    """
    schedules: dict[str, Schedule] = {"optimizer": config.optimizer.schedule}
    schedules |= {name: part.schedule for name in PENALTIES if (part := getattr(config, name)) is not None}
    found = (_unreached_part(f"{name}.schedule", schedule, config.epochs) for name, schedule in schedules.items())
    grows = config.objective.ramp if isinstance(config.objective, Ikl) else 0
    late = f"objective.ramp grows eps for {grows} epochs, the run ends at {config.epochs}: --set objective.ramp=..."
    return [text for text in (*found, late if grows > config.epochs else "") if text]


def _unreached_part(path: str, schedule: Schedule, epochs: int) -> str:
    if isinstance(schedule, WarmUp):
        late = _unreached_part(f"{path}.schedule", schedule.schedule, epochs)
        if schedule.epochs < epochs:
            return late
        return f"{path} warms up for {schedule.epochs:g} epochs, the run ends at {epochs}: --set {path}.epochs=..."
    if isinstance(schedule, Steps):
        points, setting = [at for at in schedule.milestones if at >= epochs], "milestones"
    elif isinstance(schedule, Piecewise):
        points, setting = [at for at, _ in schedule.points if at >= epochs], "points"
    else:
        return _end_unreached(path, schedule, epochs)
    if not points:
        return ""
    return (
        f"{path}.{setting} has {', '.join(f'{at:g}' for at in points)}, the run ends at {epochs} epochs and never gets "
        f"there: change it with --set '{path}.{setting}=[...]'"
    )


def _end_unreached(path: str, schedule: Schedule, epochs: int) -> str:
    """Of a schedule that says when it ends, and at which epochs the other things in it happen."""
    end = getattr(schedule, "epochs", None)
    if not isinstance(end, int | float) or end <= epochs:
        return ""
    changed = {"epochs": epochs} | {
        name: at * epochs / end for name in ("peak", "start") if (at := getattr(schedule, name, 0))
    }
    settings = " ".join(f"--set {path}.{name}={value:g}" for name, value in changed.items())
    return f"{path} comes down at {end:g} epochs, the run ends at {epochs}: {settings}"
