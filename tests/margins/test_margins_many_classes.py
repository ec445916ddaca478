"""Margins of hundreds of classes: through the last layer and by candidates, against the slow way; what they cost."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from oracles import effective_margin_slowly, images, labels, relu_net, seeded
from widemargin import InputError, effective_margin
from widemargin.gradients.jacobian import logits_and_leaf
from widemargin.gradients.slopes import DIRECTIONS, bound_factors, last_layer, slope_bounds, slopes_of_all, slopes_to
from widemargin.margins import MOST_CANDIDATES, margins_by_candidates

NORMS = ["l2", "linf"]


class Scaled(nn.Module):
    """Its logits are no linear layer's output, so only classes can be looked at one by one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return 1.5 * self.model(x)


def wide_net(num_classes: int, features: int = 40) -> nn.Module:
    parts = nn.Flatten(), nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, features), nn.ReLU()
    return seeded(0, lambda: nn.Sequential(*parts, nn.Linear(features, num_classes)).apply(grown))


def grown(module: nn.Module) -> None:
    """A spread of the rows, so that the nearest class by logit is often not the nearest."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5)
        with torch.no_grad():
            module.weight.mul_(torch.linspace(0.5, 1.5, len(module.weight)).unsqueeze(1))


def case(num_classes: int, batch: int = 6) -> tuple[nn.Module, Tensor, Tensor]:
    """Half of the images are classified right."""
    model, x = Scaled(wide_net(num_classes)), images(batch, 3, 4, 4)
    y = torch.where(torch.arange(batch) % 2 == 0, model(x).argmax(1), labels(batch, num_classes))
    return model, x, y


@contextmanager
def counted_passes() -> Iterator[list[tuple[int, int]]]:
    """(vectors, images) of every backward pass that is taken inside."""
    found: list[tuple[int, int]] = []
    usual = torch.autograd.grad

    def counting(outputs, inputs, grad_outputs=None, *args, **options):
        batched = options.get("is_grads_batched", False)
        vectors = grad_outputs.shape if batched else (1, *grad_outputs.shape)
        found.append((vectors[0], vectors[1]))
        return usual(outputs, inputs, grad_outputs, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.autograd, "grad", counting)
        yield found


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("num_classes", "features"), [(300, 40), (1000, 7), (60, 59)])
def test_through_the_last_layer_it_is_the_same(norm: str, num_classes: int, features: int) -> None:
    model, x, y = wide_net(num_classes, features), images(5, 3, 4, 4), labels(5, num_classes)
    expected = effective_margin_slowly(model, x, y, norm)
    for at_once in (1, 16, 200):
        found = effective_margin(model, x, y, norm, classes_at_once=at_once)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_through_the_last_layer_a_feature_costs_what_a_class_did() -> None:
    model, x, y = wide_net(1000), images(4, 3, 4, 4), labels(4, 1000)
    with counted_passes() as passes:
        effective_margin(model, x, y)
    assert sum(vectors * batch for vectors, batch in passes) == 40 * 4
    with counted_passes() as passes:
        effective_margin(Scaled(model), x, y)
    assert sum(vectors * batch for vectors, batch in passes) == 1001 * 4


@pytest.mark.parametrize("bias", [True, False])
def test_which_last_layers_are_seen(bias: bool) -> None:
    head = nn.Linear(11, 30, bias=bias)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 11), nn.ReLU(), head)
    layer = last_layer(logits_and_leaf(model, torch.rand(3, 12), owner="test")[0])
    assert layer is not None
    assert torch.equal(layer.weight, head.weight)
    for other in (Scaled(model), nn.Sequential(model, nn.ReLU())):
        assert last_layer(logits_and_leaf(other, torch.rand(3, 12), owner="test")[0]) is None
    constant = nn.Linear(12, 30)
    constant.forward = lambda x: torch.addmm(constant.bias, x, constant.weight.T, alpha=2.0)  # type: ignore[method-assign]
    assert last_layer(logits_and_leaf(constant, torch.rand(3, 12), owner="test")[0]) is None


@pytest.mark.parametrize("norm", NORMS)
def test_slopes_to_some_classes_are_those_of_all(norm: str) -> None:
    model, x, y = case(300)
    logits, leaf = logits_and_leaf(model, x, owner="test")
    classes = torch.stack([torch.randperm(300, generator=torch.Generator().manual_seed(i))[:20] for i in range(len(x))])
    some = slopes_to(logits, leaf, y, classes, norm, at_once=7)
    torch.testing.assert_close(some, slopes_of_all(logits, leaf, y, norm, at_once=16).gather(1, classes))


@pytest.mark.parametrize("norm", NORMS)
def test_bounds_hold_every_slope_and_are_no_wider_than_said(norm: str) -> None:
    model, x, y = case(500, batch=20)
    logits, leaf = logits_and_leaf(model, x, owner="test")
    low, high = slope_bounds(logits, leaf, y, norm, at_once=16)
    true = slopes_of_all(logits, leaf, y, norm, at_once=16)
    assert ((low <= true) & (true <= high)).all()
    others = true > 0
    assert (high[others] / true[others]).max() < {"l2": 2.2, "linf": 4.5}[norm]
    assert (high[others] / true[others]).median() < {"l2": 1.7, "linf": 3.0}[norm]


@pytest.mark.parametrize("norm", NORMS)
def test_the_bounds_fail_as_rarely_as_they_promise(norm: str) -> None:
    """For a failure rate that can be seen: estimates drawn 20,000 times, the true value is 1."""
    count, failure = 16, 0.02
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(20_000, count, generator=generator, dtype=torch.float64)
    if norm == "linf":
        draws = draws / torch.randn(20_000, count, generator=generator, dtype=torch.float64)
        estimates = draws.abs().log().mean(1).exp()
    else:
        estimates = draws.square().mean(1).sqrt()
    low, high = bound_factors(norm, count, failure)
    for missed in ((estimates * low > 1), (estimates * high < 1)):
        assert 0 < missed.double().mean() <= failure  # Chernoff's bound is no equality


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("num_classes", [300, 1000])
def test_candidates_are_an_upper_bound_and_exact_where_proven(norm: str, num_classes: int) -> None:
    model, x, y = case(num_classes, batch=24)
    true = effective_margin(model, x, y, norm)
    found = margins_by_candidates(model, x, y, norm, candidates=10)
    assert (found.margins >= true * (1 - 1e-9 * true.sign())).all()
    torch.testing.assert_close(found.margins[found.proven], true[found.proven], rtol=1e-9, atol=0)
    assert ((found.margins < 0) == (true < 0)).all()
    right = true > 0
    assert found.proven[right].double().mean() > {"l2": 0.5, "linf": 0.2}[norm]
    torch.testing.assert_close(effective_margin(model, x, y, norm, candidates=10), found.margins, rtol=0, atol=0)


def test_the_nearest_by_logit_alone_are_wrong_here_and_the_search_goes_on() -> None:
    """Else the extension could be left out and nothing above would notice."""
    model, x, y = case(1000, batch=24)
    found = margins_by_candidates(model, x, y, candidates=2)
    first = model(x).scatter(1, y.unsqueeze(1), -math.inf).topk(2).indices
    extended = found.margins < found.by_class.gather(1, first).amin(1)
    assert (extended & found.proven).any()
    assert (found.by_class.isfinite().sum(1) <= 2 * MOST_CANDIDATES).all()


def test_what_candidates_cost_does_not_grow_with_the_classes() -> None:
    costs = {}
    for num_classes in (400, 4000):
        model, x, y = case(num_classes, batch=4)
        with counted_passes() as passes:
            margins_by_candidates(model, x, y, candidates=5)
        costs[num_classes] = sum(vectors * batch for vectors, batch in passes)
    most = (1 + DIRECTIONS + 5 * MOST_CANDIDATES) * 4
    assert max(costs.values()) <= most


def test_all_classes_are_taken_where_that_is_no_more_work() -> None:
    x = images(4, 3, 4, 4)
    for model, num_classes in ((Scaled(wide_net(120)), 120), (wide_net(1000), 1000)):
        y = labels(4, num_classes)
        found = margins_by_candidates(model, x, y)
        assert found.proven.all()
        assert (found.by_class.isfinite().sum(1) == num_classes - 1).all()
        torch.testing.assert_close(found.margins, effective_margin_slowly(model, x, y, "l2"), rtol=1e-9, atol=1e-12)


class LosesTheGraph(torch.autograd.Function):
    """Right input gradients whose own graph is lost, as hand-written backward passes have them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        pass

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return 2 * gradient.detach()


