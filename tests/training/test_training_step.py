"""One training step: what it adds up, in which order, and what it leaves alone."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracles import assert_all_close, exact_emr_slowly, images, labels, parameter_gradients, relu_net, troublesome_net
from widemargin import PGD, ApproximateEMR, ExactEMR, InputError, StochasticEMR
from widemargin.data import Batch
from widemargin.objectives import Adversarial, Standard
from widemargin.regularizers import Penalty
from widemargin.schedules import OneCycle, Steps
from widemargin.training import StepContext, train_step
from widemargin.training.state import TrainState
from widemargin.types import Nets

START = StepContext(seed=0, epoch=0, step=0, steps_per_epoch=4)
ATTACK = PGD(eps=0.1, step_size=0.05, steps=3, random_start="uniform")
EMR = Penalty(name="emr", regularizer=ExactEMR(), weight=0.3)


def state_of(model: nn.Module, lr: float = 0.1) -> TrainState:
    return TrainState(nets=Nets(model=model), optimizer=torch.optim.SGD(model.parameters(), lr=lr))


def batch_of(x: Tensor, y: Tensor) -> Batch:
    return Batch(step=0, indices=torch.arange(len(x)), images=x, labels=y)


def step(model: nn.Module, penalties: tuple[Penalty, ...], **options: Any) -> dict[str, Tensor]:
    objective, context = options.get("objective", Standard()), options.get("context", START)
    x, y = images(4, 1, 3, 5), labels(4, 4)
    return train_step(state_of(model), objective, penalties, batch_of(x, y), context)


def test_the_total_and_the_update_are_the_formula() -> None:
    model, x, y = relu_net(), images(4, 1, 3, 5), labels(4, 4)
    expected = F.cross_entropy(model(x), y) + 0.3 * exact_emr_slowly(model, x).mean()
    gradients = parameter_gradients(model, expected)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    values = train_step(state_of(model), Standard(), (EMR,), batch_of(x, y), START)
    torch.testing.assert_close(values["total"].detach().mean(), expected.detach())
    assert_all_close({n: p.grad for n, p in model.named_parameters()}, gradients, rtol=1e-10, atol=1e-13)
    moved = {name: before[name] - 0.1 * gradients[name] for name in before}
    assert_all_close(dict(model.named_parameters()), moved, rtol=1e-10, atol=1e-13)


def test_what_is_logged() -> None:
    model, x, y = relu_net(), images(4, 1, 3, 5), labels(4, 4)
    logits, penalty = model(x).detach(), ExactEMR().value(model, x)
    values = step(model, (EMR,))
    torch.testing.assert_close(values["loss"].detach(), F.cross_entropy(logits, y, reduction="none"))
    torch.testing.assert_close(values["emr"].detach(), penalty)
    assert values["correct"].tolist() == (logits.argmax(1) == y).tolist()
    assert values["samples"].tolist() == values["emr_samples"].tolist() == [1.0] * 4
    assert all(value.shape == (4,) for value in values.values())
    assert "emr" not in step(relu_net(), ())


def test_old_gradients_do_not_count() -> None:
    fresh, used = relu_net(), relu_net()
    for p in used.parameters():
        p.grad = torch.ones_like(p)
    for model in (fresh, used):
        step(model, (EMR,))
    assert_all_close(dict(used.named_parameters()), dict(fresh.named_parameters()), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("penalty", "context", "factor"),
    [
        (EMR, START, 0.3),
        (replace(EMR, scaling="released"), START, 0.3 / 4),
        (replace(EMR, every=4), START, 0.3 * 4),
        (replace(EMR, every=2, scaling="released"), START, 0.3 * 2 / 4),
        (replace(EMR, schedule=Steps(milestones=(1,), factor=0.1)), START, 0.3),
        (replace(EMR, schedule=Steps(milestones=(1,), factor=0.1)), replace(START, epoch=1), 0.03),
        (replace(EMR, schedule=Steps(milestones=(0.5,), factor=0.1)), replace(START, step=1), 0.3),
        (replace(EMR, schedule=Steps(milestones=(0.5,), factor=0.1)), replace(START, step=2), 0.03),
        (replace(EMR, schedule=OneCycle(epochs=4, peak=2)), replace(START, epoch=1, step=2), 0.3 * 0.75),
        (replace(EMR, weight=0.0), START, 0.0),
    ],
)
def test_how_strong_a_penalty_is(penalty: Penalty, context: StepContext, factor: float) -> None:
    values = {name: value.detach() for name, value in step(relu_net(), (penalty,), context=context).items()}
    torch.testing.assert_close(values["total"], values["loss"] + factor * values["emr"])


def test_every_kth_step_counts_k_times_and_the_others_not_at_all() -> None:
    taken = []
    for epoch in range(2):
        for i in range(4):
            values = step(relu_net(), (replace(EMR, every=3),), context=replace(START, epoch=epoch, step=i))
            taken.append("emr" in values)
            if "emr" not in values:
                assert torch.equal(values["total"], values["loss"])
    assert taken == [True, False, False, True, False, False, True, False]


def test_several_penalties_add_up() -> None:
    other = Penalty(name="other", regularizer=ApproximateEMR(), weight=2.0)
    values = {name: value.detach() for name, value in step(relu_net(), (EMR, other)).items()}
    torch.testing.assert_close(values["total"], values["loss"] + 0.3 * values["emr"] + 2.0 * values["other"])


# Adversarial training


def test_every_purpose_has_random_numbers_of_its_own() -> None:
    seeds = {}

    def drawing(purpose: str) -> Any:
        def regularizer(model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Tensor:
            seeds[purpose] = generator.initial_seed()
            return ExactEMR()(model, x)

        return regularizer

    penalties = tuple(Penalty(name=name, regularizer=drawing(name), weight=0.1) for name in ("emr", "igr"))
    context = StepContext(seed=3, epoch=1, step=2, steps_per_epoch=5)
    train_step(state_of(relu_net()), Standard(), penalties, batch_of(images(6, 1, 3, 5), labels(6, 4)), context)
    assert seeds == {name: context.derived_seed(name) for name in ("emr", "igr")}
    assert len({*seeds.values(), context.derived_seed("attack")}) == 3


def test_adversarial_training_is_the_formula_at_the_attacked_images() -> None:
    model, x, y = relu_net(), images(4, 1, 3, 5), labels(4, 4)
    x_adv = ATTACK(model, x, y, generator=START.generator("attack"))
    at_adversarial, at_clean = ExactEMR().value(model, x_adv), ExactEMR().value(model, x)
    loss = F.cross_entropy(model(x_adv), y, reduction="none").detach()
    assert not torch.allclose(at_adversarial, at_clean)
    for point, expected in (("adversarial", at_adversarial), ("clean", at_clean)):
        values = step(relu_net(), (replace(EMR, at=point),), objective=Adversarial(attack=ATTACK))
        torch.testing.assert_close(values["loss"].detach(), loss)
        torch.testing.assert_close(values["emr"].detach(), expected)


def test_a_penalty_at_adversarial_images_needs_an_objective_that_attacks() -> None:
    with pytest.raises(InputError, match=r'emr.at = "adversarial" needs an objective that attacks; use "clean"'):
        step(relu_net(), (replace(EMR, at="adversarial"),))


def test_the_adversarial_images_are_constants_of_the_outcome() -> None:
    x, y = images(4, 1, 3, 5), labels(4, 4)
    outcome = Adversarial(attack=ATTACK)(Nets(model=relu_net()), x, y, epoch=0, generator=torch.Generator())
    assert outcome.x_adv is not None
    assert not outcome.x_adv.requires_grad
    assert not outcome.logits.requires_grad
    assert outcome.loss.requires_grad
    assert Standard()(Nets(model=relu_net()), x, y, epoch=0, generator=torch.Generator()).x_adv is None
    assert (Standard().attacks, Adversarial(attack=ATTACK).attacks) == (False, True)


# Batch norm


@dataclass(frozen=True)
class Recorder:
    """A regularizer that notes the statistics it ran under."""

    seen: list[Tensor]

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor | None = None, *, generator: object = None) -> Tensor:
        self.seen.append(model[1].running_mean.clone())
        return ExactEMR()(model, x)


@pytest.mark.parametrize("objective", [Standard(), Adversarial(attack=ATTACK)], ids=["standard", "adversarial"])
def test_statistics_move_once_by_the_train_mode_forward_alone(objective: Standard | Adversarial) -> None:
    model, x, y = troublesome_net().train(), images(4, 2, 4, 5), labels(4, 5)
    point = objective.attack(model, x, y, generator=START.generator("attack")) if objective.attacks else x
    expected = troublesome_net().train()
    expected(point)
    recorder = Recorder([])
    penalties = (EMR, replace(EMR, name="watched", regularizer=recorder))
    train_step(state_of(model), objective, penalties, batch_of(x, y), START)
    for index in (1, 6):
        assert int(model[index].num_batches_tracked) == 1
    assert_all_close(
        {name: model[1].get_buffer(name) for name in ("running_mean", "running_var")},
        {name: expected[1].get_buffer(name) for name in ("running_mean", "running_var")},
        rtol=1e-12,
        atol=0,
    )
    assert torch.equal(recorder.seen[0], model[1].running_mean)  # penalties see the statistics of this batch
    assert all(module.training for module in model.modules())


# Randomness


@pytest.mark.parametrize("regularizer", [ApproximateEMR(), StochasticEMR(seed=1)], ids=["approximate", "stochastic"])
def test_a_step_depends_on_its_moment_and_on_nothing_else(regularizer: ApproximateEMR | StochasticEMR) -> None:
    def total(context: StepContext) -> list[float]:
        penalty = Penalty(name="emr", regularizer=regularizer, weight=1.0)
        return step(relu_net(), (penalty,), objective=Adversarial(attack=ATTACK), context=context)["total"].tolist()

    before = torch.random.get_rng_state()
    assert total(START) == total(START)
    others = [replace(START, step=1), replace(START, epoch=1), replace(START, seed=1)]
    assert len({str(total(context)) for context in [START, *others]}) == 4
    assert torch.equal(torch.random.get_rng_state(), before)
