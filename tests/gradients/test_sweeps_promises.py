"""What a penalty promises as a node of an autograd graph: errors, repeated backward passes, cost, memory."""

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from sweep_checks import PENALTIES, Apply, gradients_of, is_recorded, net, penalty_of
from torch import Tensor, nn

from oracles import Network, assert_all_close, images, relu_net, seeded, smooth_net
from widemargin import InputError
from widemargin.gradients.penalties import by_double_backward, by_sweeps
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
        first, second = (gradients_of(model, penalty) for _ in range(2))
        penalty.sum().backward(retain_graph=True)
        assert_all_close(second, first, rtol=0, atol=0)
        assert_all_close(gradients_of(model, penalty), first, rtol=0, atol=0)

    def test_it_cannot_be_differentiated_again(self, name: str, kind: str) -> None:
        """Also where the rest of the loss can, which would hide that the penalty is missing."""
        model, x = NETS[kind](num_classes=3), images(*X)
        loss = model(x).square().mean() + penalty_of(name, model, x).mean()
        with pytest.raises(InputError, match="create_graph=True"):
            torch.autograd.grad(loss, [model[1].weight], create_graph=True)


def test_buffers_may_change() -> None:
    """As the statistics of batch norm do when the training pass comes between."""
    mean, kernel = torch.full((5,), 0.3).double(), torch.rand(6, 6).double()

    def shifted(self: Network, x: Tensor) -> Tensor:
        h = torch.tanh(self.first((x - self.mean.view(1, 5)) / self.mean))
        return self.last(nn.functional.linear(h, self.kernel))

    def make() -> nn.Module:
        buffers = {"mean": nn.Buffer(mean.clone()), "kernel": nn.Buffer(kernel.clone())}
        return Network(shifted, first=nn.Linear(5, 6), last=nn.Linear(6, 3), **buffers)

    model, x = seeded(0, make), images(3, 5)
    assert is_recorded(model, x)
    for name in PENALTIES:
        right = gradients_of(model, penalty_of(name, model, x))
        penalty = penalty_of(name, model, x)
        model.mean.mul_(2)
        model.kernel.mul_(2)
        changed = gradients_of(model, penalty)
        model.mean.copy_(mean)
        model.kernel.copy_(kernel)
        assert all(torch.equal(changed[key], right[key]) for key in right)


def test_weights_changed_inside_the_forward_pass_are_noticed() -> None:
    def restless(self: Network, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        with torch.no_grad():
            self.first.weight.mul_(0.5)
        return self.last(h)

    model = Network(restless, first=nn.Linear(5, 6), last=nn.Linear(6, 3)).double()
    assert not is_recorded(model, images(3, 5))


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
    assert_all_close(gradients_of(model, penalty), gradients_of(model, expected), rtol=1e-9, atol=1e-12)


def watched(model: nn.Module, index: int) -> list["weakref.ref[Tensor]"]:
    """References to the results of a layer."""
    found: list[weakref.ref[Tensor]] = []
    model[index].register_forward_hook(lambda _module, _inputs, output: found.append(weakref.ref(output)))
    return found


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("end", ["deleted", "differentiated"])
@pytest.mark.usefixtures("no_collector")
def test_nothing_stays_of_a_penalty(name: str, end: str) -> None:
    model = smooth_net(num_classes=3)
    results = watched(model, 2)
    penalty = penalty_of(name, model, images(*X)).sum()
    assert [result() is not None for result in results] == [True]  # so the measure can tell
    if end == "deleted":
        del penalty
    else:
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
