"""What every regularizer, every attack and the margin promise about the model they are given.

They run it in evaluation mode and leave it alone: its modes, parameters, batch-norm statistics, .grad, and the global
random state.
"""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracles import Network, assert_all_close, images, labels, parameter_gradients, relu_net, troublesome_net
from widemargin import FGSM, PGD, ApproximateEMR, ExactEMR, InputError, StochasticEMR, effective_margin
from widemargin.attacks import ALMA, DDN
from widemargin.gradients.jacobian import logit_jacobian
from widemargin.regularizers import GradAlign, InputGradient

Call = Callable[[nn.Module, Tensor, Tensor], Tensor]

REGULARIZERS: dict[str, Any] = {
    "exact": ExactEMR(),
    "exact in chunks": ExactEMR(classes_at_once=2),
    "approximate": ApproximateEMR(temperature=0.7),
    "stochastic": StochasticEMR(),
    "stochastic, two projections": StochasticEMR(projections=2),
    "input gradient": InputGradient(),
    "alignment, uniform": GradAlign(eps=0.1),
}
ATTACKS: dict[str, FGSM | PGD | DDN | ALMA] = {
    "fgsm": FGSM(eps=0.1),
    "fgsm l2": FGSM(eps=0.5, norm="l2"),
    "pgd": PGD(eps=0.1, step_size=0.03, steps=3),
    "pgd l2": PGD(eps=0.5, step_size=0.2, steps=3, norm="l2"),
    "pgd uniform": PGD(eps=0.1, step_size=0.03, steps=2, random_start="uniform"),
    "pgd l2 uniform": PGD(eps=0.5, step_size=0.2, steps=2, norm="l2", random_start="uniform"),
    "pgd gaussian": PGD(eps=0.1, step_size=0.03, steps=2, random_start="gaussian"),
    "fgsm uniform": FGSM(eps=0.1, noise=0.2, clip=False),
    "ddn": DDN(steps=4, logit_scale=3),
    "alma": ALMA(steps=4),
}


def seeded_call(operation: Any) -> Call:
    return lambda model, x, y: operation(model, x, y, generator=torch.Generator().manual_seed(0))


CALLS: dict[str, Call] = {
    **{name: seeded_call(emr) for name, emr in REGULARIZERS.items()},
    **{f"{name}, value": seeded_call(emr.value) for name, emr in REGULARIZERS.items()},
    **{name: seeded_call(attack) for name, attack in ATTACKS.items()},
    "margin": effective_margin,
    "margin linf": lambda model, x, y: effective_margin(model, x, y, "linf"),
    "jacobian": lambda model, x, _: logit_jacobian(model, x),
}
DRAWING = [name for name in CALLS if any(word in name for word in ("stochastic", "uniform", "gaussian"))]
UNSEEDED: dict[str, Call] = {
    name: lambda model, x, y, op=operation: op(model, x, y)
    for name, operation in {"stochastic": StochasticEMR(), "alignment": GradAlign(eps=0.1), **ATTACKS}.items()
}


def net_in_use() -> tuple[nn.Module, Tensor, Tensor]:
    """A model in the middle of training: train mode with one layer kept in eval mode, one frozen, .grad in place."""
    model, x, y = troublesome_net().train(), images(4, 2, 4, 5), labels(4, 5)
    F.cross_entropy(model(x), y).backward()
    model[6].eval()
    model[0].bias.requires_grad_(False)
    return model, x, y


