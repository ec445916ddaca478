"""Adversarial training of large networks on CIFAR-10: the AT rows of Table 3 (WRN-34-10) and of the ResNet-18 table.

48,000 training images, 2,000 held out, class-stratified; 100 epochs; the best epoch by PGD-10 on the held-out images
counts. The EMR weight falls one epoch before the learning rate, as in the released code. The paper's EMR rows use half
the baseline's weight decay: ``at-wd0.0005`` is the baseline at the EMR row's own.
"""

from widemargin.attacks import PGD
from widemargin.config import (
    DataConfig,
    EMRConfig,
    EvaluationConfig,
    OptimizerConfig,
    RunConfig,
    WatchConfig,
)
from widemargin.models import ModelConfig, ResNet18Config, WideResNetConfig
from widemargin.objectives import Adversarial
from widemargin.recipes.published import published
from widemargin.recipes.recipe import Recipe
from widemargin.schedules import Steps

EPS, STEP_SIZE = 0.031, 0.00784
VALIDATION = PGD(eps=EPS, step_size=STEP_SIZE, steps=10)
AT = Adversarial(attack=PGD(eps=EPS, step_size=STEP_SIZE, steps=10, random_start="uniform"))


def _run(name: str, model: ModelConfig, weight_decay: float, emr: EMRConfig | None = None) -> RunConfig:
    return RunConfig(
        name=name,
        epochs=100,
        batch_size=128,
        data=DataConfig(name="cifar10", augmentation="crop-flip", held_out=2000),
        model=model,
        objective=AT,
        optimizer=OptimizerConfig(
            lr=0.1, momentum=0.9, weight_decay=weight_decay, schedule=Steps(milestones=(60, 90), factor=0.1)
        ),
        emr=emr,
        watch=WatchConfig(attack=VALIDATION, test=False, margins=()),
        evaluation=EvaluationConfig(attacks=("clean", "fgsm", "pgd10", "pgd100"), eps=EPS, step_size=STEP_SIZE),
    )


def _emr(weight: float, temperature: float) -> EMRConfig:
    return EMRConfig(
        kind="approximate",
        weight=weight,
        temperature=temperature,
        at="adversarial",
        scaling="released",
        schedule=Steps(milestones=(59, 89), factor=0.1),
    )


def _rows(prefix: str, model: ModelConfig, table: str, emr: EMRConfig) -> list[Recipe]:
    return [
        Recipe(config=_run(f"{prefix}/at", model, 1e-3), published=published(table, "AT")),
        Recipe(config=_run(f"{prefix}/at-wd0.0005", model, 5e-4), note="the EMR row's own weight decay"),
        Recipe(config=_run(f"{prefix}/at-emr", model, 5e-4, emr), published=published(table, "AT+EMR")),
    ]


def recipes() -> list[Recipe]:
    """The AT rows of both networks."""
    return [
        *_rows("cifar-resnet18", ResNet18Config(), "supplement_resnet18", _emr(0.1, 40.0)),
        *_rows("cifar-wrn", WideResNetConfig(variant="madry"), "table3_wide_resnet", _emr(1.0, 40.0)),
    ]
