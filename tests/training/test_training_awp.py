"""AWP: the published class's steps, a slow copy of a network in its place, and what it leaves as it was."""

import copy
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracles import golden, modern_net, under
from widemargin import PGD, ApproximateEMR, InputError
from widemargin.config import AWPConfig
from widemargin.data import Batch
from widemargin.losses import cross_entropy, trades
from widemargin.objectives import Adversarial, Lbgat, Mart, Trades
from widemargin.regularizers import Penalty
from widemargin.training import StepContext, train_step
from widemargin.training.awp import UNPERTURBED_LOSS, perturbed_weights
from widemargin.training.nonfinite import SKIPPED, DeviceGuard, HostGuard
from widemargin.training.setup import load_splits, make_state
from widemargin.training.state import TrainState
from widemargin.training.step import EagerSteps
from widemargin.types import Nets, Outcome

F64, F32 = torch.float64, torch.float32
TOLERANCE = {F64: (1e-9, 1e-9), F32: (1e-4, 1e-5)}
"""Of gradients and of the state after a step, in units of a tensor's largest entry."""
ATTACK = PGD(eps=8 / 255, step_size=2 / 255, steps=2, random_start="gaussian")
PUBLISHED = {"at": AWPConfig(gamma=0.01), "trades": AWPConfig(gamma=0.005)}


@dataclass(frozen=True, kw_only=True)
class Stored(PGD):
    """The stored adversarial images."""

    found: Tensor

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, **options: Any) -> Tensor:
        return self.found


@dataclass(frozen=True, kw_only=True)
class PublishedTrades(Trades):
    """As the AWP code has it: the forwards x', x, x."""

    def outcome(self, nets: Nets, x: Tensor, x_adv: Tensor, y: Tensor, *, epoch: int) -> Outcome:
        logits_adv, logits, _ = nets.model(x_adv), nets.model(x), nets.model(x)
        return Outcome(loss=trades(logits, logits_adv, y, self.beta), logits=logits.detach(), x_adv=x_adv)