class Graphless(nn.Module):
    def __init__(self, model: nn.Module, once: bool) -> None:
        super().__init__()
        self.model, self.once = model, once

    def forward(self, x: Tensor) -> Tensor:
        if self.once:
            return self.model(Once.apply(x))
        return self.model(LosesTheGraph.apply(x))


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return 2 * gradient


@pytest.mark.parametrize("once", [True, False], ids=["refuses a second derivative", "loses it silently"])
def test_without_a_second_derivative_nothing_is_proven(once: bool) -> None:
    model, x, y = case(300)
    model = Graphless(model, once)
    found = margins_by_candidates(model, x, y)
    assert not found.proven.any()
    assert (found.margins >= effective_margin(model, x, y) - 1e-12).all()


@pytest.mark.parametrize("norm", NORMS)
def test_one_image_and_many_candidates(norm: str) -> None:
    model, x, y = case(300, batch=1)
    true = effective_margin(model, x, y, norm)
    for candidates in (200, 298, 299, 5000):
        found = margins_by_candidates(model, x, y, norm, candidates=candidates)
        torch.testing.assert_close(found.margins[found.proven], true[found.proven])
    assert found.proven.all()


def test_a_bad_number_of_candidates_is_refused() -> None:
    with pytest.raises(InputError, match="effective_margin: candidates must be a whole number of at least 1, got 0"):
        effective_margin(relu_net(), images(2, 1, 3, 5), labels(2, 4), candidates=0)
