"""TRADES and MART against whole loss calls and whole steps of the public implementations (``tests/golden``)."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oracles import assert_all_close, golden, golden_net, parameter_gradients, under
from widemargin import PGD, ApproximateEMR
from widemargin.data import Batch
from widemargin.objectives import Mart, Trades
from widemargin.regularizers import Penalty
from widemargin.training import StepContext, train_step
from widemargin.training.state import TrainState
from widemargin.types import Nets

F64, F32 = torch.float64, torch.float32


@dataclass(frozen=True, kw_only=True)
class StartedAt(PGD):
    """PGD from a stored first point in place of a random one."""

    first: Tensor

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, **options: Any) -> Tensor:
        return super().__call__(model, x, y, **(options | {"start": self.first}))


@dataclass(frozen=True, kw_only=True)
class Fixed(PGD):
    """The stored adversarial images themselves."""

    found: Tensor

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, **options: Any) -> Tensor:
        return self.found


def tolerances(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 1e-9, "atol": 1e-11} if dtype == F64 else {"rtol": 1e-4, "atol": 1e-5}


def statistics(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.named_buffers() if "running" in name}


# Loss calls: x' from x + 0.001 noise, then the train-mode forwards


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


@pytest.mark.parametrize("dtype", [F64, F32], ids=["float64", "float32"])
@pytest.mark.parametrize("method", ["trades", "mart"])
def test_a_whole_loss_call(method: str, dtype: torch.dtype) -> None:
    outcome, model = loss_call(method, dtype, **({"repeat_clean": True} if method == "trades" else {}))
    expected = under("objectives", f"{method}/")
    torch.testing.assert_close(outcome.x_adv.double(), expected["x_adv"], rtol=0, atol=1e-12 if dtype == F64 else 1e-6)
    loss = outcome.loss.mean()
    torch.testing.assert_close(loss.detach().double(), expected["loss"], **tolerances(dtype))
    assert_all_close(parameter_gradients(model, loss), under("objectives", f"{method}/grad/"), **tolerances(dtype))
    assert_all_close(statistics(model), under("objectives", f"{method}/after/"), **tolerances(dtype))
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


# Whole steps of the EMR paper's TRADES


def released_trades(case: str, x: Tensor) -> Trades:
    step = under("emr", "step/")
    sizes: dict[str, Any] = {
        "eps": float(step["hp_eps"]),
        "step_size": float(step["hp_alpha"]),
        "steps": int(step["hp_steps"]),
    }
    attack: PGD
    if case == "trades_fixed":
        attack = Fixed(**sizes, found=step["x_fixed"].to(x.dtype))
    else:
        attack = StartedAt(**sizes, mode="train", first=(x + step["start_noise"].to(x.dtype)).clamp(0, 1))
    return Trades(attack=attack, inner="ce", beta=float(golden("objectives")["step/hp_beta"]), repeat_clean=True)


@pytest.mark.parametrize("dtype", [F64, F32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", ["trades_fixed", "trades_released"])
def test_one_released_training_step(case: str, dtype: torch.dtype) -> None:
    model, x, y = golden_net("bn", dtype)
    step = under("emr", "step/")
    penalty = Penalty(
        name="emr",
        regularizer=ApproximateEMR(temperature=float(step["hp_t"])),
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
    context = StepContext(seed=0, epoch=0, step=0, steps_per_epoch=1)
    values = train_step(state, released_trades(case, x), (penalty,), batch, context)

    expected = under("objectives", f"step/{case}/")
    torch.testing.assert_close(values["total"].detach().mean().double(), expected["total"], **tolerances(dtype))
    gradients = {name: p.grad for name, p in model.named_parameters()}
    assert_all_close(gradients, under("objectives", f"step/{case}/grad/"), **tolerances(dtype))
    assert_all_close(model.state_dict(), under("objectives", f"step/{case}/after/"), **tolerances(dtype))


def test_the_adversarial_images_of_that_step() -> None:
    model, x, y = golden_net("bn")
    x_adv = released_trades("trades_released", x).perturb(Nets(model=model), x, y, epoch=0)
    torch.testing.assert_close(x_adv, golden("objectives")["step/trades_released/x_adv"], rtol=0, atol=1e-12)
