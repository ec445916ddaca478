"""Exact, approximate and stochastic EMR and the input gradient of the loss, against slow oracles."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from oracles import (
    approximate_emr_slowly,
    assert_all_close,
    exact_emr_slowly,
    images,
    jacobian_rows,
    labels,
    parameter_gradients,
    plain_evaluation,
    relu_net,
    smooth_net,
    troublesome_net,
)
from widemargin import ApproximateEMR, ExactEMR, InputError, StochasticEMR, effective_margin
from widemargin.gradients.jacobian import logit_jacobian, logit_jacobian_slowly
from widemargin.gradients.sweeps.tape import EagerSweeps, Tape
from widemargin.regularizers import InputGradient
from widemargin.regularizers.emr import orthonormal_directions

CASES = {
    "smooth": (smooth_net, (1, 3, 5)),
    "relu": (relu_net, (1, 3, 5)),
    "batch-norm": (troublesome_net, (2, 4, 5)),
}
SAMPLE_WEIGHTS = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def case(name: str) -> tuple[nn.Module, Tensor]:
    make, shape = CASES[name]
    return make(), images(3, *shape)


def check_against(model: nn.Module, penalty: Tensor, expected: Tensor) -> None:
    """Values, and gradients of an uneven combination of the samples."""
    torch.testing.assert_close(penalty, expected, rtol=1e-10, atol=1e-13)
    weights = SAMPLE_WEIGHTS[: len(penalty)]
    assert_all_close(
        parameter_gradients(model, (penalty * weights).sum()),
        parameter_gradients(model, (expected * weights).sum()),
        rtol=1e-9,
        atol=1e-12,
    )


@pytest.fixture
def cotangent_shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Records (M, B, K) of every sweep from the logits to the images."""
    shapes: list[tuple[int, ...]] = []

    adjoints = EagerSweeps.adjoints

    def recording(sweeps: EagerSweeps, tape: Tape, cotangents: Tensor) -> tuple[Tensor, list[Tensor]]:
        shapes.append(tuple(cotangents.shape))
        return adjoints(sweeps, tape, cotangents)

    monkeypatch.setattr(EagerSweeps, "adjoints", recording)
    return shapes


# Jacobians


@pytest.mark.parametrize("net", CASES)
@pytest.mark.parametrize("classes_at_once", [1, 3, 16])
def test_jacobian_equals_the_slow_one(net: str, classes_at_once: int) -> None:
    model, x = case(net)
    jacobian = logit_jacobian(model, x, classes_at_once=classes_at_once)
    torch.testing.assert_close(jacobian, logit_jacobian_slowly(model, x), rtol=1e-11, atol=1e-13)


def test_jacobian_by_finite_differences() -> None:
    model, x = smooth_net(), images(2, 1, 3, 5)
    rows = logit_jacobian_slowly(model, x).flatten(2)
    step = 1e-5
    for pixel in range(15):
        shift = torch.zeros(15, dtype=x.dtype)
        shift[pixel] = step
        shift = shift.view(1, 1, 3, 5)
        slope = (model(x + shift) - model(x - shift)).detach() / (2 * step)
        torch.testing.assert_close(rows[:, :, pixel], slope, rtol=1e-7, atol=1e-9)


# Exact


@pytest.mark.parametrize("net", CASES)
@pytest.mark.parametrize("classes_at_once", [1, 2, 3, 16])
def test_exact(net: str, classes_at_once: int) -> None:
    model, x = case(net)
    check_against(model, ExactEMR(classes_at_once=classes_at_once)(model, x), exact_emr_slowly(model, x))


def test_exact_of_many_classes() -> None:
    model, x = relu_net(num_classes=1000, shape=(1, 2, 3)), images(1, 1, 2, 3)
    direct = ExactEMR(classes_at_once=1000)(model, x)
    check_against(model, ExactEMR()(model, x), direct)
    torch.testing.assert_close(direct.detach(), jacobian_rows(model, x)[1].square().sum()[None])


@pytest.mark.parametrize(("num_classes", "classes_at_once"), [(7, 7), (7, 3), (40, 16), (40, 1)])
def test_exact_never_has_more_classes_in_flight(
    num_classes: int, classes_at_once: int, cotangent_shapes: list[tuple[int, ...]]
) -> None:
    model, x = relu_net(num_classes), images(2, 1, 3, 5)
    emr = ExactEMR(classes_at_once=classes_at_once)
    emr(model, x).sum().backward()
    emr.value(model, x)
    assert max(m for m, _, _ in cotangent_shapes) == classes_at_once
    assert all(shape[1:] == (2, num_classes) for shape in cotangent_shapes)


