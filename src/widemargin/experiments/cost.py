"""Which job takes longest, as far as its configuration tells: the network, then passes through it.

A step of training is one forward and backward pass, one more for each step of its attack, and what the penalty takes:
exact EMR a gradient for each class, the others one or two.
"""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from widemargin.attacks import PGD
from widemargin.config import RunConfig
from widemargin.experiments.task import Task
from widemargin.models import CNNConfig, MLPConfig, PreActResNet18Config, ResNet18Config, WideResNetConfig

NETWORKS = (MLPConfig, CNNConfig, ResNet18Config, PreActResNet18Config, WideResNetConfig)
PENALTIES = {"exact": 20, "approximate": 4, "stochastic": 4}
IGR = 2


def longest_first(tasks: list[Task]) -> list[Task]:
    """The tasks, the longest first; equal ones as they were."""
    return sorted(tasks, key=lambda task: cost(task.job.config), reverse=True)


def cost(config: RunConfig) -> tuple[int, float]:
    """To be compared, with the costs of other runs on the same data; it is no time."""
    size = next((number for number, kind in enumerate(NETWORKS) if isinstance(config.model, kind)), len(NETWORKS))
    attack = max((part.steps for part in _parts(config.objective) if isinstance(part, PGD)), default=0)
    penalty = PENALTIES.get(config.emr.kind, 0) if config.emr else 0
    return size, config.epochs * (1 + attack + penalty + IGR * (config.igr is not None))


def _parts(value: Any) -> Iterator[Any]:
    yield value
    if is_dataclass(value):
        for field in fields(value):
            yield from _parts(getattr(value, field.name))
