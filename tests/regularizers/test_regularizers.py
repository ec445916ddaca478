"""Exact, approximate and stochastic EMR and the input gradient of the loss, against slow oracles."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from oracles import (
    Network,
    approximate_emr_slowly,
    assert_all_close,
    exact_emr_slowly,
    images,
    jacobian_rows,
    jacobian_slowly,
    labels,
    parameter_gradients,
    plain_evaluation,
    relu_net,
    smooth_net,
    troublesome_net,
)
from widemargin import ApproximateEMR, ExactEMR, InputError, StochasticEMR, effective_margin
from widemargin.attacks.threat import make_threat
from widemargin.gradients.jacobian import logit_jacobian
from widemargin.gradients.norms import DualNorm, Misalignment
from widemargin.gradients.sweeps.tape import EagerSweeps, Tape
from widemargin.regularizers import GradAlign, InputGradient
from widemargin.regularizers.emr import orthonormal_directions, random_classes

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
    torch.testing.assert_close(jacobian.flatten(2), jacobian_slowly(model, x), rtol=1e-11, atol=1e-13)


def test_jacobian_by_finite_differences() -> None:
    model, x = smooth_net(), images(2, 1, 3, 5)
    rows = jacobian_slowly(model, x)
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


@pytest.mark.parametrize(
    ("num_classes", "at_once", "chunks"),
    [(7, 7, [7]), (7, 3, [3, 3, 1]), (40, 16, [16, 16, 8]), (40, 1, [1] * 40)],
)
def test_exact_never_has_more_classes_in_flight(
    num_classes: int, at_once: int, chunks: list[int], cotangent_shapes: list[tuple[int, ...]]
) -> None:
    """Nor does it keep their adjoints: those of several chunks are computed again for the gradient."""
    penalty = ExactEMR(classes_at_once=at_once)(relu_net(num_classes), images(2, 1, 3, 5))
    forward = list(cotangent_shapes)
    penalty.sum().backward()
    assert forward == [(count, 2, num_classes) for count in chunks]
    assert cotangent_shapes == (forward if len(chunks) == 1 else 2 * forward)


@pytest.mark.parametrize("num_classes", [3, 1000])
@pytest.mark.parametrize(
    ("emr", "count"), [(ApproximateEMR(), 1), (StochasticEMR(projections=1), 1), (StochasticEMR(projections=3), 3)]
)
def test_the_other_forms_cost_the_same_for_any_number_of_classes(
    num_classes: int, emr: ApproximateEMR | StochasticEMR, count: int, cotangent_shapes: list[tuple[int, ...]]
) -> None:
    emr(relu_net(num_classes), images(2, 1, 3, 5))
    assert cotangent_shapes == [(count, 2, num_classes)]


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


# Approximate


@pytest.mark.parametrize("net", CASES)
@pytest.mark.parametrize("temperature", [0.01, 1.0, 40.0])
def test_approximate(net: str, temperature: float) -> None:
    model, x = case(net)
    expected = approximate_emr_slowly(model, x, temperature)
    check_against(model, ApproximateEMR(temperature=temperature)(model, x), expected)


def test_approximate_limits_of_the_temperature() -> None:
    model, x = case("smooth")
    rows = jacobian_slowly(model, x)
    predicted = rows[torch.arange(3), model(x).argmax(1)]
    cold, hot = (ApproximateEMR(temperature=t).value(model, x) for t in (1e-4, 1e9))
    torch.testing.assert_close(cold, predicted.square().sum(1))
    torch.testing.assert_close(hot, rows.mean(1).square().sum(1))


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


# In the norm dual to the threat's


NORMS = [("l2", True), ("l2", False), ("linf", True), ("linf", False)]


def length_slowly(g: Tensor, norm: str, squared: bool) -> Tensor:
    """(..., D) -> (...)."""
    length = g.abs().sum(-1) if norm == "linf" else g.square().sum(-1).sqrt()
    return length**2 if squared else length


def rows_with_graph(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (B, K) and input gradients (B, K, D), one sample and one class at a time."""
    pairs = [jacobian_rows(model, sample, create_graph=True) for sample in x.split(1)]
    logits, rows = (torch.stack(each) for each in zip(*pairs, strict=True))
    return logits, rows


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("norm", "squared"), NORMS)
def test_a_norm_and_its_slope(norm: Any, squared: bool, dtype: torch.dtype) -> None:
    drawn = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    drawn[1, 2] = 0.0  # a gradient that has vanished
    g = drawn.double().requires_grad_()
    expected = torch.stack(
        [sum(length_slowly(part, norm, squared) for part in of_sample.flatten(1)) for of_sample in g.transpose(0, 1)]
    )
    dual, weights = DualNorm(norm=norm, squared=squared), SAMPLE_WEIGHTS.to(expected.dtype)
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 2e-2, "atol": 1e-2}
    torch.testing.assert_close(dual.total(drawn).double(), expected.detach(), **tolerance)
    (slope,) = torch.autograd.grad((expected * weights).sum(), g)
    found = dual.slope(drawn, weights.to(torch.promote_types(dtype, torch.float32)))
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), slope.nan_to_num(0.0), **tolerance)