def everything(model: nn.Module) -> dict[str, Any]:
    return {
        "modes": [module.training for module in model.modules()],
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "grad": {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()},
        "requires_grad": [p.requires_grad for p in model.parameters()],
        "torch random": torch.random.get_rng_state(),
        "numpy random": np.random.get_state()[1].tolist(),
        "python random": random.getstate(),
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@pytest.mark.parametrize("name", CALLS)
def test_the_model_and_the_global_random_state_are_left_alone(name: str) -> None:
    model, x, y = net_in_use()
    before, x_before, y_before = everything(model), x.clone(), y.clone()
    CALLS[name](model, x, y)
    after = everything(model)
    assert [key for key in before if not same(before[key], after[key])] == []
    assert torch.equal(x, x_before)
    assert torch.equal(y, y_before)
    assert not x.requires_grad
    assert x.grad is None


@pytest.mark.parametrize("name", UNSEEDED)
def test_without_a_generator_the_global_random_state_is_left_alone(name: str) -> None:
    model, x, y = net_in_use()
    before = everything(model)
    UNSEEDED[name](model, x, y)
    assert same(everything(model), before)


@pytest.mark.parametrize("name", REGULARIZERS)
def test_backward_leaves_statistics_and_modes_alone_too(name: str) -> None:
    model, x, y = net_in_use()
    before = everything(model)
    CALLS[name](model, x, y).mean().backward()
    after = everything(model)
    assert [key for key in before if not same(before[key], after[key])] == ["grad"]
    assert after["grad"]["0.bias"] is not None  # from the loss before it was frozen
    assert same(after["grad"]["0.bias"], before["grad"]["0.bias"])


@pytest.mark.parametrize("name", CALLS)
def test_the_model_runs_in_evaluation_mode_whatever_mode_it_is_in(name: str) -> None:
    model, x, y = troublesome_net(), images(4, 2, 4, 5), labels(4, 5)
    expected = CALLS[name](model.eval(), x, y).detach()
    assert torch.equal(CALLS[name](model.train(), x, y).detach(), expected)
    model[1].eval()
    assert torch.equal(CALLS[name](model, x, y).detach(), expected)


@pytest.mark.parametrize("name", CALLS)
def test_modes_are_restored_when_the_model_fails(name: str) -> None:
    model, x, y = net_in_use()
    model[8].register_forward_hook(lambda *_: 1 / 0)
    before = everything(model)
    with pytest.raises(ZeroDivisionError):
        CALLS[name](model, x, y)
    assert same(everything(model), before)


@pytest.mark.parametrize("name", CALLS)
def test_a_single_sample(name: str) -> None:
    model, x, y = net_in_use()
    result = CALLS[name](model, x[:1], y[:1])
    assert result.shape[0] == 1
    assert result.isfinite().all()
    if name not in DRAWING:
        torch.testing.assert_close(result, CALLS[name](model, x, y)[:1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions(name: str, dtype: torch.dtype) -> None:
    model, x, y = troublesome_net(), images(4, 2, 4, 5).to(dtype).double(), labels(4, 5)
    expected = CALLS[name](model.to(dtype).double(), x, y).detach()
    result = CALLS[name](model.to(dtype), x.to(dtype), y).detach()
    assert result.dtype == (dtype if name in ATTACKS else torch.float32)
    if name not in DRAWING and name not in ATTACKS:  # draws depend on the precision; small gradients change sign
        tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.1}[dtype]
        largest = float(expected.abs().max())
        torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize("name", CALLS)
def test_under_bf16_autocast(name: str) -> None:
    model, x, y = troublesome_net().float().train(), images(4, 2, 4, 5, dtype=torch.float32), labels(4, 5)
    before = everything(model)
    expected = CALLS[name](model, x, y).detach()
    dtypes: list[torch.dtype] = []
    hook = model[5].register_forward_hook(lambda _module, _inputs, output: dtypes.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = CALLS[name](model, x, y)
    assert set(dtypes) == {torch.bfloat16}  # autocast is respected
    assert result.dtype == torch.float32
    if name not in ATTACKS:
        largest = float(expected.abs().max())
        torch.testing.assert_close(result.detach(), expected, rtol=0.05, atol=0.05 * largest)
    if name in REGULARIZERS:
        gradients = parameter_gradients(model, result.mean())
        reference = parameter_gradients(model, CALLS[name](model, x, y).mean())
        for key in ("0.weight", "8.weight"):
            error = (gradients[key] - reference[key]).norm() / reference[key].norm()
            assert gradients[key].dtype == torch.float32
            assert float(error) < 0.1
    hook.remove()
    assert same(everything(model), before)


@pytest.mark.parametrize("name", [name for name in CALLS if "value" in name or "margin" in name or name == "jacobian"])
@pytest.mark.parametrize("images_too", [False, True])
def test_measuring_under_inference_mode(name: str, images_too: bool) -> None:
    """As in the validation loop of a framework."""
    model, x, y = net_in_use()
    before, expected = everything(model), CALLS[name](model, x, y)
    with torch.inference_mode():
        given = (x.clone(), y.clone()) if images_too else (x, y)
        assert given[0].is_inference() == images_too
        result = CALLS[name](model, *given)
        assert torch.is_inference_mode_enabled()
    assert torch.equal(result, expected)
    assert same(everything(model), before)


# A penalty that would train nothing


@pytest.mark.parametrize("name", REGULARIZERS)
class TestPenaltiesThatWouldTrainNothing:
    def test_without_gradients(self, name: str) -> None:
        model, x, y = net_in_use()
        with torch.no_grad(), pytest.raises(InputError, match=r"would carry no gradient; .* use \w+.value"):
            REGULARIZERS[name](model, x, y)

    def test_where_none_exist(self, name: str) -> None:
        model, x, y = net_in_use()
        with (
            torch.inference_mode(),
            pytest.raises(InputError, match=r"no gradient exists; leave it first, or use \w+.value"),
        ):
            REGULARIZERS[name](model, x, y)

    def test_with_frozen_parameters(self, name: str) -> None:
        model, x, y = net_in_use()
        with pytest.raises(InputError, match=r"^\w+: no parameter of the model requires a gradient"):
            REGULARIZERS[name](model.requires_grad_(False), x, y)

    @pytest.mark.parametrize("frozen", [False, True])
    def test_value_measures_all_the_same(self, name: str, frozen: bool) -> None:
        model, x, y = net_in_use()
        expected = CALLS[name](model, x, y)
        model.requires_grad_(not frozen)
        for context in (nullcontext, torch.no_grad):
            with context():
                value = CALLS[f"{name}, value"](model, x, y)
            assert not value.requires_grad
            torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=0)

    def test_a_model_that_detaches(self, name: str) -> None:
        def hidden(self: Network, x: Tensor, context: Any) -> Tensor:
            with context():
                return self.inner(x)

        for forward in (
            lambda self, x: self.inner(x).detach(),
            lambda self, x: hidden(self, x, torch.no_grad),
            lambda self, x: hidden(self, x, torch.inference_mode),
        ):
            with pytest.raises(InputError, match=r"^\w+: the model's logits carry no gradient; its forward detaches"):
                REGULARIZERS[name](Network(forward, inner=relu_net()), images(2, 1, 3, 5), labels(2, 4))

    def test_a_graph_lost_in_a_first_derivative(self, name: str) -> None:
        """As a compiled part of a model does on some versions of torch: no error, but no second derivative either."""
        if name in ("input gradient", "alignment, uniform"):
            pytest.skip("the gradient of a cross-entropy depends on the parameters through the logits as well")

        class Lossy(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
                ctx.x, ctx.weight = x.detach(), weight.detach()
                return x @ weight

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
                return gradient @ ctx.weight.T, ctx.x.T @ gradient

        lost = Network(lambda self, x: Lossy.apply(x, self.weight), weight=nn.Parameter(torch.randn(6, 4)))
        with pytest.raises(InputError, match=r"^\w+EMR: the penalty does not depend on the parameters"):
            REGULARIZERS[name](lost, images(2, 6, dtype=torch.float32)).sum().backward()


# Compiled models and compiled training steps


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


COMPILED_CALLS = [*CALLS.keys() - ATTACKS.keys(), "fgsm", "pgd l2 uniform"]


@pytest.mark.usefixtures("fresh_compiler")
class TestCompiled:
    @pytest.mark.parametrize("name", sorted(COMPILED_CALLS))
    @pytest.mark.parametrize("how", ["torch.compile", "module.compile"])
    def test_a_compiled_model(self, name: str, how: str) -> None:
        model, x, y = net_in_use()
        expected = CALLS[name](model, x, y)
        compiled = copy.deepcopy(model)
        if how == "module.compile":
            compiled.compile(backend="aot_eager")
        else:
            compiled = torch.compile(compiled, backend="aot_eager")
        before = everything(compiled)
        result = CALLS[name](compiled, x, y)
        assert same(everything(compiled), before)
        torch.testing.assert_close(result.detach(), expected.detach(), rtol=1e-10, atol=1e-13)
        if name in REGULARIZERS:
            gradients = parameter_gradients(compiled, result.sum())
            assert_all_close(gradients, parameter_gradients(model, expected.sum()), rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("name", REGULARIZERS)
    def test_a_compiled_training_step(self, name: str) -> None:
        model, x, y = relu_net(), images(3, 1, 3, 5), labels(3, 4)

        def loss(net: nn.Module, emr: Any) -> Tensor:
            penalty = emr(net, x, y, generator=torch.Generator().manual_seed(0))
            return F.cross_entropy(net(x), y) + 0.1 * penalty.mean()

        emr = REGULARIZERS[name]
        expected = parameter_gradients(model, loss(model, emr))
        compiled = torch.compile(loss, backend="aot_eager")
        assert_all_close(parameter_gradients(model, compiled(model, emr)), expected, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("name", ["exact, value", "stochastic, value", "margin", "pgd"])
    def test_measuring_and_attacking_inside_a_compiled_function(self, name: str) -> None:
        model, x, y = relu_net().train(), images(3, 1, 3, 5), labels(3, 4)
        expected = CALLS[name](model, x, y)
        before = everything(model)
        operation = torch.compile(lambda x, y: 1.0 * CALLS[name](model, x, y), backend="aot_eager")
        torch.testing.assert_close(operation(x, y), expected, rtol=1e-10, atol=1e-13)
        assert same(everything(model), before)
