"""Judge a model as a run's plan says: accuracy under each attack."""

from dataclasses import replace

from torch import nn

from widemargin.attacks import PGD
from widemargin.config import EvaluationConfig
from widemargin.data import ImageSet
from widemargin.evaluation.accuracy import percent, verdicts


def accuracies(
    model: nn.Module,
    data: ImageSet,
    plan: EvaluationConfig,
    *,
    batch_size: int = 500,
    seed: int = 0,
    max_steps: int | None = None,
) -> dict[str, float]:
    """Percent correct for each attack of the plan; ``max_steps`` cuts PGD short where only the code is on trial."""
    results = {}
    for name in plan.attacks:
        attack = plan.attack(name)
        if isinstance(attack, PGD) and max_steps is not None:
            attack = replace(attack, steps=min(attack.steps, max_steps))
        results[name] = percent(verdicts(model, data, attack, batch_size=batch_size, seed=seed))
    return results
