"""The demo: the paper's MLP on the embedded digits, plain and with EMR, in a minute or two on a laptop's CPU."""

from widemargin.attacks.pgd import PGD
from widemargin.config.run import DataConfig, EMRConfig, EvaluationConfig, OptimizerConfig, RunConfig, WatchConfig
from widemargin.models.mlp import MLPConfig
from widemargin.recipes.recipe import Recipe
from widemargin.schedules import OneCycle

EPOCHS = 8
ATTACK = PGD(eps=0.1, step_size=0.01, steps=20)


def _run(name: str, emr: EMRConfig | None) -> RunConfig:
    return RunConfig(
        name=f"demo/{name}",
        epochs=EPOCHS,
        batch_size=100,
        data=DataConfig(name="mnist-embedded"),
        model=MLPConfig(),
        optimizer=OptimizerConfig(lr=0.07, weight_decay=1e-4, schedule=OneCycle(epochs=EPOCHS, peak=2)),
        emr=emr,
        watch=WatchConfig(margins=()),
        evaluation=EvaluationConfig(attacks=("clean", "pgd20"), eps=0.1, step_size=0.01),
    )


def recipes() -> list[Recipe]:
    """Plain, and with the stochastic form of EMR: exact EMR's effect at the cost of one input gradient."""
    return [
        Recipe(config=_run("plain", None)),
        Recipe(config=_run("emr", EMRConfig(kind="stochastic", weight=0.03))),
    ]
