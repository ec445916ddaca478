"""Cases for one process and for two: a few steps of every method, in float64, with uneven and tiny last batches.

15 images in batches of 7: two processes have 3 and 4 of a batch, and all have the one image of the last.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from widemargin import PGD, InputError
from widemargin.config import (
    AveragingConfig,
    AWPConfig,
    DataConfig,
    EMRConfig,
    GradAlignConfig,
    IGRConfig,
    OptimizerConfig,
    RunConfig,
)
from widemargin.data import Batch, Batches, CropFlip, ImageSet
from widemargin.distributed.sync_batch_norm import share_batch_norms
from widemargin.heads import GeometricAnnealing, Hypersphere, LargeMargin, Linear
from widemargin.models import LBGATTeacherConfig, MLPConfig, WideResNetConfig
from widemargin.objectives import Adversarial, Free, Ikl, Lbgat, Mail, Mart, Standard, Trades
from widemargin.training import StepContext
from widemargin.training.setup import make_batches, make_state
from widemargin.training.state import TrainState, update_average
from widemargin.training.step import EagerSteps
from widemargin.types import Objective

SAMPLES, BATCH, EPOCHS = 15, 7, 2
GAUSSIAN = PGD(eps=0.1, step_size=0.04, steps=2, random_start="gaussian")
UNIFORM = replace(GAUSSIAN, random_start="uniform")
MAIL: dict[str, Any] = {"attack": GAUSSIAN, "slope": 5.0, "bias": 0.05}

OBJECTIVES: dict[str, Objective] = {
    "st": Standard(),
    "at": Adversarial(attack=UNIFORM),
    "at-l2": Adversarial(attack=replace(UNIFORM, norm="l2", eps=0.5, step_size=0.2)),
    "at-train-mode": Adversarial(attack=replace(UNIFORM, mode="train")),
    "trades": Trades(attack=GAUSSIAN),
    "mart": Mart(attack=GAUSSIAN),
    "mail-at": Mail(over="at", weights="mean1", **MAIL),
    "mail-trades": Mail(over="trades", weights="mean1", burn_in=1, **MAIL),
    "mail-mart": Mail(over="mart", weights="mean1", **MAIL),
    "mail-times3": Mail(over="at", weights="times3", **MAIL),
    "ikl": Ikl(attack=GAUSSIAN, gamma=0.5, ramp=2),
    "free": Free(eps=0.1, replays=2),
    "lbgat": Lbgat(attack=GAUSSIAN, beta=1.0),
}
PENALTIES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "none": lambda _: {},
    "exact": lambda at: {"emr": EMRConfig(kind="exact", weight=0.01, at=at)},
    "approximate": lambda at: {"emr": EMRConfig(kind="approximate", weight=0.1, scaling="released", at=at)},
    "stochastic": lambda at: {"emr": EMRConfig(kind="stochastic", weight=0.01, projections=2, every=2, at=at)},
    "igr": lambda at: {"igr": IGRConfig(weight=0.1, at=at)},
    "aligned": lambda at: {"grad_align": GradAlignConfig(weight=0.2, eps=0.1, at=at)},
    "linf": lambda at: {
        "emr": EMRConfig(kind="stochastic", weight=1e-4, projections=2, norm="linf", at=at),
        "igr": IGRConfig(weight=6 / 255, norm="linf", squared=False, at=at),
    },
}
HEADS: dict[str, Any] = {
    "linear": Linear(),
    "he": Hypersphere(scale=10.0, margin=0.2),
    "l-softmax": LargeMargin(margin=2, annealing=GeometricAnnealing(start=1.0)),
}
MODELS: dict[str, Any] = {
    "mlp": MLPConfig(hidden=(16, 12)),
    "bn": WideResNetConfig(depth=10, widen=1, variant="trades"),
}


@dataclass(frozen=True)
class Case:
    """One way to train."""

    objective: str = "st"
    penalty: str = "none"
    head: str = "linear"
    model: str = "mlp"
    averaged: bool = False
    dtype: torch.dtype = torch.float64
    synchronized: bool = True
    awp: bool = False

    def __str__(self) -> str:
        marks = ["averaged"] * self.averaged + ["unsynchronized"] * (not self.synchronized)
        marks += ["awp"] * self.awp + ["float32"] * (self.dtype == torch.float32)
        return "-".join([self.objective, self.penalty, self.head, self.model, *marks])

    def config(self) -> RunConfig:
        """The run; InputError where the combination means nothing."""
        objective = OBJECTIVES[self.objective]
        head = HEADS[self.head]
        if self.objective == "lbgat" and self.head == "he":
            head = replace(head, margin=0.0)
        at = "adversarial" if objective.attacks else "clean"
        return RunConfig(
            name="shared",
            seed=3,
            epochs=EPOCHS,
            batch_size=BATCH,
            data=DataConfig(name="tiny", augmentation="crop-flip"),
            model=MODELS[self.model],
            head=head,
            objective=objective,
            teacher=LBGATTeacherConfig(width=2) if self.objective == "lbgat" else None,
            optimizer=OptimizerConfig(lr=0.05, momentum=0.9, weight_decay=1e-3),
            awp=AWPConfig(gamma=0.02, start=1) if self.awp else None,
            averaging=AveragingConfig(decay=0.9) if self.averaged else None,
            **PENALTIES[self.penalty](at),
        )


def whole_grid() -> list[Case]:
    """Every objective x penalty x head x model that a configuration accepts, and averaging, once each."""
    cases = [Case(*names) for names in product(OBJECTIVES, PENALTIES, HEADS, MODELS)]
    cases = [case for case in cases if _means_something(case)]
    return [
        *cases,
        *(Case(objective, "exact", "he", "bn", averaged=True) for objective in ("at", "trades")),
        *(Case(objective, "approximate", "linear", model, awp=True) for objective in OBJECTIVES for model in MODELS),
    ]


def _means_something(case: Case) -> bool:
    try:
        case.config()
    except InputError:
        return False
    return True


FEW = [
    Case("st", "exact", "linear", "mlp"),
    Case("at", "stochastic", "linear", "bn", averaged=True),
    Case("at-l2", "none", "linear", "mlp"),
    Case("at-train-mode", "none", "linear", "bn"),
    Case("trades", "approximate", "he", "bn"),
    Case("mart", "igr", "l-softmax", "mlp"),
    Case("trades", "approximate", "he", "bn", awp=True),
    Case("lbgat", "none", "linear", "bn", awp=True),
    Case("mail-trades", "exact", "linear", "bn"),
    Case("mail-mart", "none", "linear", "mlp"),
    Case("lbgat", "igr", "linear", "bn"),
    Case("ikl", "exact", "linear", "bn", awp=True),
    Case("free", "none", "linear", "bn", awp=True),
    Case("free", "approximate", "linear", "mlp"),
    Case("at", "linf", "he", "bn"),
    Case("at", "aligned", "linear", "bn"),
    Case("st", "exact", "linear", "bn", dtype=torch.float32),  # no attack: where it rounds, a sign may turn
    Case("trades", "exact", "linear", "bn", synchronized=False),
]


def tiny_images() -> ImageSet:
    """Eight by eight, three classes."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(SAMPLES, 3, 8, 8, generator=generator)
    return ImageSet(images=images, labels=torch.arange(SAMPLES) % 3, num_classes=3, name="tiny")


