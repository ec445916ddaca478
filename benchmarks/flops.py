"""The arithmetic of a training step, counted by hand: how often each kind of pass runs over the network.

F is one forward pass's convolutions and matrix products. Every pass costs F: forward (activations or tangents, from the
images to the logits), backward (adjoints, from the logits to the images) and weights (the gradients of the weights). So

    one PGD step                      forward + backward                        2F
    training on one batch of images   forward + backward + weights              3F, less the first layer's backward
    EMR by m input gradients          (1 + m) forward + m backward + m weights  (1 + 3m)F
    IGR                               twice each                                6F

m is 1 for approximate EMR (4F), K for exact, n for stochastic with n projections. A loop by hand with double backward
does more than this for the same result; its extra work is not counted as work done.
"""

import copy
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from widemargin.attacks.pgd import PGD
from widemargin.config.run import RunConfig
from widemargin.core.modes import evaluating
from widemargin.engine.plan import forward_flops
from widemargin.errors import InputError
from widemargin.objectives.adversarial import Adversarial
from widemargin.objectives.lbgat import Lbgat
from widemargin.objectives.mail import Mail
from widemargin.objectives.mart import Mart
from widemargin.objectives.objective import AttackingObjective
from widemargin.objectives.standard import Standard
from widemargin.objectives.trades import Trades
from widemargin.regularizers.emr import ApproximateEMR, ExactEMR, StochasticEMR
from widemargin.regularizers.input_gradient import InputGradient
from widemargin.types import Objective, Regularizer


@dataclass(frozen=True)
class Passes:
    """How often each pass runs; ``stopped`` of the backward passes end before the first layer."""

    forward: int = 0
    backward: int = 0
    weights: int = 0
    stopped: int = 0

    def __add__(self, other: "Passes") -> "Passes":
        return Passes(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def __rmul__(self, times: int) -> "Passes":
        return Passes(*(times * count for count in astuple(self)))

    def kinds(self) -> dict[str, int]:
        """By kind of pass."""
        return {"forward": self.forward, "backward": self.backward, "weights": self.weights}


FORWARD = Passes(forward=1)
ATTACK_STEP = Passes(forward=1, backward=1)
TRAINING = Passes(forward=1, backward=1, weights=1, stopped=1)
"""The images of a training pass need no gradient: its backward pass stops before the first layer."""


@dataclass(frozen=True)
class Work:
    """FLOPs of one image: the forward pass, and the first layer's share of a backward pass."""

    forward: float
    first: float

    def of(self, passes: Passes) -> float:
        """FLOPs of these passes over one image."""
        return self.forward * sum(passes.kinds().values()) - self.first * passes.stopped


def network_work(model: nn.Module, image_shape: tuple[int, ...]) -> Work:
    """Counted on a copy of the model, one image."""
    network = copy.deepcopy(model)
    device = next(network.parameters()).device
    forward = forward_flops(network, image_shape, device)
    counter = FlopCounterMode(display=False)
    with counter, evaluating(network):
        network(torch.zeros(1, *image_shape, device=device)).sum().backward()
    return Work(forward=forward, first=3 * forward - counter.get_total_flops())


def step_passes(config: RunConfig, num_classes: int) -> dict[str, Passes]:
    """The passes of one step over each network."""
    passes = objective_passes(config.objective)
    for penalty in config.penalties():
        passes["model"] = passes["model"] + penalty_passes(penalty.regularizer, num_classes)
    return passes


TRAINED: dict[type, Callable[[Any], int]] = {
    Adversarial: lambda _: 1,
    Trades: lambda objective: 3 if objective.repeat_clean else 2,
    Mart: lambda _: 2,
    Mail: lambda objective: 1 if objective.over == "at" else 2,
    Lbgat: lambda _: 2,
}
"""How many sets of images the objectives that attack train the model on."""
PAST_BURN_IN = 10**9


def objective_passes(objective: Objective) -> dict[str, Passes]:
    """The attack and the training passes; a KL attack also predicts the clean images once."""
    kind: type = type(objective)
    if kind is Standard:
        return {"model": TRAINING}
    if kind not in TRAINED or not isinstance(objective, AttackingObjective):
        raise InputError(f"the passes of {kind.__name__} are not known; bench counts the package's objectives")
    attack, inner = objective.inner_problem(PAST_BURN_IN)
    passes = (attack.steps if isinstance(attack, PGD) else 1) * ATTACK_STEP + (inner == "kl") * FORWARD
    passes += TRAINED[kind](objective) * TRAINING
    return {"model": passes} | ({"teacher": TRAINING} if kind is Lbgat else {})


def penalty_passes(regularizer: Regularizer, num_classes: int) -> Passes:
    """The sweeps of a penalty and of its gradient, for networks that are piecewise linear."""
    if isinstance(regularizer, InputGradient):
        return Passes(forward=2, backward=2, weights=2)
    again = 1
    if isinstance(regularizer, ApproximateEMR):
        m = 1
    elif isinstance(regularizer, StochasticEMR):
        m = regularizer.projections
    elif isinstance(regularizer, ExactEMR):
        m, again = num_classes, 1 if num_classes <= regularizer.classes_at_once else 2
    else:
        raise InputError(f"the passes of {type(regularizer).__name__} are not known; bench counts EMR and IGR")
    return Passes(forward=1 + m, backward=again * m, weights=m)
