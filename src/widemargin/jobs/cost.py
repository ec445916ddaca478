"""What training costs, counted by hand: how often each kind of pass runs over the network, in a step and in a run.

F is one forward pass's convolutions and matrix products. Every pass costs F: forward (activations or tangents, from the
images to the logits), backward (adjoints, from the logits to the images) and weights (the gradients of the weights). So

    one PGD step                      forward + backward                        2F
    training on one batch of images   forward + backward + weights              3F, less the first layer's backward
    EMR by m input gradients          (1 + m) forward + m backward + m weights  (1 + 3m)F
    IGR                               twice each                                6F
    GradAlign                         IGR, and a gradient to compare with       8F
    AWP                               training once more                        3F for each set of images

m is 1 for approximate EMR (4F), K for exact, n for stochastic with n projections. A curved network (SiLU, GELU) takes
one more backward pass for EMR, with weight gradients (+2F). A loop by hand with double backward does more than this for
the same result; its extra work is not counted as work done. ``speed`` makes hours of it.
"""

import copy
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from widemargin.config.run import RunConfig
from widemargin.core.modes import evaluating
from widemargin.engine.plan import forward_flops
from widemargin.errors import InputError
from widemargin.objectives.adversarial import Adversarial
from widemargin.objectives.free import Free
from widemargin.objectives.ikl import Ikl
from widemargin.objectives.lbgat import Lbgat
from widemargin.objectives.mail import Mail
from widemargin.objectives.mart import Mart
from widemargin.objectives.objective import AttackingObjective
from widemargin.objectives.score import Score
from widemargin.objectives.standard import Standard
from widemargin.objectives.trades import Trades
from widemargin.regularizers.emr import ApproximateEMR, ExactEMR, StochasticEMR
from widemargin.regularizers.grad_align import GradAlign
from widemargin.regularizers.input_gradient import InputGradient
from widemargin.regularizers.penalty import Penalty
from widemargin.types import Objective, Regularizer, Replays


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
    from torch.utils.flop_counter import FlopCounterMode  # a second to import

    network = copy.deepcopy(model)
    device = next(network.parameters()).device
    forward = forward_flops(network, image_shape, device)
    counter = FlopCounterMode(display=False)
    with counter, evaluating(network):
        network(torch.zeros(1, *image_shape, device=device)).sum().backward()
    return Work(forward=forward, first=3 * forward - counter.get_total_flops())


PAST_BURN_IN = 10**9
"""The epoch of a step that is counted for itself: every burn-in and warm-up is over."""


def step_passes(config: RunConfig, num_classes: int, *, epoch: int = PAST_BURN_IN) -> dict[str, Passes]:
    """The passes of one step over each network."""
    passes = objective_passes(config.objective, epoch=epoch)
    if config.awp is not None and epoch >= config.awp.start:
        passes["model"] = passes["model"] + trained_sets(config.objective, epoch) * TRAINING
    for _, penalty in _penalties(config, num_classes):
        passes["model"] = passes["model"] + penalty
    return passes


def _penalties(config: RunConfig, num_classes: int) -> list[tuple[Penalty, Passes]]:
    activation = getattr(config.model, "activation", "relu")
    return [(part, penalty_passes(part.regularizer, num_classes, activation=activation)) for part in config.penalties()]


def run_passes(config: RunConfig, num_classes: int = 10) -> dict[str, float]:
    """Of the whole run, for each training image and network: what a step of each epoch does, over its epochs.

    A replayed batch counts every time. What is only watched, and the judgment of the run, are not in it.
    """
    changes = {0, getattr(config.objective, "burn_in", 0), config.awp.start if config.awp else 0, config.epochs}
    totals: dict[str, float] = {}
    for first, end in pairwise(sorted(changes)):  # epochs that do the same
        for name, passes in step_passes(config, num_classes, epoch=first).items():
            totals[name] = totals.get(name, 0) + (end - first) * sum(passes.kinds().values())
    for penalty, passes in _penalties(config, num_classes):  # which not every step takes
        totals["model"] -= config.epochs * sum(passes.kinds().values()) * (1 - 1 / penalty.every)
    replays = config.objective.replays if isinstance(config.objective, Replays) else 1
    return {name: replays * total for name, total in totals.items()}


TRAINED: dict[type, Callable[[Any, int], int]] = {
    Standard: lambda *_: 1,
    Free: lambda *_: 1,
    Adversarial: lambda *_: 1,
    Trades: lambda objective, _: 3 if objective.repeat_clean else 2,
    Mart: lambda *_: 2,
    Mail: lambda objective, epoch: 1 if "at" in (objective.over, _burns_in(objective, epoch)) else 2,
    Lbgat: lambda *_: 2,
    Score: lambda *_: 2,
    Ikl: lambda *_: 2,
}
"""How many sets of images the objectives train the model on."""


def _burns_in(objective: Mail, epoch: int) -> str | None:
    """With which loss, if it does."""
    return objective.burn_in_with if epoch < objective.burn_in else None


def trained_sets(objective: Objective, epoch: int = PAST_BURN_IN) -> int:
    """So many sets of images the model is trained on in a step: the clean ones, the adversarial ones, or both."""
    kind: type = type(objective)
    if kind not in TRAINED:
        raise InputError(f"the passes of {kind.__name__} are not known; those of the package's objectives are")
    return TRAINED[kind](objective, epoch)


def objective_passes(objective: Objective, *, epoch: int = PAST_BURN_IN) -> dict[str, Passes]:
    """The attack and the training passes; an attack on a distance also predicts the clean images once."""
    passes = trained_sets(objective, epoch) * TRAINING
    if isinstance(objective, Free):  # its one backward pass goes on to the images
        passes = replace(passes, stopped=0)
    if isinstance(objective, AttackingObjective):
        attack, inner = objective.inner_problem(epoch)
        passes += getattr(attack, "steps", 1) * ATTACK_STEP + (inner != "ce") * FORWARD
    return {"model": passes} | ({"teacher": TRAINING} if isinstance(objective, Lbgat) else {})


CURVED = ("silu", "gelu")


def penalty_passes(regularizer: Regularizer, num_classes: int, *, activation: str = "relu") -> Passes:
    """The sweeps of a penalty and of its gradient."""
    if isinstance(regularizer, InputGradient):
        return Passes(forward=2, backward=2, weights=2)
    if isinstance(regularizer, GradAlign):
        return Passes(forward=3, backward=3, weights=2)
    again = 1
    if isinstance(regularizer, ApproximateEMR):
        m = 1
    elif isinstance(regularizer, StochasticEMR):
        m = regularizer.projections
    elif isinstance(regularizer, ExactEMR):
        m, again = num_classes, 1 if num_classes <= regularizer.classes_at_once else 2
    else:
        raise InputError(f"the passes of {type(regularizer).__name__} are not known; those of our penalties are")
    curved = activation in CURVED
    return Passes(forward=1 + m, backward=again * m + curved, weights=m + curved)
