"""Operators rewritten for two derivatives: the same numbers as the stock ones, without their faults."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from sweep_checks import PENALTIES
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from oracles import assert_all_close, exact_emr_slowly, images, labels, parameter_gradients, seeded, troublesome_net
from widemargin import InputError
from widemargin.gradients.double_backward import differentiable_twice
from widemargin.gradients.penalties import by_double_backward

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "F.relu": F.relu,
    "F.relu in place": lambda x: F.relu(x, inplace=True),
    "torch.relu": torch.relu,
    "torch.relu_": torch.relu_,
    "Tensor.relu": lambda x: x.relu(),
    "Tensor.relu_": lambda x: x.relu_(),
    "nn.ReLU": nn.ReLU(),
    "nn.ReLU in place": nn.ReLU(inplace=True),
    "F.leaky_relu": F.leaky_relu,
    "nn.LeakyReLU": nn.LeakyReLU(0.1),
    "nn.LeakyReLU in place": nn.LeakyReLU(0.1, inplace=True),
}


def norm(kind: type[nn.Module], *, affine: bool = True) -> nn.Module:
    def make() -> nn.Module:
        layer = kind(3, affine=affine, eps=1e-3)
        layer.running_mean.normal_()
        layer.running_var.uniform_(0.5, 2)
        if affine:
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
        return layer

    return seeded(4, make).eval()


NORMS = {
    "1d": (norm(nn.BatchNorm1d), (4, 3)),
    "1d with length": (norm(nn.BatchNorm1d), (4, 3, 5)),
    "2d": (norm(nn.BatchNorm2d), (4, 3, 2, 5)),
    "2d without affine": (norm(nn.BatchNorm2d, affine=False), (4, 3, 2, 5)),
    "3d": (norm(nn.BatchNorm3d), (1, 3, 2, 1, 2)),
}


def derivatives(operator: Callable[[Tensor], Tensor], x: Tensor, extra: list[Tensor]) -> list[Tensor]:
    """The value, a first derivative and the derivatives of its squared length."""
    leaf = x.clone().requires_grad_(True)
    scale = torch.linspace(0.5, 2, x.numel(), dtype=x.dtype).view_as(x).requires_grad_(True)
    value = operator(leaf * scale)
    (first,) = torch.autograd.grad((value.sin() * 3).sum(), leaf, create_graph=True)
    second = torch.autograd.grad(first.square().sum(), [leaf, scale, *extra], allow_unused=True)
    return [value, first, *[torch.zeros(()) if g is None else g for g in second]]


def both_ways(
    operator: Callable[[Tensor], Tensor], x: Tensor, extra: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    stock = derivatives(operator, x, extra)
    with differentiable_twice():
        return derivatives(operator, x, extra), stock


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_activations_equal_the_stock_ones(name: str, dtype: torch.dtype) -> None:
    x = images(4, 7, dtype=dtype) - 0.5
    x[0, :2] = 0.0
    ours, stock = both_ways(ACTIVATIONS[name], x, [])
    for mine, theirs in zip(ours, stock, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6 if dtype == torch.float32 else 1e-14, atol=0)
    rewritten = "MulBackward" if "leaky" in name.lower() else "MaskedFillBackward"
    assert rewritten in str(ours[0].grad_fn)  # wherever it was called


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_in_place_stays_in_place(name: str) -> None:
    x = images(4, 7) - 0.5
    with differentiable_twice():
        result = ACTIVATIONS[name](x)
    assert (result.data_ptr() == x.data_ptr()) == (" in place" in name or name.endswith("_"))


@pytest.mark.parametrize("name", NORMS)
def test_batch_norm_in_evaluation_mode_equals_the_stock_one(name: str) -> None:
    layer, shape = NORMS[name]
    ours, stock = both_ways(layer, images(*shape), list(layer.parameters()))
    for mine, theirs in zip(ours, stock, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-13)
    assert "BatchNorm" not in str(ours[0].grad_fn)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_batch_norm_keeps_the_dtype_of_its_input(dtype: torch.dtype) -> None:
    layer, x = norm(nn.BatchNorm2d).float(), images(4, 3, 2, 5, dtype=dtype)
    with differentiable_twice():
        ours = layer(x)
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, layer(x), rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-2)


def test_outside_the_context_nothing_is_rewritten() -> None:
    with differentiable_twice():
        pass
    assert "ReluBackward" in str(F.relu(torch.ones(2, requires_grad=True)).grad_fn)


@pytest.mark.parametrize("name", PENALTIES)
def test_a_train_mode_forward_before_backward_changes_nothing(name: str) -> None:
    model, x = troublesome_net().train(), images(3, 2, 4, 5)

    def gradients(*, disturb: bool) -> dict[str, Tensor]:
        penalty = PENALTIES[name](model, x, labels(3, 5), generator=torch.Generator().manual_seed(0)).sum()
        if disturb:
            model(5 + 3 * images(3, 2, 4, 5, seed=7))
        return parameter_gradients(model, penalty)

    right = gradients(disturb=False)
    statistics = model[1].running_var.clone()
    assert_all_close(gradients(disturb=True), right, rtol=1e-12, atol=1e-15)
    assert not torch.equal(model[1].running_var, statistics)
    after = gradients(disturb=False)  # with the disturbed statistics the penalty is another one
    assert not torch.allclose(after["0.weight"], right["0.weight"], rtol=1e-3)


def test_the_stock_operators_do_get_it_wrong() -> None:
    """Why the rewrite exists; when this fails, torch has repaired it (pytorch#13402)."""
    model, x = troublesome_net(), images(1, 2, 4, 5)
    right = parameter_gradients(model, exact_emr_slowly(model, x).sum())["5.weight"]
    penalty = exact_emr_slowly(model, x).sum()
    model.train()(5 + 3 * images(3, 2, 4, 5, seed=7))
    wrong = parameter_gradients(model, penalty)["5.weight"]
    assert not torch.allclose(wrong, right, rtol=1e-2)


class ForcesTraining(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, training=True)


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("norm", [nn.BatchNorm1d(6, track_running_stats=False), ForcesTraining(6)])
def test_batch_norm_that_couples_the_samples_is_refused_and_keeps_its_statistics(name: str, norm: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(6, 6), norm, nn.Linear(6, 3))
    with pytest.raises(InputError, match=r"batch norm without running statistics .* Use running statistics or another"):
        PENALTIES[name](model, images(4, 6, dtype=torch.float32), labels(4, 3))
    assert norm.running_mean is None or not norm.running_mean.any()


class Flops(TorchDispatchMode):
    """Adds up the matrix products of every pass, forward and backward."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in flop_registry:
            self.total += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=result)
        return result


def test_the_zero_branch_of_relu_is_gone() -> None:
    """Penalty and gradient cost 4 forwards of matrix products; with stock operators 6."""
    model = nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(32, 32), nn.ReLU())], nn.Linear(32, 4))
    x = images(16, 32, dtype=torch.float32)

    def cotangents(logits: Tensor) -> Tensor:
        return torch.softmax(logits.detach(), 1)[None]

    def flops(run: Callable[[], object]) -> int:
        with Flops() as counter:
            run()
        return counter.total

    def stock() -> None:
        leaf = x.clone().requires_grad_(True)
        logits = model(leaf)
        (gradient,) = torch.autograd.grad((cotangents(logits) * logits).sum(), leaf, create_graph=True)
        gradient.square().sum().backward()

    def ours() -> None:
        by_double_backward("test", model, x, cotangents, at_once=1, constant=True).sum().backward()

    forward = flops(lambda: model(x))
    assert flops(stock) > 5.5 * forward
    assert flops(ours) < 4.1 * forward
