"""Table 2: the small CNN on CIFAR-10, 100 epochs, judged by PGD-10 at eps 0.031. And the approximation's rows.

The EMR rows use weight decay 5e-4, which the paper's baselines do not have: ``st-wd0.0005`` and ``at-wd0.0005`` are the
missing baselines. Augmentation is crop and flip: the published training margins, slightly below the test margins, are
those of augmented images. The last epoch counts. The first weights are not stated: He's reproduce the rows of standard
training that we compared, torch's do not. L-Softmax has m = 1, as published: plain softmax without a bias.
"""

from dataclasses import replace

from widemargin.attacks.pgd import PGD
from widemargin.config.run import DataConfig, EvaluationConfig, OptimizerConfig, RunConfig, WatchConfig
from widemargin.heads.large_margin import LargeMargin
from widemargin.models.cnn import CNNConfig
from widemargin.objectives.adversarial import Adversarial
from widemargin.objectives.standard import Standard
from widemargin.recipes.recipe import Recipe
from widemargin.recipes.small_networks import SmallNetwork
from widemargin.schedules import Steps
from widemargin.types import Objective

ATTACK = PGD(eps=0.031, step_size=0.0078, steps=10)
ST = Standard()
AT = Adversarial(attack=replace(ATTACK, random_start="uniform"))
L_SOFTMAX = LargeMargin(margin=1)
BASELINE = "the EMR rows' own weight decay; the paper has no such row"
SOFTMAX = "m = 1 is plain softmax without a bias"
CNN = SmallNetwork(
    base=RunConfig(
        name="cifar-cnn",
        epochs=100,
        batch_size=100,
        data=DataConfig(name="cifar10", augmentation="crop-flip"),
        model=CNNConfig(init="he"),
        optimizer=OptimizerConfig(lr=0.01, momentum=0.9, schedule=Steps(milestones=(75, 90), factor=0.1)),
        watch=WatchConfig(every=5, attack=ATTACK, margin_samples=2000),
        evaluation=EvaluationConfig(attacks=("clean", "pgd10"), eps=0.031, step_size=0.0078),
    ),
    table="table2_cifar_cnn",
    model="CNN",
    emr_decay=0.0005,
)


def _baselines(name: str, row: str, objective: Objective) -> list[Recipe]:
    """A baseline at each weight decay, plain and with L-Softmax, and the one the paper lacks."""
    return [
        *CNN.at_decays(name, row, objective),
        Recipe(config=CNN.run(f"{name}-wd{CNN.emr_decay:g}", objective, CNN.emr_decay), note=BASELINE),
        *CNN.at_decays(f"{name}-lsoftmax", f"{row}+LSoftmax", objective, head=L_SOFTMAX, note=SOFTMAX),
    ]


def recipes() -> list[Recipe]:
    """The rows in the paper's order, with the baselines it lacks."""
    return [
        Recipe(config=CNN.run("st-wd0", ST, 0.0), note="without weight decay, for the margins of Fig. 1c"),
        *_baselines("st", "ST", ST),
        *CNN.with_emr("st", "ST", ST, exact=0.01, approximate=30.0, at="clean"),
        *_baselines("at", "AT", AT),
        *CNN.with_emr("at", "AT", AT, exact=0.001, approximate=3e-4, at="adversarial"),
    ]
