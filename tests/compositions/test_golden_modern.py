"""Numbers of the public implementations of robust training since 2020 (``tests/golden/modern_objectives.npz``)."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oracles import Network, assert_close_to_largest, golden, modern_net, parameter_gradients, under
from widemargin import FGSM, PGD, losses
from widemargin.attacks.pgd import fgsm_rs, n_fgsm
from widemargin.config import IGRConfig
from widemargin.data import Batch
from widemargin.objectives import Adversarial, Score, Standard, Trades
from widemargin.regularizers import InputGradient
from widemargin.schedules import WarmUp
from widemargin.training import StepContext, train_step
from widemargin.training.setup import freeze_batch_norms
from widemargin.training.state import TrainState
from widemargin.types import Nets, Objective, Outcome

F64, F32 = torch.float64, torch.float32
DTYPES = pytest.mark.parametrize("dtype", [F64, F32], ids=["float64", "float32"])
EPS, STEP = 8 / 255, 2 / 255


def stored(key: str) -> Tensor:
    return golden("modern_objectives")[key]


def check(actual: Tensor, key: str, dtype: torch.dtype, *, f64: float, f32: float) -> None:
    """Within the tolerance, relative to the largest entry."""
    assert_close_to_largest(actual.detach(), stored(key), f64 if dtype == F64 else f32)


def check_step(model: nn.Module, outcome: Outcome, case: str, dtype: torch.dtype, *, f64: float, f32: float) -> None:
    """The loss, its gradients, and the statistics after the forwards."""
    assert outcome.loss.dtype == dtype
    check(outcome.loss.mean(), f"{case}/loss", dtype, f64=f64, f32=f32)
    gradients = parameter_gradients(model, outcome.loss.mean())
    assert {f"grad/{name}" for name in gradients} == {k for k in under("modern_objectives", f"{case}/") if "grad/" in k}
    for name, gradient in gradients.items():
        check(gradient, f"{case}/grad/{name}", dtype, f64=f64, f32=f32)
    check_statistics(model, case, dtype)


def check_statistics(model: nn.Module, case: str, dtype: torch.dtype) -> None:
    for name, value in model.named_buffers():
        check(value, f"{case}/after/{name}", dtype, f64=1e-12, f32=1e-5)


# FGSM-RS and N-FGSM: the stored noise is not yet cut to [0, 1]

CHEAP = {
    "rs": ("rs", lambda mode: fgsm_rs(EPS, mode=mode)),
    "nfgsm": ("nfgsm", lambda mode: n_fgsm(EPS, mode=mode)),
    "nfgsm_clip": ("nfgsm", lambda mode: FGSM(eps=EPS, noise=2 * EPS, mode=mode)),
}


@DTYPES
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", CHEAP)
def test_fgsm_from_a_random_start(name: str, mode: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    noise, make = CHEAP[name]
    attack, drawn = make(mode), stored(f"fgsm/{noise}/noise").to(dtype)
    monkeypatch.setattr(
        "widemargin.core.randomness.uniform",
        lambda shape, *, generator, dtype: (drawn / attack.noise + 1) / 2,
    )
    model, x, y = modern_net("cnn_relu", dtype)
    x_adv = attack(model, x, y)
    torch.testing.assert_close(
        x_adv.double(), stored(f"fgsm/{name}/{mode}/x_adv"), rtol=0, atol=1e-10 if dtype == F64 else 1e-6
    )
    if mode == "train":
        outcome = Adversarial(attack=attack).outcome(Nets(model=model), x, x_adv, y, epoch=0)
        check_step(model, outcome, f"fgsm/{name}/train", dtype, f64=1e-10, f32=1e-4)


# TRADES of Wang et al. (2023)


def from_start(objective: Objective, case: str, dtype: torch.dtype) -> tuple[nn.Module, Outcome]:
    """The objective's loss with its attack from the stored start."""
    model, x, y = modern_net("cnn_relu", dtype)
    start = (x + stored(f"{case}/start").to(dtype)).clamp(0, 1)
    monkey = pytest.MonkeyPatch()
    monkey.setattr(PGD, "_first_point", lambda self, threat, x, generator: start)
    with monkey.context():
        outcome = objective(Nets(model=model), x, y, epoch=0)
    monkey.undo()
    return model, outcome


BATCH = PGD(eps=EPS, step_size=STEP, steps=10, random_start="uniform", mode="batch")


@DTYPES
def test_trades_of_wang(dtype: torch.dtype) -> None:
    objective = Trades(attack=BATCH, beta=5.0, label_smoothing=0.1)
    model, outcome = from_start(objective, "trades_wang", dtype)
    assert outcome.x_adv is not None
    torch.testing.assert_close(
        outcome.x_adv.double(), stored("trades_wang/x_adv"), rtol=0, atol=1e-9 if dtype == F64 else 1e-6
    )
    check_step(model, outcome, "trades_wang", dtype, f64=1e-9, f32=1e-4)


# SCORE

SCORES = {
    "score_lse": (Score(attack=BATCH), 1e-9),
    "score_lse_ls": (Score(attack=BATCH, beta=4.0, clip=0.05, label_smoothing=0.1), 1e-7),
}