@pytest.mark.parametrize("hooked", [False, True], ids=["sweeps", "double backward"])
@pytest.mark.parametrize("net", CASES)
@pytest.mark.parametrize(
    ("penalty", "squared"),
    [
        (ExactEMR(norm="linf"), True),
        (ExactEMR(norm="linf", classes_at_once=2), True),
        (ApproximateEMR(norm="linf", temperature=0.7), True),
        (InputGradient(norm="linf"), True),
        (InputGradient(norm="linf", squared=False, label_smoothing=0.2), False),
        (InputGradient(norm="l2", squared=False), False),
    ],
    ids=str,
)
def test_dual_norms(penalty: Any, squared: bool, net: str, hooked: bool) -> None:
    model, x = case(net)
    logits, rows = rows_with_graph(model, x)
    num_classes = logits.shape[1]
    y = labels(3, num_classes)
    if isinstance(penalty, ExactEMR):
        expected = length_slowly(rows, "linf", True).sum(1)
    elif isinstance(penalty, ApproximateEMR):
        vectors = torch.softmax(logits.detach() / 0.7, 1)
        expected = length_slowly(torch.einsum("bk,bkd->bd", vectors, rows), "linf", True)
    else:
        smooth = penalty.label_smoothing
        target = (1 - smooth) * nn.functional.one_hot(y, num_classes).double() + smooth / num_classes
        gradients = torch.einsum("bk,bkd->bd", torch.softmax(logits, 1) - target, rows)
        expected = length_slowly(gradients, penalty.norm, squared)
    if hooked:
        model.register_full_backward_hook(lambda *_: None)
    check_against(model, penalty(model, x, y), expected)
    torch.testing.assert_close(penalty.value(model, x, y), expected.detach(), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("net", CASES)
def test_stochastic_of_linf_with_all_classes_is_exact(net: str) -> None:
    model, x = case(net)
    num_classes = model(x).shape[1]
    expected = length_slowly(rows_with_graph(model, x)[1], "linf", True).sum(1)
    check_against(model, StochasticEMR(projections=num_classes, norm="linf")(model, x), expected)


@pytest.mark.parametrize("projections", [1, 3])
def test_stochastic_of_linf_is_unbiased(projections: int) -> None:
    model, x, draws = smooth_net(), images(2, 1, 3, 5), 4000
    exact = ExactEMR(norm="linf").value(model, x)
    estimates = StochasticEMR(projections=projections, seed=5, norm="linf").value(model, x.repeat(draws, 1, 1, 1))
    estimates = estimates.view(draws, 2)
    errors = estimates.std(0) / math.sqrt(draws)
    assert (errors < 0.05 * exact).all()
    assert ((estimates.mean(0) - exact).abs() < 4 * errors).all()


def test_stochastic_of_linf_where_turned_directions_would_be_biased() -> None:
    """J = 1: directions (cos a, sin a) have 2 (|cos a| + |sin a|)^2, 3.27 in the mean; the classes' own have 2."""
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(2, 2, bias=False)).double(), images(50, 1, 1, 2)
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(2))
    estimates = StochasticEMR(seed=0, norm="linf").value(model, x)
    torch.testing.assert_close(estimates, torch.full((50,), 2.0, dtype=torch.float64))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_random_classes_differ_and_are_as_likely(count: int) -> None:
    drawn = random_classes(torch.zeros(6000, 5, dtype=torch.float64), count, torch.Generator().manual_seed(0))
    assert drawn.shape == (count, 6000, 5)
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(drawn.sum(2), torch.ones(count, 6000, dtype=torch.float64))
    assert int(drawn.sum(0).max()) == 1
    torch.testing.assert_close(drawn.mean((0, 1)), torch.full((5,), 0.2, dtype=torch.float64), rtol=0, atol=0.02)


def test_an_l1_norm_of_a_dead_image_has_a_gradient_of_zeros() -> None:
    model, x = relu_net(), images(2, 1, 3, 5)
    with torch.no_grad():
        model[1].bias.fill_(-100.0)  # no unit is active
    for penalty in (ExactEMR(norm="linf"), InputGradient(norm="linf", squared=False), InputGradient(squared=False)):
        for gradient in parameter_gradients(model, penalty(model, x, labels(2, 4)).sum()).values():
            assert torch.equal(gradient, torch.zeros_like(gradient))