def case(net: str, dtype: torch.dtype) -> tuple[TrainState, Batch]:
    model, x, y = modern_net(f"{net}_relu", dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    return TrainState(nets=Nets(model), optimizer=optimizer), Batch(0, torch.arange(len(x)), x, y)


def context(step: int = 0, epoch: int = 0) -> StepContext:
    return StepContext(seed=0, epoch=epoch, step=step, steps_per_epoch=10)


def assert_near(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert actual.keys() == expected.keys()
    for name, value in actual.items():
        gap = (value.double() - expected[name].double()).abs().max()
        assert gap <= tolerance * expected[name].double().abs().max(), name


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("kind", ["at", "trades"])
@pytest.mark.parametrize("net", ["cnn", "mlp"])
class TestPublished:
    def test_where_the_weights_are_moved(self, net: str, kind: str, dtype: torch.dtype) -> None:
        state, batch = case(net, dtype)
        x_adv, expected = golden("awp")[f"{net}/x_adv"].to(dtype), under("awp", f"{net}/{kind}/diff/")
        before, gamma = copy.deepcopy(state.nets.model.state_dict()), PUBLISHED[kind].gamma
        made = objective(kind, x_adv)
        with perturbed_weights(
            state.nets, lambda: made(state.nets, batch.images, batch.labels, epoch=0).loss, gamma=gamma
        ):
            moved = copy.deepcopy(state.nets.model.state_dict())
        differences = {name: (value - before[name]) / gamma for name, value in moved.items()}
        assert_near({name: differences.pop(name) for name in expected}, expected, {F64: 1e-9, F32: 5e-4}[dtype])
        assert not any(difference.any() for difference in differences.values())  # biases, batch norm, statistics

    def test_two_steps(self, net: str, kind: str, dtype: torch.dtype) -> None:
        state, batch = case(net, dtype)
        gradients, after = TOLERANCE[dtype]
        for number, prefix in ((0, f"{net}/{kind}"), (1, f"{net}/{kind}/step2")):
            made = objective(kind, golden("awp")[f"{net}/x_adv{'_step2' * number}"].to(dtype))
            values = train_step(state, made, (), batch, context(number), awp=PUBLISHED[kind])
            loss = golden("awp")[f"{prefix}/loss"]
            torch.testing.assert_close(values["loss"].detach().mean().double(), loss, rtol=gradients, atol=0)
            if number == 0:
                found = {name: p.grad for name, p in state.nets.model.named_parameters() if p.grad is not None}
                assert_near(found, under("awp", f"{prefix}/grad/"), gradients)
            assert_near(state.nets.model.state_dict(), under("awp", f"{prefix}/after/"), after)


def objective(kind: str, x_adv: Tensor) -> Adversarial | Trades:
    stored = Stored(eps=8 / 255, step_size=2 / 255, steps=10, random_start="gaussian", found=x_adv)
    return Adversarial(attack=stored) if kind == "at" else PublishedTrades(attack=stored, beta=6.0)


# The copy of the network that the published code has, in the simplest words, with a penalty


def slow_step(state: TrainState, made: Any, penalty: Penalty, batch: Batch, gamma: float) -> None:
    model, x, y = state.nets.model, batch.images, batch.labels
    x_adv = made.perturb(state.nets, x, y, epoch=0, generator=context().generator("attack"))
    proxy = copy.deepcopy(state.nets)
    sgd = torch.optim.SGD(proxy.model.parameters(), lr=0.01)
    sgd.zero_grad()
    (-made.outcome(proxy, x, x_adv, y, epoch=0).loss.mean()).backward()
    sgd.step()
    differences = {}
    for (name, weight), moved in zip(model.named_parameters(), proxy.model.parameters(), strict=True):
        if weight.dim() > 1:
            difference = (moved - weight).detach()
            differences[name] = gamma * weight.detach().norm() * difference / difference.norm()
    for name, weight in model.named_parameters():
        weight.data += differences.get(name, 0)
    total = made.outcome(state.nets, x, x_adv, y, epoch=0).loss
    total = total + penalty.weight * penalty(model, x, x_adv, y, generator=context().generator("emr"))
    state.optimizer.zero_grad()
    total.mean().backward()
    state.optimizer.step()
    for name, weight in model.named_parameters():
        weight.data -= differences.get(name, 0)


@pytest.mark.parametrize(
    "made", [Adversarial(attack=ATTACK), Trades(attack=ATTACK), Mart(attack=ATTACK), Lbgat(attack=ATTACK, beta=1.0)]
)
def test_a_copy_of_the_network_gives_the_same_step_with_a_penalty(made: Any) -> None:
    (state, batch), (slow, _) = case("cnn", F64), case("cnn", F64)
    if isinstance(made, Lbgat):
        for each in (state, slow):
            each.nets = Nets(each.nets.model, copy.deepcopy(each.nets.model))
            each.optimizer = torch.optim.SGD(each.nets.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    penalty = Penalty(name="emr", regularizer=ApproximateEMR(temperature=1.0), weight=0.1, at="adversarial")
    for _ in range(2):
        train_step(state, made, (penalty,), batch, context(), awp=AWPConfig(gamma=0.02))
        slow_step(slow, made, penalty, batch, 0.02)
    for name, net in state.nets.all().items():
        assert_near(net.state_dict(), slow.nets.all()[name].state_dict(), 1e-10)


# What stays as it was


def test_gradients_and_statistics_of_the_search_leave_no_trace() -> None:
    state, batch = case("cnn", F64)
    model = state.nets.model
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    gradients, statistics = [p.grad for p in model.parameters()], copy.deepcopy(list(model.buffers()))
    addresses = [buffer.data_ptr() for buffer in model.buffers()]
    with perturbed_weights(state.nets, lambda: cross_entropy(model(batch.images), batch.labels), gamma=0.01) as before:
        assert before.shape == (8,)
        assert cross_entropy(model(batch.images), batch.labels).mean() > before.mean()
        assert all(p.grad is gradient for p, gradient in zip(model.parameters(), gradients, strict=True))
    assert [buffer.data_ptr() for buffer in model.buffers()] == addresses
    assert int(model.bn1.num_batches_tracked - statistics[2]) == 1  # of the forward inside


def bits(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone().view(torch.uint8) for name, value in model.named_parameters()}


def test_where_nothing_is_updated_the_weights_come_back_to_the_last_bit_whatever_happens() -> None:
    state, batch = case("cnn", F32)
    model = state.nets.model
    with torch.no_grad():
        model.fc.weight[0, :5] = -0.0
    before, values = bits(model), copy.deepcopy(model.state_dict())

    def loss() -> Tensor:
        return cross_entropy(model(batch.images), batch.labels)

    with perturbed_weights(state.nets, loss, gamma=0.3):
        assert not any(torch.equal(now, before[name]) for name, now in bits(model).items() if "conv" in name)
    assert all(torch.equal(now, before[name]) for name, now in bits(model).items())
    with pytest.raises(KeyboardInterrupt), perturbed_weights(state.nets, loss, gamma=0.3):
        raise KeyboardInterrupt
    assert all(torch.equal(now, before[name]) for name, now in bits(model).items())
    with perturbed_weights(state.nets, lambda: loss() * float("nan"), gamma=0.3):
        assert all(torch.equal(now, values[name]) for name, now in model.named_parameters())
    assert all(torch.equal(now, before[name]) for name, now in bits(model).items())


def test_a_weight_without_a_gradient_or_of_zeros_is_not_moved() -> None:
    state, batch = case("mlp", F32)
    model = state.nets.model
    with torch.no_grad():
        model.fc2.weight.zero_()
        model.fc2.bias.zero_()
    model.fc1.weight.requires_grad_(False)
    before = bits(model)
    with perturbed_weights(state.nets, lambda: cross_entropy(model(batch.images), batch.labels), gamma=0.1):
        moved = {name for name, now in bits(model).items() if not torch.equal(now, before[name])}
    assert moved == set()  # fc3 sees zeros: no gradient; fc2 has no length
    with pytest.raises(InputError, match="AWP moves weights of more than one dimension, and BatchNorm1d has none"):
        perturbed_weights(Nets(nn.BatchNorm1d(3)), lambda: torch.zeros(1), gamma=0.1).__enter__()


# Steps that are not finite


@dataclass(frozen=True, kw_only=True)
class Failing(Adversarial):
    """Not a number where the model is the moved one, or where it is not."""

    first: Tensor
    where: str

    def outcome(self, nets: Nets, x: Tensor, x_adv: Tensor, y: Tensor, *, epoch: int) -> Outcome:
        found = super().outcome(nets, x, x_adv, y, epoch=epoch)
        moved = not torch.equal(next(nets.model.parameters()), self.first)
        return replace(found, loss=found.loss * torch.nan) if moved == (self.where == "moved") else found


@pytest.mark.parametrize("where", ["moved", "before"])
@pytest.mark.parametrize("guard", [HostGuard, DeviceGuard])
@pytest.mark.parametrize("skips", [True, False])
def test_a_step_that_is_not_finite_gives_the_weights_back_to_the_last_bit(where, guard, skips) -> None:  # type: ignore[no-untyped-def]
    state, batch = case("cnn", F32)
    for group in state.optimizer.param_groups:
        group.update(fused=guard is DeviceGuard, foreach=False)
    arguments = (state.nets,) if guard is HostGuard else (state.nets, state.optimizer)
    state.guard = guard(*arguments, skips=skips)
    attack, awp = replace(ATTACK, random_start="uniform"), AWPConfig(gamma=0.05)
    train_step(state, Adversarial(attack=attack), (), batch, context(), awp=awp)
    before = copy.deepcopy(state.nets.model.state_dict())
    bad = Failing(attack=attack, first=before["conv1.weight"], where=where)
    state.guard.begin(1)
    values = train_step(state, bad, (), batch, context(1), awp=awp)
    for name, value in state.nets.model.state_dict().items():
        assert torch.equal(value.reshape(-1).view(torch.uint8), before[name].reshape(-1).view(torch.uint8)), name
    if skips:
        assert values[SKIPPED] == 1
    else:
        at_fault = state.guard.found(wait=True).names
        assert "loss" in at_fault
        assert (UNPERTURBED_LOSS in at_fault) == (where == "before")


# In a run


SETTINGS = (
    'objective={kind="adversarial", attack={kind="pgd", eps=0.1, step_size=0.05, steps=2, random_start="uniform"}}',
    "watch.margins=[]",
)


def test_it_begins_after_its_start(tiny, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    config = tiny(*SETTINGS, "awp={gamma=0.05, start=1}")
    splits = load_splits(config.data, seed=0, data_dir=None, device=torch.device("cpu"))
    x, y = splits.train.floats()[:40], splits.train.labels[:40]
    batch = Batch(0, torch.arange(40), x, y)

    def weights(config: Any, *epochs: int) -> Tensor:
        state = make_state(config, splits.train)
        steps = EagerSteps(state, state.nets, config)
        for epoch in epochs:
            steps(batch, StepContext(seed=0, epoch=epoch, step=0, steps_per_epoch=1))
        return next(state.nets.model.parameters())

    without = replace(config, awp=None)
    assert torch.equal(weights(config, 0), weights(without, 0))
    assert not torch.equal(weights(config, 1), weights(without, 1))
    assert torch.equal(weights(config, 1), weights(replace(config, awp=AWPConfig(gamma=0.05)), 1))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["awp.gamma=0"], r"awp.gamma must be in \(0, 1\), got 0.0; 0.01 and 0.005 are usual"),
        (["awp={gamma=0.1, start=-1}"], "awp.start must be a number of epochs >= 0, got -1"),
        (["awp={gamma=0.1, start=3}"], "awp.start must be less than epochs = 3, got 3: AWP would have no effect"),
        (["awp={start=1}"], "awp.gamma is missing"),
    ],
)
def test_settings_that_mean_nothing_are_refused(tiny, settings, says) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=says):
        tiny(*settings)


def test_an_objective_without_a_loss_apart_from_its_attack_is_refused(tiny) -> None:  # type: ignore[no-untyped-def]
    class Mine:
        attacks = False

        def perturb(self, *_: Any, **__: Any) -> None:
            return None

        def __call__(self, nets: Nets, x: Tensor, y: Tensor, **_: Any) -> Outcome:
            return Outcome(loss=F.cross_entropy(nets.model(x), y, reduction="none"), logits=nets.model(x).detach())

    with pytest.raises(InputError, match=r"Mine has no outcome\(nets, x, x_adv, y, epoch=...\), its loss apart from"):
        replace(tiny(), objective=Mine(), awp=AWPConfig(gamma=0.01))
