"""Table 2: the small CNN on CIFAR-10, 100 epochs, judged by PGD-10 at eps 0.031. And the approximation's rows.

The EMR rows use weight decay 5e-4, which the paper's baselines do not have: ``st-wd0.0005`` and ``at-wd0.0005`` are the
missing baselines. Augmentation is crop and flip: the published training margins, slightly below the test margins, are
those of augmented images. The last epoch counts.
"""

from dataclasses import replace

from widemargin.attacks import PGD
from widemargin.config import (
    DataConfig,
    EMRConfig,
    EvaluationConfig,
    ObjectiveConfig,
    OptimizerConfig,
    RunConfig,
    WatchConfig,
)
from widemargin.models import CNNConfig
from widemargin.objectives import Adversarial, Standard
from widemargin.recipes.published import published
from widemargin.recipes.recipe import Recipe
from widemargin.schedules import Steps

TABLE, SUPPLEMENT = "table2_cifar_cnn", "supplement_approximation"
ATTACK = PGD(eps=0.031, step_size=0.0078, steps=10)
ST = Standard()
AT = Adversarial(attack=replace(ATTACK, random_start="uniform"))
BASELINE = "the EMR rows' own weight decay; the paper has no such row"
TEMPERATURE = "the paper does not state the temperature of this row; 1 is used"


def _run(name: str, objective: ObjectiveConfig, weight_decay: float, emr: EMRConfig | None = None) -> RunConfig:
    return RunConfig(
        name=f"cifar-cnn/{name}",
        epochs=100,
        batch_size=100,
        data=DataConfig(name="cifar10", augmentation="crop-flip"),
        model=CNNConfig(),
        objective=objective,
        optimizer=OptimizerConfig(
            lr=0.01, momentum=0.9, weight_decay=weight_decay, schedule=Steps(milestones=(75, 90), factor=0.1)
        ),
        emr=emr,
        watch=WatchConfig(attack=ATTACK, margin_samples=2000),
        evaluation=EvaluationConfig(attacks=("clean", "pgd10"), eps=0.031, step_size=0.0078),
    )


def _plain(name: str, row: str, objective: ObjectiveConfig, weight_decay: float) -> Recipe:
    config = _run(f"{name}-wd{weight_decay:g}", objective, weight_decay)
    if weight_decay == 0.0005:
        return Recipe(config=config, note=BASELINE)
    return Recipe(config=config, published=published(TABLE, row, weight_decay=weight_decay))


def recipes() -> list[Recipe]:
    """The rows in the paper's order, with the baselines it lacks."""
    exact_st = EMRConfig(kind="exact", weight=0.01, scaling="mean")
    exact_at = EMRConfig(kind="exact", weight=0.001, at="adversarial", scaling="mean")
    approximate_st = EMRConfig(kind="approximate", weight=30.0, temperature=1.0, scaling="released")
    approximate_at = EMRConfig(kind="approximate", weight=3e-4, temperature=1.0, at="adversarial", scaling="released")
    return [
        *(_plain("st", "ST", ST, decay) for decay in (0.01, 0.001, 0.0005, 0.0001)),
        Recipe(config=_run("st-emr", ST, 0.0005, exact_st), published=published(TABLE, "ST+EMR")),
        Recipe(
            config=_run("st-approximate-emr", ST, 0.0005, approximate_st),
            published=published(SUPPLEMENT, "ST+Approx-EMR", model="CNN"),
            note=TEMPERATURE,
        ),
        *(_plain("at", "AT", AT, decay) for decay in (0.01, 0.001, 0.0005, 0.0001)),
        Recipe(config=_run("at-emr", AT, 0.0005, exact_at), published=published(TABLE, "AT+EMR")),
        Recipe(
            config=_run("at-approximate-emr", AT, 0.0005, approximate_at),
            published=published(SUPPLEMENT, "AT+Approx-EMR", model="CNN"),
            note=TEMPERATURE,
        ),
    ]
