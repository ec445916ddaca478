"""The released code's own numbers: margins, penalties, attacks and whole training steps (``tests/golden``)."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import widemargin
from oracles import assert_all_close, assert_close_to_largest, golden, golden_net, parameter_gradients, under
from widemargin.data import Batch
from widemargin.gradients.jacobian import logit_jacobian, logit_jacobian_slowly
from widemargin.objectives import Adversarial
from widemargin.regularizers import Penalty
from widemargin.training import StepContext, train_step
from widemargin.training.state import TrainState
from widemargin.types import Nets

NETS = ("bn", "mlp")
F64, F32 = torch.float64, torch.float32
RTOL, ATOL = 1e-9, 1e-11


def check(actual: Tensor, expected: Tensor, dtype: torch.dtype, float32_tolerance: float) -> None:
    if dtype == F64:
        torch.testing.assert_close(actual, expected, rtol=RTOL, atol=ATOL)
    else:
        assert actual.dtype == F32
        assert_close_to_largest(actual, expected, float32_tolerance)


def check_gradients(model: nn.Module, scalar: Tensor, prefix: str, float32_tolerance: float) -> None:
    actual, expected = parameter_gradients(model, scalar), under("emr", prefix)
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


@pytest.mark.parametrize("jacobian", [logit_jacobian, logit_jacobian_slowly])
def test_jacobian(jacobian: Callable[[nn.Module, Tensor], Tensor]) -> None:
    model, x, _ = golden_net("mlp")
    torch.testing.assert_close(jacobian(model, x).flatten(2), golden("emr")["mlp/jacobian"], rtol=RTOL, atol=ATOL)


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


# One whole step of the released adversarial training


@dataclass(frozen=True)
class StartingAt:
    """The attack, from a given first point."""

    attack: widemargin.PGD
    start: Tensor

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, generator: torch.Generator) -> Tensor:
        return self.attack(model, x, y, start=self.start, generator=generator)


def released_attack(case: str, x: Tensor) -> Callable[..., Tensor]:
    step = under("emr", "step/")
    if case == "at_fixed":
        return lambda *_args, **_kwargs: step["x_fixed"].to(x.dtype)
    attack = widemargin.PGD(
        eps=float(step["hp_eps"]),
        step_size=float(step["hp_alpha"]),
        steps=int(step["hp_steps"]),
        mode="train" if case == "at_released" else "eval",
    )
    return StartingAt(attack, (x + step["start_noise"].to(x.dtype)).clamp(0, 1))


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("case", ["at_fixed", "at_evalattack", "at_released"])
def test_one_released_training_step(case: str, dtype: torch.dtype) -> None:
    model, x, y = golden_net("bn", dtype)
    step = under("emr", "step/")
    objective = Adversarial(attack=released_attack(case, x))  # type: ignore[arg-type]
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

    gradients = {name: p.grad for name, p in model.named_parameters()}
    rtol, atol = (RTOL, ATOL) if dtype == F64 else (1e-4, 1e-5)
    torch.testing.assert_close(values["total"].detach().mean().double(), step[f"{case}/total"], rtol=rtol, atol=atol)
    assert_all_close(gradients, under("emr", f"step/{case}/grad/"), rtol=rtol, atol=atol)
    assert_all_close(model.state_dict(), under("emr", f"step/{case}/after/"), rtol=rtol, atol=atol)


@pytest.mark.parametrize("case", ["at_evalattack", "at_released"])
def test_the_adversarial_images_of_that_step(case: str) -> None:
    model, x, y = golden_net("bn")
    x_adv = released_attack(case, x)(model, x, y, generator=torch.Generator())
    torch.testing.assert_close(x_adv, golden("emr")[f"step/{case}/x_adv"], rtol=0, atol=1e-12)
