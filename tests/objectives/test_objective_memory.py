"""Objectives that keep something from step to step: as their publications' loops, written out, would have it."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracles import assert_all_close, images, labels, relu_net
from widemargin import FGSM, PGD, InputError
from widemargin.config import DataConfig, OptimizerConfig, RunConfig
from widemargin.data import Batch, Batches, ImageSet
from widemargin.models import MLPConfig
from widemargin.objectives import Free, Ikl
from widemargin.training import StepContext, train_step
from widemargin.training.setup import make_batches, make_state
from widemargin.training.state import TrainState
from widemargin.types import Nets, Objective

ATTACK = PGD(eps=0.1, step_size=0.05, steps=2, random_start="gaussian")
SHAPE, CLASSES = (1, 3, 5), 4
RATE = 0.3


def state_of(objective: Any, batch_size: int) -> TrainState:
    model = relu_net(CLASSES, SHAPE).train()
    memory = objective.make_memory(image_shape=SHAPE, num_classes=CLASSES, batch_size=batch_size).double()
    return TrainState(Nets(model, memory=memory), torch.optim.SGD(model.parameters(), lr=RATE))


def step(state: TrainState, objective: Objective, x: Tensor, y: Tensor, epoch: int = 0) -> None:
    context = StepContext(seed=0, epoch=epoch, step=0, steps_per_epoch=1)
    train_step(state, objective, (), Batch(0, torch.arange(len(x)), x, y), context)


def batches() -> list[tuple[Tensor, Tensor]]:
    """Some pixels at the ends of [0, 1]; the last batch is smaller."""
    found = [(images(n, *SHAPE, seed=n).round(decimals=1), labels(n, CLASSES, seed=n)) for n in (6, 5, 3)]
    assert any(float((x == 0).sum()) for x, _ in found)
    return found


# Free


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_free_is_its_published_loop(norm: Any) -> None:
    eps, replays = 0.15 if norm == "linf" else 0.4, 3
    objective = Free(eps=eps, norm=norm, replays=replays, label_smoothing=0.1)
    state, plain = state_of(objective, batch_size=6), relu_net(CLASSES, SHAPE).train()
    optimizer = torch.optim.SGD(plain.parameters(), lr=RATE)
    delta = torch.zeros(6, *SHAPE, dtype=torch.float64)
    for x, y in batches():
        for _ in range(replays):
            step(state, objective, x, y)
            leaf = (x + delta[: len(x)]).clamp(0, 1).requires_grad_(True)
            optimizer.zero_grad()
            F.cross_entropy(plain(leaf), y, label_smoothing=0.1).backward()
            optimizer.step()
            for i, gradient in enumerate(leaf.grad):
                if norm == "linf":
                    moved = (delta[i] + eps * gradient.sign()).clamp(-eps, eps)
                else:
                    moved = delta[i] + eps * gradient / gradient.norm()
                    moved = moved * min(1.0, eps / float(moved.norm()))
                delta[i] = (x[i] + moved).clamp(0, 1) - x[i]
    assert float(delta.abs().max()) > eps / 4
    torch.testing.assert_close(state.nets.memory.delta, delta, rtol=1e-9, atol=1e-12)
    assert_all_close(dict(state.nets.model.state_dict()), dict(plain.state_dict()), rtol=1e-9, atol=1e-12)


def test_outside_of_training_the_images_have_the_perturbation_as_it_is() -> None:
    objective = Free(eps=0.1)
    state = state_of(objective, batch_size=3)
    (x, y), *_ = batches()
    step(state, objective, x[:3], y[:3])
    delta = state.nets.memory.delta.clone()
    found = objective.perturb(state.nets, x, y, epoch=0)
    assert torch.equal(found, (x + delta.repeat(2, 1, 1, 1)).clamp(0, 1))
    assert torch.equal(state.nets.memory.delta, delta)


def test_a_step_that_is_refused_leaves_the_perturbation() -> None:
    class Refusing:
        def remember(self) -> None: ...
        def begin(self, step: int) -> None: ...
        def passes(self, values: Any) -> bool:
            return False

        def settle(self, values: Any) -> Any:
            return values

    objective = Free(eps=0.1)
    state = state_of(objective, batch_size=6)
    state.guard = Refusing()
    (x, y), *_ = batches()
    step(state, objective, x, y)
    assert not state.nets.memory.delta.any()


# IKL


def test_the_class_matrix_is_that_of_the_epoch_before() -> None:
    objective = Ikl(attack=ATTACK, temperature=2.0)
    state = state_of(objective, batch_size=6)
    memory = state.nets.memory
    expected = torch.full((CLASSES, CLASSES), 1 / CLASSES, dtype=torch.float64)
    for epoch in range(3):
        sums = torch.zeros(CLASSES, CLASSES, dtype=torch.float64)
        for x, y in batches():
            y = y % 3  # no image of the last class
            torch.testing.assert_close(memory.rows, expected, rtol=1e-12, atol=0)
            predictions = (state.nets.model(x).detach() / 2.0).softmax(1)
            step(state, objective, x, y, epoch)
            for prediction, label in zip(predictions, y.tolist(), strict=True):
                sums[label] += prediction
        for label in range(3):
            expected[label] = sums[label] / sums[label].sum()
        state.end_epoch()
    assert state.epoch == 3
    assert not memory.sums.any()
    assert torch.equal(memory.rows[3], torch.full((CLASSES,), 1 / CLASSES, dtype=torch.float64))


def test_ikl_is_the_formula_pair_by_pair() -> None:
    objective = Ikl(attack=ATTACK, alpha=3.0, beta=7.0, gamma=0.5, label_smoothing=0.1)
    state = state_of(objective, batch_size=6)
    (x, y), *_ = batches()
    memory = state.nets.memory
    memory.rows.copy_(images(CLASSES, CLASSES).softmax(1))
    rows, model = memory.rows.clone(), state.nets.model
    x_adv = (x + 0.05).clamp(0, 1)
    outcome = objective.outcome(state.nets, x, x_adv, y, epoch=0)
    z, a = model(x), model(x_adv)
    pairs = torch.zeros((), dtype=torch.float64)
    weights = torch.zeros((), dtype=torch.float64)
    for i in range(len(x)):
        for j in range(CLASSES):
            for k in range(CLASSES):
                weight = (rows[y[i], j] * rows[y[i], k]) ** 0.5
                weights = weights + weight
                pairs = pairs + weight * ((z[i, j] - z[i, k]) - (a[i, j] - a[i, k])) ** 2
    label = F.cross_entropy(z, y, label_smoothing=0.1)
    imitation = -(z.detach().softmax(1) * a.log_softmax(1)).sum(1).mean()
    expected = label + 3.0 * imitation + 7.0 * 0.25 * pairs / weights
    torch.testing.assert_close(outcome.loss.mean(), expected, rtol=1e-12, atol=0)
    parameters = list(model.parameters())
    for found, wanted in zip(
        torch.autograd.grad(outcome.loss.mean(), parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_eps_grows_over_the_ramp() -> None:
    objective = Ikl(attack=ATTACK, ramp=4)
    attacks = [objective.inner_problem(epoch)[0] for epoch in range(6)]
    assert [attack.eps for attack in attacks] == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])
    assert attacks[0] == replace(ATTACK, eps=0.025, step_size=0.0125)
    assert [objective.phase(epoch) for epoch in range(6)] == [0, 1, 2, 3, 3, 3]
    noisy = Ikl(attack=FGSM(eps=0.1, noise=0.2, clip=False), ramp=2).inner_problem(0)[0]
    assert noisy == FGSM(eps=0.05, noise=0.1, clip=False)
    assert Ikl(attack=ATTACK).inner_problem(0)[0] is ATTACK


# What holds it


MAKE = {"ikl": lambda: Ikl(attack=ATTACK), "free": lambda: Free(eps=0.1)}


@pytest.mark.parametrize("name", MAKE)
def test_without_its_memory_it_says_what_to_give(name: str) -> None:
    (x, y), *_ = batches()
    message = r"(Ikl|Free) keeps something from step to step; give it Nets\(model, memory=...\)"
    with pytest.raises(InputError, match=message):
        MAKE[name]()(Nets(relu_net(CLASSES, SHAPE)), x, y, epoch=0)


def run_of(objective: Objective) -> RunConfig:
    return RunConfig(
        name="tiny",
        epochs=1,
        batch_size=4,
        data=DataConfig(name="tiny"),
        model=MLPConfig(hidden=(5,)),
        objective=objective,
        optimizer=OptimizerConfig(lr=0.1),
    )


def test_a_run_takes_each_batch_as_often_as_its_objective_says() -> None:
    data = ImageSet(images(10, *SHAPE).float(), labels(10, CLASSES), num_classes=CLASSES, name="tiny")
    replayed = make_batches(run_of(Free(eps=0.1, replays=3)), data)
    once = Batches(data=data, batch_size=4, seed=0)
    assert (once.steps_per_epoch, replayed.steps_per_epoch) == (3, 9)
    assert make_batches(run_of(Ikl(attack=ATTACK)), data).steps_per_epoch == 3
    plain, found = list(once.epoch(1)), list(replayed.epoch(1))
    assert [batch.step for batch in found] == list(range(9))
    for batch in found:
        assert torch.equal(batch.images, plain[batch.step // 3].images)
    assert [batch.indices.tolist() for batch in replayed.epoch(1, 4)] == [b.indices.tolist() for b in found[4:]]
    state = make_state(run_of(Free(eps=0.1, replays=3)), data)
    assert state.nets.memory.delta.shape == (4, *SHAPE)
    assert {"memory/delta"} == {name for name in state.tensors() if name.startswith("memory")}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Free(eps=0), r"Linf.eps must be in \(0, 1\], got 0"),
        (lambda: Free(eps=0.1, replays=0), r"Free.replays must be a whole number"),
        (lambda: Free(eps=0.1, label_smoothing=1), r"Free.label_smoothing must be a number in \[0, 1\), got 1"),
        (lambda: Ikl(attack=ATTACK, beta=-1), r"Ikl.beta must be a number >= 0, got -1"),
        (lambda: Ikl(attack=ATTACK, temperature=0), r"Ikl.temperature must be a positive number, got 0"),
        (lambda: Ikl(attack=ATTACK, ramp=-1), r"Ikl.ramp must be a number of epochs >= 0, got -1"),
        (lambda: Ikl(attack=len, ramp=1), r"Ikl.ramp makes eps grow, and <built-in function len> has no field eps"),
        (lambda: Ikl(attack=FGSM(eps=0.1)), r"Ikl.attack must be PGD with a random start \(its inner problem"),
        (lambda: Ikl(attack=ATTACK, label_smoothing=1), r"Ikl.label_smoothing must be a number in \[0, 1\)"),
    ],
)
def test_bad_settings(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_a_module_without_parameters_is_no_network() -> None:
    nets = Nets(nn.Linear(2, 2), memory=Free(eps=0.1).make_memory(image_shape=SHAPE, num_classes=2, batch_size=2))
    assert list(nets.all()) == ["model", "memory"]
    assert len(nets.parameters()) == 2
