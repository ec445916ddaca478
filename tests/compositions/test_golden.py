"""Numbers of the public implementations: margins, penalties, attacks, loss calls, whole steps (``tests/golden``)."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import widemargin
from oracles import assert_all_close, assert_close_to_largest, golden, golden_net, parameter_gradients, under
from widemargin.data import Batch
from widemargin.gradients.jacobian import logit_jacobian
from widemargin.objectives import Adversarial, Mart, Trades
from widemargin.regularizers import InputGradient, Penalty
from widemargin.training import StepContext, train_step
from widemargin.training.state import TrainState
from widemargin.types import Nets

NETS = ("bn", "mlp")
F64, F32 = torch.float64, torch.float32
RTOL, ATOL = 1e-9, 1e-11
TOLERANCE = {F64: {"rtol": RTOL, "atol": ATOL}, F32: {"rtol": 1e-4, "atol": 1e-5}}


def check(actual: Tensor, expected: Tensor, dtype: torch.dtype, float32_tolerance: float) -> None:
    if dtype == F64:
        torch.testing.assert_close(actual, expected, rtol=RTOL, atol=ATOL)
    else:
        assert actual.dtype == F32
        assert_close_to_largest(actual, expected, float32_tolerance)


def check_gradients(
    model: nn.Module, scalar: Tensor, prefix: str, float32_tolerance: float, stored_in: str = "emr"
) -> None:
    actual, expected = parameter_gradients(model, scalar), under(stored_in, prefix)
    assert actual.keys() == expected.keys()
    largest = max(float(g.abs().max()) for g in expected.values())
    for name, gradient in actual.items():
        if gradient.dtype == F64:
            torch.testing.assert_close(gradient, expected[name], rtol=RTOL, atol=ATOL)
        else:
            torch.testing.assert_close(gradient.double(), expected[name], rtol=0, atol=float32_tolerance * largest)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("dtype", [F64, F32])
class TestPenalties:
    def test_the_network_is_the_stored_one(self, net: str, dtype: torch.dtype) -> None:
        model, x, _ = golden_net(net, dtype)
        check(model.eval()(x).detach(), golden("emr")[f"{net}/logits_eval"], dtype, 1e-5)

    def test_effective_margin(self, net: str, dtype: torch.dtype) -> None:
        model, x, y = golden_net(net, dtype)
        check(widemargin.effective_margin(model, x, y), golden("emr")[f"{net}/eff_margin"], dtype, 1e-5)

    def test_exact(self, net: str, dtype: torch.dtype) -> None:
        model, x, _ = golden_net(net, dtype)
        penalty = widemargin.ExactEMR()(model, x)
        check(penalty.detach(), golden("emr")[f"{net}/exact_emr"], dtype, 1e-4)
        check(penalty.mean().detach(), golden("emr")[f"{net}/exact_emr_mean"], dtype, 1e-4)
        check_gradients(model, penalty.mean(), f"{net}/exact_emr_mean/grad/", 1e-4)

    @pytest.mark.parametrize("i", range(3))
    def test_approximate_in_the_released_scaling(self, net: str, dtype: torch.dtype, i: int) -> None:
        model, x, y = golden_net(net, dtype)
        emr = widemargin.ApproximateEMR(temperature=float(golden("emr")["ts"][i]))
        check(emr(model, x).detach(), golden("emr")[f"{net}/emr_t{i}/per_sample"], dtype, 1e-5)
        penalty = Penalty(name="emr", regularizer=emr, weight=1.0, scaling="released")
        amount = penalty(model, x, None, y, generator=torch.Generator())
        released = penalty.factor(0, len(x)) * amount.mean()
        check(released.detach(), golden("emr")[f"{net}/emr_t{i}/penalty"], dtype, 1e-5)
        check_gradients(model, released, f"{net}/emr_t{i}/grad/", 1e-5)

    def test_input_gradient_in_the_released_scaling(self, net: str, dtype: torch.dtype) -> None:
        model, x, y = golden_net(net, dtype)
        stored = golden("igr")
        penalty = Penalty(name="igr", regularizer=InputGradient(), weight=1.0, scaling="released")
        amount = penalty(model, x, None, y, generator=torch.Generator())
        per_sample = (len(x) * stored[f"{net}/igr/input_grad"]).flatten(1).square().sum(1)  # of CE_i, not of the mean
        check(amount.detach(), per_sample, dtype, 1e-4)
        released = penalty.factor(0, len(x)) * amount.mean()
        check(released.detach(), stored[f"{net}/igr/penalty"], dtype, 1e-4)
        check_gradients(model, released, f"{net}/igr/grad/", 1e-4, stored_in="igr")


def test_jacobian() -> None:
    model, x, _ = golden_net("mlp")
    expected = golden("emr")["mlp/jacobian"]
    torch.testing.assert_close(logit_jacobian(model, x).flatten(2), expected, rtol=RTOL, atol=ATOL)


# Attacks


def attack_case(dtype: torch.dtype) -> tuple[nn.Module, Tensor, Tensor, dict[str, float]]:
    model, x, y = golden_net("bn", dtype)
    stored = golden("attacks")
    return model, x, y, {"eps": float(stored["pgd/eps"]), "step_size": float(stored["pgd/alpha"])}


def check_end_point(actual: Tensor, key: str) -> None:
    tolerance = {F64: 1e-9, F32: 1e-6}[actual.dtype]
    torch.testing.assert_close(actual.double(), golden("attacks")[key], rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [F64, F32])
class TestAttacks:
    @pytest.mark.parametrize("i", range(4))
    def test_pgd_from_the_image(self, dtype: torch.dtype, i: int) -> None:
        model, x, y, sizes = attack_case(dtype)
        steps = int(golden("attacks")["pgd/steps"][i])
        check_end_point(widemargin.PGD(**sizes, steps=steps)(model, x, y), f"pgd/x_adv_{i}")

    def test_fgsm(self, dtype: torch.dtype) -> None:
        model, x, y, sizes = attack_case(dtype)
        check_end_point(widemargin.FGSM(eps=sizes["eps"])(model, x, y), "fgsm/x_adv")

    def test_pgd_from_a_given_start(self, dtype: torch.dtype) -> None:
        model, x, y, sizes = attack_case(dtype)
        start = (x + golden("attacks")["pgd_rs/start_noise"].to(dtype)).clamp(0, 1)
        check_end_point(widemargin.PGD(**sizes, steps=10)(model, x, y, start=start), "pgd_rs/x_adv")

    def test_mart_from_gaussian_noise(self, dtype: torch.dtype) -> None:
        model, x, y, _ = attack_case(dtype)
        stored = golden("attacks")
        start = x + 0.001 * stored["g/randn"].to(dtype)
        attack = widemargin.PGD(
            eps=float(stored["g/eps"]), step_size=float(stored["g/alpha"]), steps=int(stored["g/steps"])
        )
        check_end_point(attack(model, x, y, start=start), "mart/x_adv")


def test_pgd_in_training_mode_as_published() -> None:
    model, x, y, sizes = attack_case(F64)
    start_statistics = {name: value.clone() for name, value in model.named_buffers()}
    attack = widemargin.PGD(**sizes, steps=10, mode="train")
    check_end_point(attack(model.eval(), x, y), "pgd_released_bntrain/x_adv")
    after = under("attacks", "pgd_released_bntrain/after/")
    assert after
    for name, expected in after.items():
        torch.testing.assert_close(model.state_dict()[name], expected, rtol=RTOL, atol=ATOL)
        assert not torch.equal(start_statistics[name], expected)
    assert not any(module.training for module in model.modules())


# Whole steps of the released adversarial training and of the EMR paper's TRADES


@dataclass(frozen=True, kw_only=True)
class StartedAt(widemargin.PGD):
    """PGD from a stored first point in place of a random one."""

    first: Tensor

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, **options: Any) -> Tensor:
        return super().__call__(model, x, y, **(options | {"start": self.first}))


@dataclass(frozen=True, kw_only=True)
class Stored(widemargin.PGD):
    """The stored adversarial images themselves."""

    found: Tensor

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, **options: Any) -> Tensor:
        return self.found


def released(case: str, x: Tensor) -> Adversarial | Trades:
    method, how = case.split("_")
    step = under("emr", "step/")
    sizes: dict[str, Any] = {
        "eps": float(step["hp_eps"]),
        "step_size": float(step["hp_alpha"]),
        "steps": int(step["hp_steps"]),
        "mode": "train" if how == "released" else "eval",
    }
    attack: widemargin.PGD
    if how == "fixed":
        attack = Stored(**sizes, found=step["x_fixed"].to(x.dtype))
    else:
        attack = StartedAt(**sizes, first=(x + step["start_noise"].to(x.dtype)).clamp(0, 1))
    if method == "at":
        return Adversarial(attack=attack)
    return Trades(attack=attack, inner="ce", beta=float(golden("objectives")["step/hp_beta"]), repeat_clean=True)


def stored_of(case: str) -> tuple[str, str]:
    """(the file, the prefix) of a case's numbers."""
    return ("objectives" if case.startswith("trades") else "emr"), f"step/{case}/"


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("case", ["at_fixed", "at_evalattack", "at_released", "trades_fixed", "trades_released"])
def test_one_released_training_step(case: str, dtype: torch.dtype) -> None:
    model, x, y = golden_net("bn", dtype)
    step = under("emr", "step/")
    objective = released(case, x)
    penalty = Penalty(
        name="emr",
        regularizer=widemargin.ApproximateEMR(temperature=float(step["hp_t"])),
        weight=float(step["hp_lambda"]),
        at="adversarial",
        scaling="released",
    )
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=float(step["hp_lr"]),
        momentum=float(step["hp_momentum"]),
        weight_decay=float(step["hp_wd"]),
    )
    state = TrainState(nets=Nets(model=model), optimizer=optimizer)
    batch = Batch(step=0, indices=torch.arange(len(x)), images=x, labels=y)
    values = train_step(state, objective, (penalty,), batch, StepContext(seed=0, epoch=0, step=0, steps_per_epoch=1))

    name, prefix = stored_of(case)
    expected = under(name, prefix)
    gradients = {name: p.grad for name, p in model.named_parameters()}
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(values["total"].detach().mean().double(), expected["total"], **tolerance)
    assert_all_close(gradients, under(name, f"{prefix}grad/"), **tolerance)
    assert_all_close(model.state_dict(), under(name, f"{prefix}after/"), **tolerance)


