"""What a penalty promises as a node of an autograd graph: errors, repeated backward passes, cost, memory."""

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from sweep_checks import PENALTIES, Apply, is_recorded, net, penalty_of, uneven_gradients
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from oracles import images, relu_net, seeded, smooth_net
from widemargin import ApproximateEMR, InputError
from widemargin.gradients.squared_norms import by_double_backward, by_sweeps
from widemargin.gradients.sweeps.tape import EagerSweeps

NETS = {"relu": relu_net, "smooth": smooth_net}
X = (3, 1, 3, 5)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Memory must go by reference counts alone."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("name", PENALTIES)
class TestBackward:
    def test_changed_weights_raise(self, name: str, kind: str) -> None:
        model, x = NETS[kind](num_classes=3), images(*X)
        model[1].weight.requires_grad_(False)
        for parameter in (model[1].weight, model[3].weight, model[3].bias):
            penalty = penalty_of(name, model, x)
            with torch.no_grad():
                parameter.mul_(0.5)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                penalty.sum().backward()

    def test_changed_images_raise(self, name: str, kind: str) -> None:
        model, x = NETS[kind](num_classes=3), images(*X)
        penalty = penalty_of(name, model, x)
        x.mul_(0.5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            penalty.sum().backward()

    def test_a_second_time_raises(self, name: str, kind: str) -> None:
        penalty = penalty_of(name, NETS[kind](num_classes=3), images(*X)).sum()
        penalty.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            penalty.backward()

    def test_a_second_time_with_the_graph_kept(self, name: str, kind: str) -> None:
        model = NETS[kind](num_classes=3)
        penalty = penalty_of(name, model, images(*X))
        first, second = (uneven_gradients(model, penalty) for _ in range(2))
        penalty.sum().backward(retain_graph=True)
        third = uneven_gradients(model, penalty)
        for key in first:
            assert torch.equal(first[key], second[key])
            assert torch.equal(first[key], third[key])

    def test_it_cannot_be_differentiated_again(self, name: str, kind: str) -> None:
        """Also where the rest of the loss can, which would hide that the penalty is missing."""
        model, x = NETS[kind](num_classes=3), images(*X)
        loss = model(x).square().mean() + penalty_of(name, model, x).mean()
        with pytest.raises(InputError, match="create_graph=True"):
            torch.autograd.grad(loss, [model[1].weight], create_graph=True)


def test_buffers_may_change() -> None:
    """As the statistics of batch norm do when the training pass comes between."""
    mean, kernel = torch.full((5,), 0.3).double(), torch.rand(6, 6).double()

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", mean.clone())
            self.register_buffer("kernel", kernel.clone())
            self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.first((x - self.mean.view(1, 5)) / self.mean))
            return self.last(nn.functional.linear(h, self.kernel))

    model, x = seeded(0, Shifted), images(3, 5)
    assert is_recorded(model, x)
    for name in PENALTIES:
        right = uneven_gradients(model, penalty_of(name, model, x))
        penalty = penalty_of(name, model, x)
        model.mean.mul_(2)
        model.kernel.mul_(2)
        changed = uneven_gradients(model, penalty)
        model.mean.copy_(mean)
        model.kernel.copy_(kernel)
        assert all(torch.equal(changed[key], right[key]) for key in right)


def test_weights_changed_inside_the_forward_pass_are_noticed() -> None:
    class Restless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.first(x))
            with torch.no_grad():
                self.first.weight.mul_(0.5)
            return self.last(h)

    assert not is_recorded(seeded(0, Restless), images(3, 5))


@pytest.mark.parametrize("at_once", [1, 16])
def test_several_cotangents_that_move_with_the_logits(at_once: int) -> None:
    model, x = smooth_net(num_classes=3), images(*X)

    def cotangents(logits: Tensor) -> Tensor:
        return torch.stack([torch.softmax(logits, 1), logits.square()])

    parameters = dict(model.named_parameters())
    stages = EagerSweeps(model, frozenset(parameters))
    penalty = by_sweeps(stages, parameters, x, cotangents, at_once=at_once, constant=False)
    expected = by_double_backward("test", model, x, cotangents, at_once=at_once, constant=False)
    torch.testing.assert_close(penalty, expected, rtol=1e-10, atol=1e-13)
    gradients = uneven_gradients(model, penalty)
    for key, right in uneven_gradients(model, expected).items():
        torch.testing.assert_close(gradients[key], right, rtol=1e-9, atol=1e-12)


def convolutional() -> nn.Module:
    stages = [
        layer
        for _ in range(5)
        for layer in (nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    ]
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *stages, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(32, 10))


def flops(run: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops())


def test_four_forwards_worth_of_work() -> None:
    model, x = convolutional().eval(), images(4, 3, 8, 8, dtype=torch.float32)
    forward = flops(lambda: model(x))
    backward = flops(lambda: ApproximateEMR()(model, x).sum().backward())
    assert 3.5 * forward < backward <= 4.1 * forward


def watched(model: nn.Module, index: int) -> list["weakref.ref[Tensor]"]:
    """References to the results of a layer."""
    found: list[weakref.ref[Tensor]] = []
    model[index].register_forward_hook(lambda _module, _inputs, output: found.append(weakref.ref(output)))
    return found


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.usefixtures("no_collector")
def test_nothing_stays_when_the_penalty_is_gone(name: str) -> None:
    model = smooth_net(num_classes=3)
    results = watched(model, 2)
    penalty = penalty_of(name, model, images(*X))
    assert [result() is not None for result in results] == [True]  # so the measure can tell
    del penalty
    assert [result() is None for result in results] == [True]


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.usefixtures("no_collector")
def test_nothing_stays_after_backward(name: str) -> None:
    model = smooth_net(num_classes=3)
    results = watched(model, 2)
    penalty = penalty_of(name, model, images(*X)).sum()
    penalty.backward()
    assert [result() is None for result in results] == [True]


@pytest.mark.usefixtures("no_collector")
def test_activations_of_a_piecewise_linear_model_are_not_kept() -> None:
    model = relu_net(num_classes=3)
    results = watched(model, 1) + watched(model, 2)
    penalty = penalty_of("exact", model, images(*X))
    assert [result() is None for result in results] == [True] * len(results)
    penalty.sum().backward()


@pytest.mark.usefixtures("no_collector")
def test_what_was_recorded_in_vain_is_forgotten() -> None:
    """A model left to double backward: one forward pass is alive, not two."""
    model = seeded(0, lambda: net(nn.Linear(5, 6), nn.Tanh(), Apply(lambda h: h.cumsum(1) * 1), shape=(5,)))
    results = watched(model[0], 1)
    penalty = penalty_of("exact", model, images(3, 5))
    assert len(results) == 2
    assert results[0]() is None
    del penalty
    assert results[1]() is None
