"""Every objective x regularizer x head, with and without AWP: one tiny step trains, or is refused with a reason.

The networks are real ones with batch norm. For each step the forwards that may move the statistics are known from the
objective alone; replaying just those on a copy must give the same statistics, whatever head and penalty there are.
"""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from widemargin import PGD, InputError
from widemargin.attacks.pgd import n_fgsm
from widemargin.config import AWPConfig, DataConfig, EMRConfig, GradAlignConfig, IGRConfig, OptimizerConfig, RunConfig
from widemargin.data import Batch, ImageSet
from widemargin.heads import GeometricAnnealing, Hypersphere, LargeMargin, Linear
from widemargin.models import LBGATTeacherConfig, WideResNetConfig
from widemargin.objectives import OBJECTIVES, Adversarial, Free, Ikl, Lbgat, Mail, Mart, Score, Standard, Trades
from widemargin.training import StepContext, train_step
from widemargin.training.awp import perturbed_weights
from widemargin.training.setup import make_state
from widemargin.training.state import TrainState
from widemargin.types import Nets, Objective

ATTACK = PGD(eps=0.1, step_size=0.05, steps=2, random_start="gaussian")
MAIL: dict[str, Any] = {"attack": ATTACK, "slope": 5.0, "bias": 0.05}
AWP = AWPConfig(gamma=0.02)
CONTEXT = StepContext(seed=0, epoch=0, step=0, steps_per_epoch=1)

OBJECTIVE_CASES: dict[str, tuple[Objective, str, str]] = {
    # objective, the train-mode forwards of the model in order (x clean, a adversarial), those of the teacher
    "standard": (Standard(), "x", ""),
    "adversarial": (Adversarial(attack=ATTACK), "a", ""),
    "trades-kl": (Trades(attack=ATTACK), "xa", ""),
    "trades-ce": (Trades(attack=ATTACK, inner="ce", repeat_clean=True), "xax", ""),
    "mart": (Mart(attack=ATTACK), "xa", ""),
    "mail-at": (Mail(over="at", **MAIL), "a", ""),
    "mail-trades": (Mail(over="trades", **MAIL), "xa", ""),
    "mail-mart": (Mail(over="mart", **MAIL), "xa", ""),
    "lbgat": (Lbgat(attack=ATTACK), "ax", "x"),
    "score": (Score(attack=ATTACK), "xa", ""),
    "trades-batch": (Trades(attack=replace(ATTACK, mode="batch")), "xa", ""),
    "ikl": (Ikl(attack=ATTACK, gamma=0.5, ramp=2), "ax", ""),
    "free": (Free(eps=0.1), "a", ""),
    "n-fgsm": (Adversarial(attack=n_fgsm(0.1)), "a", ""),
}
REGULARIZER_CASES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "exact": lambda at: {"emr": EMRConfig(kind="exact", weight=0.01, at=at)},
    "approximate": lambda at: {"emr": EMRConfig(kind="approximate", weight=0.1, temperature=1.0, at=at)},
    "stochastic": lambda at: {"emr": EMRConfig(kind="stochastic", weight=0.01, projections=2, at=at)},
    "igr": lambda at: {"igr": IGRConfig(weight=0.1, at=at)},
    "exact-linf": lambda at: {"emr": EMRConfig(kind="exact", weight=1e-4, norm="linf", at=at)},
    "grad-align": lambda at: {"grad_align": GradAlignConfig(weight=0.2, eps=0.1, at=at)},
    "igr-l1": lambda at: {"igr": IGRConfig(weight=6 / 255, norm="linf", squared=False, at=at)},
}
PENALTY_CASES: dict[str, dict[str, Any]] = {"none": {}} | {
    f"{name}-{at}": make(at) for name, make in REGULARIZER_CASES.items() for at in ("clean", "adversarial")
}
HEAD_CASES: dict[str, Any] = {
    "linear": Linear(),
    "hypersphere": Hypersphere(scale=10.0, margin=0.2),
    "hypersphere-no-margin": Hypersphere(scale=10.0, margin=0.0),
    "large-margin": LargeMargin(margin=2, annealing=GeometricAnnealing(start=1.0)),
}