@pytest.mark.parametrize("case", ["at_evalattack", "at_released", "trades_released"])
def test_the_adversarial_images_of_that_step(case: str) -> None:
    model, x, y = golden_net("bn")
    name, prefix = stored_of(case)
    x_adv = released(case, x).perturb(Nets(model=model), x, y, epoch=0)
    torch.testing.assert_close(x_adv, golden(name)[f"{prefix}x_adv"], rtol=0, atol=1e-12)


# Whole loss calls of TRADES and MART: x' from x + 0.001 noise, then the train-mode forwards


def loss_call(method: str, dtype: torch.dtype, **settings: Any) -> tuple[Any, nn.Module]:
    model, x, y = golden_net("bn", dtype)
    stored, beta = golden("attacks"), float(golden("objectives")["g/beta"])
    attack = StartedAt(
        eps=float(stored["g/eps"]),
        step_size=float(stored["g/alpha"]),
        steps=int(stored["g/steps"]),
        random_start="gaussian",
        first=x + 0.001 * stored["g/randn"].to(dtype),
    )
    objective = Trades(attack=attack, beta=beta, **settings) if method == "trades" else Mart(attack=attack, weight=beta)
    return objective(Nets(model=model), x, y, epoch=0, generator=torch.Generator()), model


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("method", ["trades", "mart"])
def test_a_whole_loss_call(method: str, dtype: torch.dtype) -> None:
    outcome, model = loss_call(method, dtype, **({"repeat_clean": True} if method == "trades" else {}))
    expected = under("objectives", f"{method}/")
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(outcome.x_adv.double(), expected["x_adv"], rtol=0, atol=1e-12 if dtype == F64 else 1e-6)
    loss = outcome.loss.mean()
    torch.testing.assert_close(loss.detach().double(), expected["loss"], **tolerance)
    assert_all_close(parameter_gradients(model, loss), under("objectives", f"{method}/grad/"), **tolerance)
    statistics = {name: value for name, value in model.named_buffers() if "running" in name}
    assert_all_close(statistics, under("objectives", f"{method}/after/"), **tolerance)
    assert outcome.loss.shape == (6,)
    assert not outcome.logits.requires_grad


def test_one_clean_pass_gives_the_same_loss_and_two_updates_of_the_statistics() -> None:
    once, model = loss_call("trades", F64)
    twice, other = loss_call("trades", F64, repeat_clean=True)
    torch.testing.assert_close(once.loss, twice.loss, rtol=1e-12, atol=1e-12)
    assert_all_close(
        parameter_gradients(model, once.loss.mean()),
        parameter_gradients(other, twice.loss.mean()),
        rtol=1e-9,
        atol=1e-12,
    )
    began = golden("emr")["bn/w/bn1.num_batches_tracked"]
    assert [int(net.bn1.num_batches_tracked - began) for net in (model, other)] == [2, 3]
