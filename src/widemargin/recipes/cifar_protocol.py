"""What the large networks on CIFAR-10 share: data, attack, selection, evaluation. Each row derives from it.

48,000 training images, 2,000 held out, class-stratified; the best epoch by PGD-10 on the held-out images counts. eps is
0.031 throughout, as the paper's appendix says. The EMR weight falls one epoch before the learning rate, as in the
released code (with it for MART and LBGAT, which the code does not have), and is in its scaling.
"""

from dataclasses import replace

from widemargin.attacks.pgd import PGD
from widemargin.config.run import (
    DataConfig,
    EMRConfig,
    EvaluationConfig,
    IGRConfig,
    OptimizerConfig,
    RunConfig,
    WatchConfig,
)
from widemargin.models.classifier import ModelFactory
from widemargin.objectives.adversarial import Adversarial
from widemargin.objectives.trades import Trades
from widemargin.recipes.recipe import Published, Recipe
from widemargin.schedules import Schedule, Steps
from widemargin.types import Objective, Point

EPS, STEP_SIZE = 0.031, 0.00784
VALIDATION = PGD(eps=EPS, step_size=STEP_SIZE, steps=10)
UNIFORM = replace(VALIDATION, random_start="uniform")
GAUSSIAN = PGD(eps=EPS, step_size=0.007, steps=10, random_start="gaussian")
"""The attack of the TRADES family's own code: TRADES, MART, MAIL, HE."""

AT = Adversarial(attack=UNIFORM)
TRADES = Trades(attack=UNIFORM, beta=12.0, inner="ce")
"""TRADES as the EMR paper's code runs it: x' by cross-entropy, beta 12."""

SAME_DECAY = "the EMR row's own weight decay; the paper has no such row"
ATTACKS = ("clean", "fgsm", "pgd10", "pgd100", "autoattack")
AT_EPOCHS, AT_DROPS, AT_EMR_DROPS = 100, (60, 90), (59, 89)
TRADES_EPOCHS, TRADES_DROPS, TRADES_EMR_DROPS = 130, (60, 120), (59, 119)


def base(
    name: str, model: ModelFactory, objective: Objective, *, epochs: int, weight_decay: float, schedule: Schedule
) -> RunConfig:
    """A run of the protocol."""
    return RunConfig(
        name=name,
        epochs=epochs,
        batch_size=128,
        data=DataConfig(name="cifar10", augmentation="crop-flip", held_out=2000),
        model=model,
        objective=objective,
        optimizer=OptimizerConfig(lr=0.1, momentum=0.9, weight_decay=weight_decay, schedule=schedule),
        watch=WatchConfig(attack=VALIDATION, test=False, margins=()),
        evaluation=EvaluationConfig(attacks=ATTACKS, eps=EPS, step_size=STEP_SIZE),
    )


def at_run(name: str, model: ModelFactory, weight_decay: float) -> RunConfig:
    """Adversarial training, 100 epochs."""
    schedule = Steps(milestones=AT_DROPS, factor=0.1)
    return base(name, model, AT, epochs=AT_EPOCHS, weight_decay=weight_decay, schedule=schedule)


def trades_run(name: str, model: ModelFactory, weight_decay: float) -> RunConfig:
    """TRADES as the EMR paper runs it, 130 epochs."""
    schedule = Steps(milestones=TRADES_DROPS, factor=0.1)
    return base(name, model, TRADES, epochs=TRADES_EPOCHS, weight_decay=weight_decay, schedule=schedule)


def emr(weight: float, temperature: float, drops: tuple[float, ...], at: Point = "adversarial") -> EMRConfig:
    """Approximate EMR in the released scaling, its weight falling tenfold at each drop."""
    return EMRConfig(
        kind="approximate",
        weight=weight,
        temperature=temperature,
        at=at,
        scaling="released",
        schedule=Steps(milestones=drops, factor=0.1),
    )


def row(name: str, config: RunConfig, numbers: Published | None = None, note: str = "") -> Recipe:
    """The recipe of this name, beside its published numbers, if there are any."""
    return Recipe(config=replace(config, name=name), published=numbers, note=note)


IGR = IGRConfig(weight=1.0, at="adversarial", scaling="released")
"""The paper's IGR rows: weight 1, not decayed; in the released scaling that is next to nothing, as its results are."""