def refusal(objective: str, penalty: str, head: str) -> str | None:
    """What the message says, where the combination means nothing."""
    if objective == "standard" and penalty.endswith("adversarial"):
        name = {"igr": "igr", "grad": "grad_align"}.get(penalty.partition("-")[0], "emr")
        return rf'{name}.at = "adversarial" has no effect in standard training.*; use {name}.at = "clean"'
    if objective == "lbgat" and head in ("hypersphere", "large-margin"):
        return r"head.margin has no effect with LBGAT, whose student has no label loss; use a linear head"
    return None


HEADS = [name for name in HEAD_CASES if name != "hypersphere-no-margin"]
GRID = [
    *product(OBJECTIVE_CASES, PENALTY_CASES, HEADS),
    *product(["lbgat"], PENALTY_CASES, ["hypersphere-no-margin"]),  # what the refusal recommends
]
TRAINED = [case for case in GRID if refusal(*case) is None]
REFUSED = [case for case in GRID if refusal(*case) is not None]


def test_the_grid_is_whole() -> None:
    assert {type(objective) for objective, _, _ in OBJECTIVE_CASES.values()} == set(OBJECTIVES.values())
    objectives, penalties = len(OBJECTIVE_CASES), len(PENALTY_CASES)
    refused = len(REGULARIZER_CASES) * 3 + penalties * 2
    assert (len(GRID), len(REFUSED)) == (objectives * penalties * 3 + penalties, refused)
    assert len(TRAINED) == len(GRID) - refused


def run_of(objective: str, penalty: str, head: str) -> RunConfig:
    teacher = LBGATTeacherConfig(width=2) if objective == "lbgat" else None
    return RunConfig(
        name="tiny",
        epochs=1,
        batch_size=4,
        data=DataConfig(name="tiny"),
        model=WideResNetConfig(depth=10, widen=1, variant="trades"),
        head=HEAD_CASES[head],
        objective=OBJECTIVE_CASES[objective][0],
        teacher=teacher,
        optimizer=OptimizerConfig(lr=0.1),
        **PENALTY_CASES[penalty],
    )


@cache
def tiny_set() -> ImageSet:
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    return ImageSet(images=images, labels=torch.tensor([0, 1, 2, 1]), num_classes=3, name="tiny")


def batch() -> Batch:
    data = tiny_set()
    return Batch(step=0, indices=torch.arange(4), images=data.floats(), labels=data.labels)


@dataclass(frozen=True)
class Step:
    config: RunConfig
    before: dict[str, Tensor]
    state: TrainState
    values: dict[str, Tensor]


def parameters(nets: Nets) -> dict[str, nn.Parameter]:
    return {f"{name}/{key}": value for name, net in nets.all().items() for key, value in net.named_parameters()}


def one_step(objective: str, penalty: str, head: str, awp: AWPConfig | None = None) -> Step:
    config = replace(run_of(objective, penalty, head), awp=awp)
    state = make_state(config, tiny_set())
    before = {name: parameter.detach().clone() for name, parameter in parameters(state.nets).items()}
    values = train_step(state, config.objective, config.penalties(), batch(), CONTEXT, awp=config.awp)
    return Step(config, before, state, {name: value.detach() for name, value in values.items()})


@cache
def gradients_without_penalty(objective: str, head: str, awp: AWPConfig | None) -> dict[str, Tensor]:
    nets = one_step(objective, "none", head, awp).state.nets
    return {name: p.grad.clone() for name, p in nets.model.named_parameters() if p.grad is not None}


def check_training(step: Step) -> None:
    assert all(value.shape == (4,) for value in step.values.values())
    assert step.values["total"].isfinite().all()
    for name, parameter in parameters(step.state.nets).items():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name
        assert parameter.isfinite().all(), name
        assert not torch.equal(parameter, step.before[name]), name


def check_penalty(step: Step, objective: str, penalty: str, head: str) -> None:
    if penalty == "none":
        assert torch.equal(step.values["total"], step.values["loss"])
        return
    (of_run,) = step.config.penalties()
    amount = step.values[of_run.name]
    assert (amount > 0).all()
    torch.testing.assert_close(step.values["total"], step.values["loss"] + of_run.weight * amount)
    without = gradients_without_penalty(objective, head, step.config.awp)
    gradients = {name: p.grad for name, p in step.state.nets.model.named_parameters()}
    same = [name for name, gradient in gradients.items() if torch.equal(gradient, without[name])]
    # It is part of what was differentiated. Biases move no slope of a ReLU network: those may stay as they are.
    assert [name for name in same if not name.endswith("bias")] == []


