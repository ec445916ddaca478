"""One run, described completely: what ``config.toml`` in a run folder holds.

Every part is a frozen dataclass. What a part does is written where that part lives (the attack in ``attacks/``, the
schedule in ``schedules.py``); this module puts them together and refuses combinations that mean nothing. Models,
objectives and heads of your own join by a line such as ``OBJECTIVES["mine"] = MyObjective`` (docs/adding.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from widemargin.attacks import FGSM, PGD
from widemargin.checks import check_count
from widemargin.config.parts import (
    AveragingConfig,
    DataConfig,
    EvaluationConfig,
    OptimizerConfig,
    StoppingConfig,
    WatchConfig,
)
from widemargin.config.penalties import EMRConfig, IGRConfig
from widemargin.errors import InputError
from widemargin.heads import HEADS, GeometricAnnealing, Hypersphere, LargeMargin, Linear, MakeHead, PowerAnnealing
from widemargin.models import MODELS, ModelFactory
from widemargin.objectives import OBJECTIVES, Lbgat, Mail, Standard
from widemargin.plain import one_of
from widemargin.regularizers import Penalty
from widemargin.schedules import SCHEDULES
from widemargin.types import Objective

ATTACKS: dict[str, type] = {"pgd": PGD, "fgsm": FGSM}
ANNEALINGS: dict[str, type] = {"power": PowerAnnealing, "geometric": GeometricAnnealing}


def kinds() -> Mapping[str, type]:
    """Every ``kind`` a table may have now, those added by the user included."""
    return {**ATTACKS, **SCHEDULES, **ANNEALINGS, **HEADS, **OBJECTIVES, **MODELS}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run."""

    name: str
    seed: int = 0
    epochs: int
    batch_size: int
    data: DataConfig
    model: ModelFactory = one_of(MODELS)
    head: MakeHead = one_of(HEADS, default=Linear())
    objective: Objective = one_of(OBJECTIVES, default=Standard())
    teacher: ModelFactory | None = one_of(MODELS, default=None)
    optimizer: OptimizerConfig
    emr: EMRConfig | None = None
    igr: IGRConfig | None = None
    averaging: AveragingConfig | None = None
    stopping: StoppingConfig | None = None
    watch: WatchConfig = WatchConfig()
    evaluation: EvaluationConfig | None = None

    def __post_init__(self) -> None:
        for field in ("epochs", "batch_size"):
            check_count(field, getattr(self, field))
        if not 0 <= self.seed < 2**63:  # what build_model takes
            raise InputError(f"seed must be in [0, 2^63), got {self.seed}; try 0")
        self._check_points()
        self._check_teacher()
        self._check_head()
        self._check_burn_in()
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

    def _check_teacher(self) -> None:
        guided = isinstance(self.objective, Lbgat)
        if guided and self.teacher is None:
            raise InputError('objective "lbgat" needs a [teacher] table; the published one is kind = "lbgat-teacher"')
        if self.teacher is not None and not guided:
            raise InputError('teacher has no effect with this objective; remove it, or use objective.kind = "lbgat"')

    def _check_head(self) -> None:
        if not isinstance(self.objective, Lbgat):
            return
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

    def check_watched(self) -> None:
        """Refuse an attack that nobody would see, in a run that begins; there are older ones that have it."""
        if self.watch.attack is not None and not self.data.held_out and not self.watch.test:
            raise InputError(
                "watch.attack has no effect: there is no validation split, and the test images are not watched; "
                "set data.held_out or watch.test = true, or remove it (--set watch.attack=none)"
            )

    def penalties(self) -> tuple[Penalty, ...]:
        """The penalties of this run."""
        return tuple(config.penalty() for config in (self.emr, self.igr) if config is not None)
