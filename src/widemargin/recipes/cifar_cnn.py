"""Table 2: the small CNN on CIFAR-10, 100 epochs, judged by PGD-10 at eps 0.031. And the approximation's rows.

The EMR rows use weight decay 5e-4, which the paper's baselines do not have: ``st-wd0.0005`` and ``at-wd0.0005`` are the
missing baselines. Augmentation is crop and flip: the published training margins, slightly below the test margins, are
those of augmented images. The last epoch counts. The first weights are not stated: He's reproduce the rows of standard
training that we compared, torch's do not. L-Softmax has m = 1, as published: plain softmax without a bias.
"""

from dataclasses import replace

from widemargin.attacks.pgd import PGD
from widemargin.config.run import DataConfig, EMRConfig, EvaluationConfig, OptimizerConfig, RunConfig, WatchConfig
from widemargin.heads.large_margin import LargeMargin
from widemargin.heads.linear import Linear
from widemargin.models.cnn import CNNConfig
from widemargin.objectives.adversarial import Adversarial
from widemargin.objectives.standard import Standard
from widemargin.recipes.recipe import Recipe, published
from widemargin.schedules import Steps
from widemargin.types import MakeHead, Objective, Point

TABLE, SUPPLEMENT = "table2_cifar_cnn", "supplement_approximation"
ATTACK = PGD(eps=0.031, step_size=0.0078, steps=10)
ST = Standard()
AT = Adversarial(attack=replace(ATTACK, random_start="uniform"))
L_SOFTMAX = LargeMargin(margin=1)
EMR_DECAY = 0.0005
DECAYS = (0.01, 0.001, 0.0001)
BASELINE = "the EMR rows' own weight decay; the paper has no such row"
TEMPERATURE = "the paper does not state the temperature of this row; 1 is used"
SOFTMAX = "m = 1 is plain softmax without a bias"


def _run(
    name: str,
    objective: Objective,
    weight_decay: float,
    *,
    emr: EMRConfig | None = None,
    head: MakeHead = Linear(),  # noqa: B008 - immutable
) -> RunConfig:
    return RunConfig(
        name=f"cifar-cnn/{name}",
        epochs=100,
        batch_size=100,
        data=DataConfig(name="cifar10", augmentation="crop-flip"),
        model=CNNConfig(init="he"),
        head=head,
        objective=objective,
        optimizer=OptimizerConfig(
            lr=0.01, momentum=0.9, weight_decay=weight_decay, schedule=Steps(milestones=(75, 90), factor=0.1)
        ),
        emr=emr,
        watch=WatchConfig(every=5, attack=ATTACK, margin_samples=2000),
        evaluation=EvaluationConfig(attacks=("clean", "pgd10"), eps=0.031, step_size=0.0078),
    )


def _baselines(name: str, row: str, objective: Objective) -> list[Recipe]:
    """A baseline at each weight decay, plain and with L-Softmax, and the one the paper lacks."""
    plain = [
        Recipe(
            config=_run(f"{name}-wd{decay:g}", objective, decay), published=published(TABLE, row, weight_decay=decay)
        )
        for decay in DECAYS
    ]
    large = [
        Recipe(
            config=_run(f"{name}-lsoftmax-wd{decay:g}", objective, decay, head=L_SOFTMAX),
            published=published(TABLE, f"{row}+LSoftmax", weight_decay=decay),
            note=SOFTMAX,
        )
        for decay in DECAYS
    ]
    same = Recipe(config=_run(f"{name}-wd{EMR_DECAY:g}", objective, EMR_DECAY), note=BASELINE)
    return [*plain, same, *large]


def _emr_rows(name: str, row: str, objective: Objective, exact: float, approximate: float, at: Point) -> list[Recipe]:
    exact_emr = EMRConfig(kind="exact", weight=exact, at=at, scaling="mean")
    approximate_emr = EMRConfig(kind="approximate", weight=approximate, temperature=1.0, at=at, scaling="released")
    return [
        Recipe(
            config=_run(f"{name}-emr", objective, EMR_DECAY, emr=exact_emr), published=published(TABLE, f"{row}+EMR")
        ),
        Recipe(
            config=_run(f"{name}-approximate-emr", objective, EMR_DECAY, emr=approximate_emr),
            published=published(SUPPLEMENT, f"{row}+Approx-EMR", model="CNN"),
            note=TEMPERATURE,
        ),
    ]


def recipes() -> list[Recipe]:
    """The rows in the paper's order, with the baselines it lacks."""
    return [
        Recipe(config=_run("st-wd0", ST, 0.0), note="without weight decay, for the margins of Fig. 1c"),
        *_baselines("st", "ST", ST),
        *_emr_rows("st", "ST", ST, 0.01, 30.0, "clean"),
        *_baselines("at", "AT", AT),
        *_emr_rows("at", "AT", AT, 0.001, 3e-4, "adversarial"),
    ]
