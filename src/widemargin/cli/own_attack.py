"""The attack that a run has of its own, for measurements at adversarial images."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from widemargin.errors import InputError
from widemargin.evaluation import Target
from widemargin.types import Nets

Perturb = Callable[[Tensor, Tensor, torch.Generator], Tensor | None]


@dataclass(frozen=True)
class OwnAttack:
    """What makes the images, and in words what that is."""

    perturb: Perturb
    described: str


def own_attack(target: Target) -> OwnAttack:
    """Its objective's, else the one it was watched with, else the strongest it is judged by."""
    config = target.description.run_config()
    if config.objective.attacks:
        nets, epoch = Nets(model=target.model), target.description.epoch - 1
        return OwnAttack(
            lambda x, y, generator: config.objective.perturb(nets, x, y, epoch=epoch, generator=generator),
            f"that of training, {config.objective!r}",
        )
    judged = None if config.evaluation is None else config.evaluation.strongest()
    attack, whose = (config.watch.attack, "watch") if config.watch.attack is not None else (judged, "evaluation")
    if attack is None:
        raise InputError(
            "--at adversarial: this run has no attack of its own (objective, watch or evaluation); use clean"
        )
    return OwnAttack(
        lambda x, y, generator: attack(target.model, x, y, generator=generator), f"that of its {whose}, {attack!r}"
    )