@DTYPES
@pytest.mark.parametrize("case", SCORES)
def test_score(case: str, dtype: torch.dtype) -> None:
    objective, f64 = SCORES[case]
    model, outcome = from_start(objective, case, dtype)
    assert outcome.x_adv is not None
    atol = 1e-9 if dtype == F64 else 1e-6
    torch.testing.assert_close(outcome.x_adv.double(), stored(f"{case}/x_adv"), rtol=0, atol=atol)
    check_step(model, outcome, case, dtype, f64=f64, f32=1e-4)


# IKL and GKL: alpha, beta and gamma of each case; without a gamma of its own IKL has 1

DKL = [(4.0, 20.0, 1.0), (1.0, 0.0, 1.0), (5.0, 12.0, 0.5)]


@DTYPES
@pytest.mark.parametrize("rows", ["matrix", "uniform"])
@pytest.mark.parametrize("number", range(len(DKL)))
@pytest.mark.parametrize("version", ["gkl_v2", "ikl_v1"])
def test_ikl(version: str, number: int, rows: str, dtype: torch.dtype) -> None:
    alpha, beta, gamma = DKL[number]
    case, gamma = f"dkl/{version}/{rows}{number}", gamma if version == "gkl_v2" else 1.0
    clean, adv = (stored(f"dkl/{name}").to(dtype).requires_grad_(True) for name in ("clean", "adv"))
    y, matrix = stored("dkl/y"), stored("dkl/class_matrix").to(dtype)
    prior = matrix[y] if rows == "matrix" else torch.full_like(clean, 1 / clean.shape[1])
    total = losses.ikl(clean, adv, y, prior, alpha=alpha, beta=beta, gamma=gamma).mean()
    check(total, f"{case}/total", dtype, f64=1e-10, f32=1e-5)
    for name, found in zip(("dclean", "dadv"), torch.autograd.grad(total, (clean, adv)), strict=True):
        check(found, f"{case}/{name}", dtype, f64=1e-10, f32=1e-5)


# Rodriguez-Munoz et al. (2024): the L1 norm of the loss's input gradient


@DTYPES
@pytest.mark.parametrize(("step", "ramp"), [(0, 1.0), (1, 0.4)])
@pytest.mark.parametrize("net", ["cnn_relu", "cnn_gelu", "mlp_relu"])
def test_gradient_norm_of_rodriguez_munoz(net: str, step: int, ramp: float, dtype: torch.dtype) -> None:
    """Theirs is of normalized images, ours of pixels behind a normalization; at 0.8 of the loss they are the same."""
    model, x, y = modern_net(net, dtype)
    case, mean, std = f"dbp/{net}/DBP_a{step}", 0.4, 0.225
    f64, f32 = 1e-7, 1e-5  # the stored targets are float32
    regularizer = InputGradient(norm="linf", squared=False, label_smoothing=0.1)
    whole, pixels = Network(lambda self, images: self.model((images - mean) / std), model=model), mean + std * x
    whole.eval()
    ce, length = losses.cross_entropy(whole(pixels), y, 0.1).mean(), regularizer(whole, pixels, y).mean()
    check(ce, f"{case}/ce", dtype, f64=f64, f32=f32)
    check(4 / 255 * length, f"{case}/reg", dtype, f64=f64, f32=f32)
    loss = 0.8 * (ce + ramp * 6 / 255 * length)
    check(loss, f"{case}/loss", dtype, f64=f64, f32=f32)
    for name, gradient in parameter_gradients(model, loss).items():
        check(gradient, f"{case}/grad/{name}", dtype, f64=f64, f32=1e-4)


@DTYPES
@pytest.mark.parametrize("net", ["cnn_relu", "cnn_gelu"])
def test_a_step_of_rodriguez_munoz(net: str, dtype: torch.dtype) -> None:
    """After 2 of the 5 epochs of the ramp, batch norms frozen: the loss over 0.8, its gradients, no new statistics."""
    inner, x, y = modern_net(net, dtype)
    case, mean, std = f"dbp/{net}/DBP_a1", 0.4, 0.225
    whole = Network(lambda self, images: self.model((images - mean) / std), model=inner).train()
    freeze_batch_norms(whole)
    statistics = {name: buffer.clone() for name, buffer in whole.named_buffers()}
    ramp = WarmUp(epochs=5)
    igr = IGRConfig(weight=6 / 255, norm="linf", squared=False, label_smoothing=0.1, schedule=ramp).penalty()
    state = TrainState(nets=Nets(model=whole), optimizer=torch.optim.SGD(whole.parameters(), lr=0.1))
    batch = Batch(step=0, indices=torch.arange(len(y)), images=mean + std * x, labels=y)
    context = StepContext(seed=0, epoch=2, step=0, steps_per_epoch=1)
    values = train_step(state, Standard(label_smoothing=0.1), (igr,), batch, context)
    f64, f32 = 1e-7, 1e-5  # the stored targets are float32
    check(0.8 * values["total"].mean(), f"{case}/loss", dtype, f64=f64, f32=f32)
    for name, parameter in inner.named_parameters():
        assert parameter.grad is not None
        check(0.8 * parameter.grad, f"{case}/grad/{name}", dtype, f64=f64, f32=1e-4)
    assert all(torch.equal(buffer, statistics[name]) for name, buffer in whole.named_buffers())