def statistics(nets: Nets) -> dict[str, Tensor]:
    """Every batch norm's running mean, running variance and count."""
    return {f"{name}/{key}": value for name, net in nets.all().items() for key, value in net.named_buffers()}


@cache
def replayed(objective: str, head: str, awp: AWPConfig | None) -> dict[str, Tensor]:
    """The statistics after the objective's train-mode forwards and nothing else, on fresh networks.

    With AWP at the moved weights, as published.
    """
    config = run_of(objective, "none", head)
    nets, x, y = make_state(config, tiny_set()).nets, batch().images, batch().labels
    found = config.objective.perturb(copy.deepcopy(nets), x, y, epoch=0, generator=CONTEXT.generator("attack"))
    _, *passes = OBJECTIVE_CASES[objective]
    assert (found is not None) == ("a" in passes[0])
    made: Any = config.objective

    def loss() -> Tensor:
        return made.outcome(nets, x, found, y, epoch=0).loss

    with nullcontext() if awp is None else perturbed_weights(nets, loss, gamma=awp.gamma):
        for net, forwards in zip(nets.all().values(), passes, strict=False):
            for image in forwards:
                net(x if image == "x" else found)
    return statistics(nets)


def check_statistics(step: Step, objective: str, head: str) -> None:
    actual, expected = statistics(step.state.nets), replayed(objective, head, step.config.awp)
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        if name.endswith("num_batches_tracked"):
            assert value.item() == len(OBJECTIVE_CASES[objective][1 if name.startswith("model/") else 2]), name
        elif "running" in name:
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}")


def check_modes_and_head(step: Step, head: str) -> None:
    assert all(module.training for net in step.state.nets.all().values() for module in net.modules())
    own = step.state.nets.model.head
    if head.startswith("hypersphere"):
        torch.testing.assert_close(own.weight.square().sum(1).sqrt(), torch.ones(3), rtol=0, atol=1e-6)
    if head == "large-margin":
        assert own.steps.item() == 1


@pytest.mark.parametrize("awp", [None, AWP], ids=["", "awp"])
@pytest.mark.parametrize(("objective", "penalty", "head"), TRAINED, ids=str)
def test_one_step(objective: str, penalty: str, head: str, awp: AWPConfig | None) -> None:
    step = one_step(objective, penalty, head, awp)
    check_training(step)
    check_penalty(step, objective, penalty, head)
    check_statistics(step, objective, head)
    check_modes_and_head(step, head)


@pytest.mark.parametrize(("objective", "penalty", "head"), REFUSED, ids=str)
def test_refused_with_a_reason(objective: str, penalty: str, head: str) -> None:
    reason = refusal(objective, penalty, head)
    assert reason is not None
    with pytest.raises(InputError, match=reason):
        run_of(objective, penalty, head)


@pytest.mark.parametrize("awp", [None, AWP], ids=["", "awp"])
@pytest.mark.parametrize("objective", OBJECTIVE_CASES)
def test_frozen_batch_norms(objective: str, awp: AWPConfig | None) -> None:
    """Of the model: a teacher that begins with it has statistics of its own to learn."""
    config = replace(run_of(objective, "approximate-clean", "linear"), freeze_batch_norm=True, awp=awp)
    state = make_state(config, tiny_set())
    before = {name: value.clone() for name, value in state.nets.model.named_buffers()}
    values = train_step(state, config.objective, config.penalties(), batch(), CONTEXT, awp=config.awp)
    assert values["total"].isfinite().all()
    assert all(torch.equal(value, before[name]) for name, value in state.nets.model.named_buffers())
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in state.nets.model.parameters())


def test_emr_and_igr_together() -> None:
    both = {**PENALTY_CASES["approximate-adversarial"], **PENALTY_CASES["igr-clean"]}
    config = replace(run_of("trades-kl", "none", "linear"), **both)
    state = make_state(config, tiny_set())
    values = train_step(state, config.objective, config.penalties(), batch(), CONTEXT)
    expected = values["loss"] + 0.1 * values["emr"] + 0.1 * values["igr"]
    torch.testing.assert_close(values["total"], expected)
    assert {int(count) for name, count in statistics(state.nets).items() if name.endswith("tracked")} == {2}