def trained(case: Case, device: str = "cpu", *, rank: int = 0, processes: int = 1) -> dict[str, Tensor]:
    """Every tensor of the state after the case's epochs, and the sums of the last epoch."""
    config, data = case.config(), tiny_images().to(device)
    state = make_state(config, data)
    networks = [*state.nets.all().values(), *([] if state.average is None else [state.average])]
    for network in networks:
        network.to(case.dtype)
    if processes > 1 and case.synchronized:
        for network in state.nets.all().values():
            share_batch_norms(network)
    batches = Batches(
        data=data,
        batch_size=BATCH,
        seed=3,
        augmentation=CropFlip(padding=1),
        replays=make_batches(config, data).replays,
        rank=rank,
        processes=processes,
    )
    _train(state, config, batches, case.dtype)
    named = {f"{n}/{key}": value for n, net in enumerate(networks) for key, value in net.state_dict().items()}
    named |= {f"sums/{name}": value for name, value in state.sums.items()}
    return {name: value.cpu() for name, value in named.items()}


def _train(state: TrainState, config: RunConfig, batches: Batches, dtype: torch.dtype) -> None:
    steps = EagerSteps(state, state.nets, config)
    for epoch in range(EPOCHS):
        if epoch:
            state.end_epoch()
        for batch in batches.epoch(epoch):
            context = StepContext(seed=3, epoch=epoch, step=batch.step, steps_per_epoch=batches.steps_per_epoch)
            steps(Batch(batch.step, batch.indices, batch.images.to(dtype), batch.labels, batch.share), context)
            if state.average is not None:
                update_average(state.average, state.nets.model, decay=0.9, updates=context.total_steps)


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest |a - b| over a tensor, in units of its largest value; digests of metrics have no such thing."""
    assert one.keys() == other.keys()
    return max(_relative(one[name].double(), other[name].double()) for name in one if name != "train/metrics")


def _relative(a: Tensor, b: Tensor) -> float:
    scale = float(a.abs().max())
    gap = float((a - b).abs().max())
    return gap if scale == 0 else gap / scale