# Of the cross-entropy


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
        (lambda: ExactEMR(norm="l1"), r"ExactEMR.norm must be one of 'linf', 'l2', got 'l1'"),
        (lambda: InputGradient(norm="l1"), r"InputGradient.norm must be one of 'linf', 'l2', got 'l1'"),
        (lambda: InputGradient(label_smoothing=1.0), r"InputGradient.label_smoothing must be a number in \[0, 1\)"),
        (lambda: ExactEMR(classes_at_once=0), r"ExactEMR.classes_at_once must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_settings_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    "emr",
    [ExactEMR(), ApproximateEMR(), StochasticEMR(seed=0), ExactEMR(norm="linf"), StochasticEMR(seed=0, norm="linf")],
    ids=lambda emr: f"{type(emr).__name__} {emr.norm}",
)
class TestCommonPromises:
    def test_labels_are_not_used(self, emr: ExactEMR | ApproximateEMR | StochasticEMR) -> None:
        model, x = relu_net(), images(3, 1, 3, 5)
        generators = [torch.Generator().manual_seed(0) for _ in range(2)]
        with_labels = emr(model, x, labels(3, 4), generator=generators[0])
        assert torch.equal(with_labels, emr(model, x, generator=generators[1]))

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


# GradAlign


def misalignment_slowly(model: nn.Module, x: Tensor, near: Tensor, y: Tensor) -> Tensor:
    """(B,): image by image, 1 - cos of the gradients of the cross-entropy at an image, held fixed, and near it."""
    found = []
    with plain_evaluation(model):
        for image, other, label in zip(x, near, y, strict=True):
            gradients = []
            for point in (image[None], other[None]):
                leaf = point.clone().requires_grad_(True)
                loss = -torch.log_softmax(model(leaf), dim=1)[0, label]
                gradients.append(torch.autograd.grad(loss, leaf, create_graph=True)[0].flatten())
            here, there = gradients[0].detach(), gradients[1]
            found.append(1 - (here @ there) / (here @ here).sqrt() / (there @ there).sqrt())
    return torch.stack(found)


def point_near(x: Tensor, eps: float, norm: str) -> Tensor:
    noise = make_threat(norm, eps).random(x, torch.Generator().manual_seed(4))
    return (x + noise).clamp(0, 1)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("net", CASES)
def test_grad_align(net: str, norm: Any) -> None:
    model, x = case(net)
    eps = 0.3 if norm == "linf" else 2.0
    y, align = labels(3, 5 if net == "batch-norm" else 4), GradAlign(eps=eps, norm=norm)
    expected = misalignment_slowly(model, x, point_near(x, eps, norm), y)
    assert expected.max() > 1e-4
    check_against(model, align(model, x, y, generator=torch.Generator().manual_seed(4)), expected)
    value = align.value(model, x, y, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(value, expected.detach(), rtol=1e-10, atol=1e-13)


def test_grad_align_where_sweeps_cannot_go() -> None:
    """By double backward: the model begins with a function of its own, which no tape knows."""

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 3 * x**2 * gradient

    model, x, y = Network(lambda self, x: self.net(Cube.apply(x)), net=smooth_net()), images(3, 1, 3, 5), labels(3, 4)
    expected = misalignment_slowly(model, x, point_near(x, 0.3, "linf"), y)
    check_against(model, GradAlign(eps=0.3)(model, x, y, generator=torch.Generator().manual_seed(4)), expected)


def test_an_image_without_a_gradient_has_no_angle() -> None:
    """Nor has one whose neighbor has none: both count 0 and push nothing."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    with torch.no_grad():
        model[1].weight.copy_(torch.eye(4))
        model[1].bias.fill_(-0.5)
    x = torch.tensor([[0.1, 0.2, 0.1, 0.0], [0.9, 0.7, 0.8, 0.6]], dtype=torch.float64).view(2, 1, 2, 2)
    found = GradAlign(eps=0.05)(model, x, torch.tensor([0, 1]))
    assert found[0] == 0
    assert found[1] >= 0
    found[0].backward()
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())


def test_a_linear_model_is_aligned_and_a_kink_is_not() -> None:
    linear = nn.Sequential(nn.Flatten(), nn.Linear(4, 2)).double()
    assert GradAlign(eps=0.5)(linear, images(5, 1, 2, 2), labels(5, 2)).abs().max() < 1e-12
    g = torch.tensor([[[1.0, 0.0], [3.0, 4.0], [-2.0, 0.0]]], dtype=torch.float64)
    other = torch.tensor([[0.0, 2.0], [3.0, 4.0], [1.0, 0.0]], dtype=torch.float64)
    assert Misalignment(reference=other).total(g).tolist() == pytest.approx([1.0, 0.0, 2.0])


def test_the_slope_of_misalignment_is_its_gradient() -> None:
    g, weights = images(2, 3, 6).mul(2).sub(1).requires_grad_(True), SAMPLE_WEIGHTS
    measure = Misalignment(reference=images(3, 6, seed=7) - 0.5)
    (expected,) = torch.autograd.grad((measure.total(g) * weights).sum(), g)
    torch.testing.assert_close(measure.slope(g.detach(), weights), expected, rtol=1e-12, atol=1e-14)


def test_grad_align_needs_labels_and_a_radius() -> None:
    with pytest.raises(InputError, match="GradAlign: labels are missing; call it as regularizer"):
        GradAlign(eps=0.1)(smooth_net(), images(2, 1, 3, 5))
    with pytest.raises(InputError, match="did you mean 8/255"):
        GradAlign(eps=8)