def peak_saved_numbers(run: Callable[[], object]) -> int:
    """The most numbers that autograd graphs held at one time."""
    live = peak = 0

    class Held:
        def __init__(self, tensor: Tensor) -> None:
            nonlocal live, peak
            self.tensor = tensor
            live += tensor.numel()
            peak = max(peak, live)

        def __del__(self) -> None:
            nonlocal live
            live -= self.tensor.numel()

    with torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.tensor):
        run()
    return peak


def test_exact_memory_does_not_grow_with_the_number_of_classes() -> None:
    def needed(num_classes: int, classes_at_once: int) -> int:
        model = nn.Sequential(nn.Linear(6, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, num_classes))
        emr = ExactEMR(classes_at_once=classes_at_once)
        return peak_saved_numbers(lambda: emr(model, images(64, 6, dtype=torch.float32)).sum().backward())

    few, many = needed(4, 4), needed(64, 4)
    assert many < 2 * few  # the last layer's own weights and logits are what is more
    assert needed(64, 64) > 4 * few  # so the measure can tell


class Largest(TorchDispatchMode):
    """The most numbers that an operator's result had."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // tensor.itemsize)
        return result


@pytest.mark.parametrize("use", ["penalty", "penalty by double backward", "value", "margin", "jacobian"])
@pytest.mark.parametrize("autocast", [False, True])
def test_no_tensor_has_all_classes_twice(use: str, autocast: bool) -> None:
    num_classes, x = 600, images(2, 6, dtype=torch.float32)
    model = nn.Sequential(nn.Linear(6, 3), nn.ReLU(), nn.Linear(3, num_classes))
    if use == "penalty by double backward":
        model.register_full_backward_hook(lambda *_: None)
    with Largest() as largest:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            if use.startswith("penalty"):
                penalty = ExactEMR(classes_at_once=4)(model, x)
            elif use == "value":
                ExactEMR(classes_at_once=4).value(model, x)
            elif use == "margin":
                effective_margin(model, x, torch.tensor([0, 599]), classes_at_once=4)
            else:
                logit_jacobian(model, x, classes_at_once=4)
        if use.startswith("penalty"):
            penalty.sum().backward()
    assert 0 < largest.numbers <= 12 * num_classes < num_classes * num_classes / 40


def test_exact_in_chunks_under_autocast_differentiates_what_it_computed() -> None:
    model, x = relu_net(num_classes=6).float(), images(3, 1, 3, 5, dtype=torch.float32)
    dtypes: list[torch.dtype] = []
    model[1].register_forward_hook(lambda _module, _inputs, output: dtypes.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        penalty = ExactEMR(classes_at_once=2)(model, x).sum()
    chunked = parameter_gradients(model, penalty)
    assert dtypes == [torch.bfloat16]  # the forward pass is not repeated
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole = parameter_gradients(model, ExactEMR()(model, x).sum())
    assert_all_close(chunked, whole, rtol=2e-2, atol=1e-3)


def test_exact_keeps_no_adjoints_beyond_the_classes_at_once(cotangent_shapes: list[tuple[int, ...]]) -> None:
    penalty = ExactEMR(classes_at_once=2)(relu_net(num_classes=5), images(3, 1, 3, 5))
    forward = list(cotangent_shapes)
    penalty.sum().backward()
    assert forward == [(2, 3, 5), (2, 3, 5), (1, 3, 5)]
    assert cotangent_shapes == forward * 2  # computed again, chunk by chunk


# Approximate


@pytest.mark.parametrize("net", CASES)
@pytest.mark.parametrize("temperature", [0.01, 1.0, 40.0])
def test_approximate(net: str, temperature: float) -> None:
    model, x = case(net)
    expected = approximate_emr_slowly(model, x, temperature)
    check_against(model, ApproximateEMR(temperature=temperature)(model, x), expected)


def test_approximate_limits_of_the_temperature() -> None:
    model, x = case("smooth")
    rows = logit_jacobian_slowly(model, x).flatten(2)
    predicted = rows[torch.arange(3), model(x).argmax(1)]
    cold, hot = (ApproximateEMR(temperature=t).value(model, x) for t in (1e-4, 1e9))
    torch.testing.assert_close(cold, predicted.square().sum(1))
    torch.testing.assert_close(hot, rows.mean(1).square().sum(1))


def test_approximate_takes_one_input_gradient(cotangent_shapes: list[tuple[int, ...]]) -> None:
    ApproximateEMR()(relu_net(1000), images(2, 1, 3, 5))
    assert cotangent_shapes == [(1, 2, 1000)]


# Stochastic


@pytest.mark.parametrize("net", CASES)
def test_stochastic_with_all_projections_is_exact(net: str) -> None:
    model, x = case(net)
    num_classes = model(x).shape[1]
    check_against(model, StochasticEMR(projections=num_classes)(model, x), exact_emr_slowly(model, x))


@pytest.mark.parametrize("projections", [1, 2, 3])
def test_stochastic_is_unbiased(projections: int) -> None:
    model, x, draws = smooth_net(), images(2, 1, 3, 5), 4000
    exact = ExactEMR().value(model, x)
    estimates = StochasticEMR(projections=projections, seed=5).value(model, x.repeat(draws, 1, 1, 1)).view(draws, 2)
    errors = estimates.std(0) / math.sqrt(draws)
    assert (errors < 0.05 * exact).all()  # the test has teeth
    assert ((estimates.mean(0) - exact).abs() < 4 * errors).all()


def test_stochastic_parameter_gradient_is_unbiased() -> None:
    model, x = smooth_net(), images(1, 1, 3, 5).repeat(100, 1, 1, 1)
    expected = parameter_gradients(model, ExactEMR()(model, x).mean())["3.weight"]
    emr = StochasticEMR(seed=8)
    groups = torch.stack([parameter_gradients(model, emr(model, x).mean())["3.weight"] for _ in range(40)])
    scores = (groups.mean(0) - expected) / (groups.std(0) / math.sqrt(40))
    assert float(scores.square().mean().sqrt()) < 1.5
    assert float((groups.mean(0) - expected).norm() / expected.norm()) < 0.1


def test_more_projections_are_less_noisy() -> None:
    model, x = smooth_net(), images(1, 1, 3, 5).repeat(1000, 1, 1, 1)
    spreads = [float(StochasticEMR(projections=n, seed=1).value(model, x).std()) for n in (1, 2, 3, 4)]
    assert spreads[0] > 1.2 * spreads[1] > 1.2 * 1.2 * spreads[2]
    assert spreads[3] < 1e-12


def test_stochastic_is_independent_per_sample_and_fresh_at_every_call() -> None:
    model, emr = smooth_net(), StochasticEMR(seed=0)
    x = images(1, 1, 3, 5).repeat(50, 1, 1, 1)
    first, second = emr.value(model, x), emr(model, x).detach()
    assert len(first.unique()) == 50
    assert not (first == second).any()
    correlation = torch.corrcoef(torch.stack([first[:-1], first[1:]]))[0, 1]
    assert abs(float(correlation)) < 0.45


def test_stochastic_reproduces_from_its_seed_or_the_callers_generator() -> None:
    model, x = smooth_net(), images(3, 1, 3, 5)

    def draws(emr: StochasticEMR, **call: torch.Generator) -> list[list[float]]:
        return [emr(model, x, **call).tolist() for _ in range(3)]

    assert draws(StochasticEMR(seed=4)) == draws(StochasticEMR(seed=4))
    assert draws(StochasticEMR(seed=4)) != draws(StochasticEMR(seed=5))
    assert draws(StochasticEMR()) != draws(StochasticEMR())
    own = [draws(StochasticEMR(seed=s), generator=torch.Generator().manual_seed(9)) for s in (1, 2)]
    assert own[0] == own[1]
    again = dataclasses.replace(StochasticEMR(seed=4), projections=1)
    assert draws(again) == draws(StochasticEMR(seed=4))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_directions_are_orthonormal_and_turned_uniformly(count: int) -> None:
    logits = torch.zeros(6000, 5, dtype=torch.float64)
    directions = orthonormal_directions(logits, count, torch.Generator().manual_seed(0))
    assert directions.shape == (count, 6000, 5)
    products = torch.einsum("mbk,nbk->bmn", directions, directions)
    torch.testing.assert_close(products, torch.eye(count, dtype=torch.float64).expand(6000, -1, -1))
    second_moment = torch.einsum("mbk,mbl->kl", directions, directions) / (6000 * count)
    torch.testing.assert_close(second_moment, torch.eye(5, dtype=torch.float64) / 5, rtol=0, atol=0.01)


@pytest.mark.parametrize("num_classes", [3, 1000])
@pytest.mark.parametrize("projections", [1, 3])
def test_stochastic_cost_does_not_grow_with_the_classes(
    num_classes: int, projections: int, cotangent_shapes: list[tuple[int, ...]]
) -> None:
    StochasticEMR(projections=projections)(relu_net(num_classes), images(2, 1, 3, 5))
    assert cotangent_shapes == [(projections, 2, num_classes)]


# Of the cross-entropy


def input_gradient_slowly(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    penalties = []
    with plain_evaluation(model):
        for sample, label in zip(x.split(1), y.split(1), strict=True):
            leaf = sample.clone().requires_grad_(True)
            (gradient,) = torch.autograd.grad(F.cross_entropy(model(leaf), label), leaf, create_graph=True)
            penalties.append(gradient.square().sum())
    return torch.stack(penalties)


@pytest.mark.parametrize("batch", [1, 4])
def test_input_gradient(batch: int) -> None:
    model, x, y = troublesome_net().train(), images(batch, 2, 4, 5), labels(batch, 5)
    expected = input_gradient_slowly(model, x, y)
    actual = InputGradient()(model, x, y)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(InputGradient().value(model, x, y), expected.detach(), rtol=1e-9, atol=1e-12)
    assert not InputGradient().value(model, x, y).requires_grad
    assert_all_close(
        parameter_gradients(model, actual.mean()), parameter_gradients(model, expected.mean()), rtol=1e-9, atol=1e-12
    )


def test_input_gradient_needs_labels_that_fit() -> None:
    model, x = troublesome_net(), images(3, 2, 4, 5)
    with pytest.raises(InputError, match=r"InputGradient: labels are missing; call it as regularizer\(model, x, y\)"):
        InputGradient()(model, x)
    with pytest.raises(InputError, match=r"InputGradient: labels must be in 0..4, got 0..5"):
        InputGradient().value(model, x, torch.tensor([0, 5, 1]))
    with pytest.raises(InputError, match=r"InputGradient: labels must be in 0..4, got 0..5"):
        InputGradient()(model, x, torch.tensor([0, 5, 1]))


# What all of them refuse


def test_more_projections_than_classes_are_refused() -> None:
    message = r"StochasticEMR.projections must be at most the number of classes, 4, got 5; 4 projections are already"
    with pytest.raises(ValueError, match=message):
        StochasticEMR(projections=5)(relu_net(), images(2, 1, 3, 5))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ApproximateEMR(temperature=0.0), r"ApproximateEMR.temperature must be a positive number, got 0.0"),
        (lambda: ApproximateEMR(temperature=-1.0), r"temperature must be a positive number, got -1.0"),
        (lambda: ApproximateEMR(temperature=math.nan), r"temperature must be a positive number, got nan"),
        (lambda: ApproximateEMR(temperature=math.inf), r"temperature must be a positive number, got inf"),
        (
            lambda: StochasticEMR(projections=0),
            r"StochasticEMR.projections must be a whole number of at least 1, got 0",
        ),
        (lambda: ExactEMR(classes_at_once=0), r"ExactEMR.classes_at_once must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_settings_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_they_are_values() -> None:
    assert ApproximateEMR(temperature=2.0) == ApproximateEMR(temperature=2.0) != ApproximateEMR()
    assert StochasticEMR(projections=2, seed=1) == StochasticEMR(projections=2, seed=1)
    assert repr(StochasticEMR(projections=2, seed=1)) == "StochasticEMR(projections=2, seed=1)"
    assert hash(ExactEMR()) == hash(ExactEMR())


@pytest.mark.parametrize("emr", [ExactEMR(), ApproximateEMR(), StochasticEMR(seed=0)], ids=lambda e: type(e).__name__)
class TestCommonPromises:
    def test_labels_are_not_used(self, emr: ExactEMR | ApproximateEMR | StochasticEMR) -> None:
        model, x = relu_net(), images(3, 1, 3, 5)
        generators = [torch.Generator().manual_seed(0) for _ in range(2)]
        with_labels = emr(model, x, labels(3, 4), generator=generators[0])
        assert torch.equal(with_labels, emr(model, x, generator=generators[1]))

    def test_samples_do_not_see_each_other(self, emr: ExactEMR | ApproximateEMR | StochasticEMR) -> None:
        if isinstance(emr, StochasticEMR):
            emr = StochasticEMR(projections=5)
        model, x = troublesome_net(), images(3, 2, 4, 5)
        alone = torch.cat([emr(model, sample) for sample in x.split(1)])
        torch.testing.assert_close(emr(model, x), alone, rtol=1e-10, atol=1e-13)

    def test_training_on_it_alone_flattens_the_model(self, emr: ExactEMR | ApproximateEMR | StochasticEMR) -> None:
        model, x = smooth_net(), images(8, 1, 3, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = float(ExactEMR().value(model, x).mean())
        for _ in range(40):
            optimizer.zero_grad()
            emr(model, x).mean().backward()
            optimizer.step()
        assert float(ExactEMR().value(model, x).mean()) < 0.8 * before

    @pytest.mark.parametrize(
        ("x", "message"),
        [
            (
                torch.zeros(2, 1, 3, 5, dtype=torch.uint8),
                r"images must be floating point .* got torch.uint8; divide by 255",
            ),
            (torch.zeros(5), r"images must be a batch \(B, ...\) of at least one sample, got shape \(5,\)"),
            (torch.zeros(0, 1, 3, 5), r"at least one sample, got shape \(0, 1, 3, 5\)"),
        ],
    )
    def test_bad_images(self, emr: ExactEMR | ApproximateEMR | StochasticEMR, x: Tensor, message: str) -> None:
        with pytest.raises(InputError, match=type(emr).__name__ + ".*" + message):
            emr(relu_net(), x)
