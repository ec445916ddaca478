"""Whatever the sweeps cannot account for goes to double backward and comes out right."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sweep_checks import (
    PENALTIES,
    Apply,
    check,
    check_layers,
    gradients_of,
    is_recorded,
    net,
    penalties_slowly,
    penalty_of,
)
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.utils import parametrizations

from oracles import (
    Network,
    assert_all_close,
    effective_margin_slowly,
    images,
    jacobian_slowly,
    labels,
    relu_net,
    seeded,
    smooth_net,
)
from widemargin import ApproximateEMR, ExactEMR, InputError, effective_margin
from widemargin.gradients.jacobian import logit_jacobian


def made_up(forward: Callable[[Any, Tensor], Tensor]) -> type[Function]:
    """An autograd function whose backward is not the derivative of its forward: three times the gradient."""

    class MadeUp(Function):
        @staticmethod
        def backward(_ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            return 3 * gradient

    MadeUp.forward = staticmethod(forward)
    return MadeUp


def _dirty(ctx: Any, h: Tensor) -> Tensor:
    ctx.mark_dirty(h)
    return h.mul_(2)


def _inner_graph(_ctx: Any, h: Tensor) -> Tensor:
    with torch.enable_grad():
        return torch.tanh(h.detach()).detach()


CUSTOM: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "sign": lambda _, h: h.sign(),
    "twice": lambda _, h: h * 2,
    "view": lambda _, h: h.view_as(h),
    "itself": lambda _, h: h,
    "dirty": _dirty,
    "numpy": lambda _, h: torch.tensor(h.detach().numpy() * 2),
    "numbers": lambda _, h: torch.tensor(h.tolist(), dtype=h.dtype),
    "inner graph": _inner_graph,
}


@pytest.mark.parametrize("name", CUSTOM)
def test_custom_autograd_function(name: str) -> None:
    function = made_up(CUSTOM[name])
    activation = lambda h: function.apply(h + 0) + h  # noqa: E731
    check_layers(lambda: nn.Linear(5, 6), nn.Tanh, lambda: Apply(activation), nn.Tanh, shape=(5,), recorded=False)


def stop(h: Tensor) -> Tensor:
    with torch.no_grad():
        return h * 2


def hooked(h: Tensor) -> Tensor:
    h = h * 1
    if h.requires_grad:
        h.register_hook(lambda gradient: 2 * gradient)
    return h


def with_a_hook(h: Tensor, s: Tensor) -> Tensor:
    scale = s.exp()
    if scale.requires_grad:
        scale.register_hook(lambda gradient: 2 * gradient)
    return h * scale


OUTSIDE = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)

FUNCTIONS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "a tensor from a closure": (lambda h: h * OUTSIDE.to(h.dtype), ()),
    "a detached parameter": (lambda h, s: h * s.detach() + h * s, ((6,),)),
    "under no_grad": (lambda h: h * stop(h), ()),
    "detached": (lambda h: h * h.detach(), ()),
    "straight through": (lambda h: h + (h.sign() - h).detach(), ()),
    "data": (lambda h: h * h.data, ()),
    "unknown operator": (lambda h: h.cumsum(1), ()),
    "several results": (lambda h: h.topk(3, dim=1)[0], ()),
    "a hook on what a parameter became": (with_a_hook, ((6,),)),
    "something of a parameter that a step changes": (lambda h, s: h * (s + 1).mul_(2), ((6,),)),
    "maximum with its place": (lambda h: h.max(1, keepdim=True).values, ()),
    "pool with places": (lambda h: F.max_pool1d(h, 2, return_indices=True)[0], ()),
    "vmap": (lambda h: torch.vmap(torch.relu)(h), ()),
    "other namespace": (lambda h: torch.ops.aten.tanh(h), ()),
    "hook on an activation": (hooked, ()),
    "relu by name": (lambda h: torch.relu(input=torch.sinc(h)), ()),
    "mixed by fourier": (lambda h: h + torch.fft.fft(h).real, ()),
    "filtered": (lambda h: h + torch.fft.irfft(torch.fft.rfft(h) * 0.5, n=6), ()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    function, sizes = FUNCTIONS[name]
    layers = [lambda: nn.Linear(5, 6), lambda: Apply(function, *sizes), nn.Tanh]
    check_layers(*layers, shape=(5,), recorded=False)


def triangular(h: Tensor, p: Tensor) -> Tensor:
    weight = torch.zeros(8, 8, dtype=h.dtype)
    rows, columns = torch.tril_indices(8, 8)
    weight[rows, columns] = p
    return F.relu(F.linear(h, weight))


def scaled_half(h: Tensor, g: Tensor) -> Tensor:
    scale = torch.ones(8, dtype=h.dtype)
    scale[:4] *= g
    return h * scale


def added_in_place(h: Tensor) -> Tensor:
    total = torch.zeros_like(h, requires_grad=False)
    total += torch.sin(h)
    return h + total


def written_into_a_slice(h: Tensor) -> Tensor:
    total = torch.zeros(len(h), 8, dtype=h.dtype)
    total[:, :4] = torch.sin(h[:, :4])
    return h + total


def experts(h: Tensor, g: Tensor) -> Tensor:
    out = torch.zeros(len(h), 8, dtype=h.dtype)
    chosen = torch.arange(len(h))
    out.index_add_(0, chosen, F.linear(h[chosen], h.new_zeros(8, 8) + g.sum()))
    return h + out


def into_an_out(h: Tensor, g: Tensor) -> Tensor:
    scale = torch.ones(4, dtype=h.dtype)
    with torch.no_grad():
        torch.mul(g, 2.0, out=scale)  # without a graph: a constant for autograd too
    return h * torch.cat([scale, scale])


FILLED: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "a triangle": (triangular, ((36,),)),
    "half a scale": (scaled_half, ((4,),)),
    "added in place": (added_in_place, ()),
    "written into a slice": (written_into_a_slice, ()),
    "experts": (experts, ((4,),)),
    "into an out": (into_an_out, ((4,),)),
}
"""Tensors that a forward makes and then fills: never taken for what they are not."""


@pytest.mark.parametrize("name", FILLED)
def test_filled_tensors(name: str) -> None:
    function, sizes = FILLED[name]
    check_layers(lambda: nn.Linear(5, 8), lambda: Apply(function, *sizes), shape=(5,), recorded=name == "into an out")


def signed_root(h: Tensor) -> Tensor:
    return torch.sqrt(F.relu(h)) - torch.sqrt(F.relu(-h))


def masked(h: Tensor) -> Tensor:
    return F.relu(h.masked_fill(torch.arange(8) > 5, -torch.inf))


@pytest.mark.parametrize("odd", [signed_root, masked])
def test_a_relu_stops_an_infinity(odd: Callable[[Tensor], Tensor]) -> None:
    model, x = seeded(0, lambda: net(nn.Linear(5, 8), Apply(odd), shape=(5,))), images(3, 5)
    rows = jacobian_slowly(model, x)
    assert rows.isfinite().all()
    torch.testing.assert_close(logit_jacobian(model, x), rows)
    expected = rows.square().sum((1, 2))
    torch.testing.assert_close(ExactEMR().value(model, x), expected)
    torch.testing.assert_close(ExactEMR()(model, x).detach(), expected)
    y = labels(3, 3)
    torch.testing.assert_close(effective_margin(model, x, y), effective_margin_slowly(model, x, y, "l2"))


def test_what_has_no_batched_second_derivative_goes_one_by_one() -> None:
    layers = [lambda: nn.Conv2d(1, 4, 2), lambda: nn.GroupNorm(2, 4), lambda: Apply(F.softsign)]
    check_layers(*layers, shape=(1, 3, 5), recorded=False)


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrization(wrap: Callable[[nn.Module], nn.Module]) -> None:
    check_layers(lambda: wrap(nn.Linear(5, 6)), nn.ReLU, shape=(5,))


def test_what_nobody_reads_does_not_matter() -> None:
    seen = []

    def watched(h: Tensor) -> Tensor:
        seen.append((h.detach().norm(), h.cumsum(1), h.tolist(), bool((h > 0).any())))
        return h

    check_layers(lambda: nn.Linear(5, 6), lambda: Apply(watched), nn.Tanh, shape=(5,))
    assert seen


def test_a_weight_that_depends_on_the_images() -> None:
    assert not is_recorded(nn.Sequential(nn.Linear(5, 6), Apply(lambda h: F.linear(h, h))), torch.rand(3, 5))


def test_constants_made_on_the_way() -> None:
    def plain(h: Tensor) -> Tensor:
        grid = torch.arange(6.0).to(h.dtype) / 15
        return h * grid + h.relu() * (grid + 1)

    def scaled(h: Tensor) -> Tensor:
        grid = torch.arange(6.0).to(h.dtype)
        grid = grid / grid.sum()
        first = h * grid
        grid.add_(1)  # after it was read
        return first + h * grid * (h > 0).to(h.dtype)

    def network(function: Callable[[Tensor], Tensor]) -> nn.Module:
        return seeded(0, lambda: net(nn.Linear(5, 6), Apply(function), shape=(5,)))

    check(network(scaled), images(3, 5), like=network(plain))


def test_hook_on_the_backward_pass_of_a_module() -> None:
    model = seeded(0, lambda: net(nn.Linear(5, 6), nn.Tanh(), shape=(5,)))
    model[0][1].register_full_backward_hook(lambda _module, gradients, _: (2 * gradients[0],))
    check(model, images(3, 5), recorded=False)


def test_forward_hook_that_changes_the_output() -> None:
    model = seeded(0, lambda: net(nn.Linear(5, 6), nn.Tanh(), shape=(5,)))
    plain = penalty_of("exact", model, images(3, 5))
    model[0][0].register_forward_hook(lambda _module, _inputs, output: output * 2)
    assert not torch.allclose(plain, penalty_of("exact", model, images(3, 5)))
    check(model, images(3, 5))


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda h: torch.mul(h, 2, out=torch.empty_like(h)), r"out=.* don't support automatic differentiation"),
        (lambda h: h * float(h.numpy().sum()), "Can't call numpy"),
    ],
)
def test_what_torch_refuses_is_refused_in_its_words(function: Callable[[Tensor], Tensor], says: str) -> None:
    model = seeded(0, lambda: nn.Sequential(nn.Linear(5, 6), Apply(function), nn.Linear(6, 3)))
    with pytest.raises(RuntimeError, match=says):
        penalty_of("exact", model, images(3, 5))


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("make", [smooth_net, relu_net])
def test_hooks_on_saved_tensors(name: str, make: Callable[[], nn.Module]) -> None:
    model, x = make(num_classes=3), images(3, 1, 3, 5)
    expected = gradients_of(model, penalties_slowly(model, x)[name])
    packed = []
    with saved_tensors_hooks(lambda tensor: packed.append(tensor.shape) or tensor, lambda tensor: tensor):
        gradients = gradients_of(model, penalty_of(name, model, x))
    assert packed
    assert_all_close(gradients, expected, rtol=1e-9, atol=1e-12)


def test_python_state_that_changes_between_calls() -> None:
    layers = nn.ModuleList([relu_net(3), smooth_net(3)])
    model, x = Network(lambda self, x: self.layers[self.turn](x), layers=layers), images(3, 1, 3, 5)
    for turn in (0, 1, 0):
        model.turn = turn
        check(model, x)


def test_scripted_part() -> None:
    model = seeded(0, lambda: net(nn.Linear(5, 6), nn.Tanh(), shape=(5,)))
    traced = torch.jit.trace(model[0], images(3, 5))
    whole = nn.Sequential(traced, *model[1:])
    check(whole, images(3, 5), recorded=False)


@pytest.mark.parametrize("name", PENALTIES)
def test_only_biases_of_a_piecewise_linear_model(name: str) -> None:
    """They move no input gradient; the error of the loss does see them."""
    model, x = relu_net(num_classes=3), images(3, 1, 3, 5)
    for key, parameter in model.named_parameters():
        parameter.requires_grad_(key.endswith("bias"))
    if not name.startswith("input gradient"):
        with pytest.raises(InputError, match="the penalty does not depend on the parameters"):
            penalty_of(name, model, x).sum().backward()
        return
    actual, expected = penalty_of(name, model, x), penalties_slowly(model, x)[name]
    assert_all_close(gradients_of(model, actual), gradients_of(model, expected), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("generated", [True, False])
def test_a_buffer_that_carries_a_gradient(generated: bool) -> None:
    """Weights that a part of the model makes and keeps as a buffer, or a buffer that is itself trained."""

    def make() -> nn.Module:
        parts = {"body": nn.Linear(5, 6), "generator": nn.Linear(4, 18), "weight": nn.Buffer(torch.randn(3, 6))}
        return Network(lambda self, x: F.linear(torch.relu(self.body(x)), self.weight), **parts)

    model, x = seeded(0, make), images(3, 5)
    ones = torch.ones(4, dtype=torch.float64)
    model.weight = model.generator(ones).view(3, 6) if generated else model.weight.requires_grad_(True)
    trained = model.generator.weight if generated else model.weight
    assert not is_recorded(model, x)
    for name, expected in penalties_slowly(model, x).items():
        found, right = (
            torch.autograd.grad(penalty.sum(), trained, retain_graph=True)[0]
            for penalty in (penalty_of(name, model, x), expected)
        )
        torch.testing.assert_close(found, right)


@pytest.mark.parametrize("name", PENALTIES)
def test_frozen_parameters_that_are_not_read_may_change(name: str) -> None:
    """A momentum encoder, say, which the next training pass moves."""

    follower = nn.Linear(3, 3).requires_grad_(False)
    model, x = Network(lambda self, x: self.net(x), net=relu_net(3), follower=follower), images(3, 1, 3, 5)
    expected = gradients_of(model, penalty_of(name, model, x))
    penalty = penalty_of(name, model, x)
    with torch.no_grad():
        model.follower.weight.mul_(0.5)
    assert_all_close(gradients_of(model, penalty), expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["scripted", "traced", "traced in training mode"])
def test_scripted_batch_norm_that_couples_samples_is_refused(kind: str) -> None:
    tracks = kind == "traced in training mode"
    parts = nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2, track_running_stats=tracks), nn.Flatten(), nn.Linear(16, 3)
    model, x = nn.Sequential(*parts).double().train(tracks), images(3, 1, 3, 5)
    made = torch.jit.script(model) if kind == "scripted" else torch.jit.trace(model, x, check_trace=False)
    before = {key: value.clone() for key, value in made.state_dict().items()}
    for whole in (made, nn.Sequential(made)):
        for use in (
            lambda whole=whole: ApproximateEMR()(whole, x),
            lambda whole=whole: ApproximateEMR().value(whole, x),
            lambda whole=whole: effective_margin(whole, x, labels(3, 3)),
        ):
            with pytest.raises(InputError, match="couples the samples"):
                use()
    assert all(torch.equal(value, before[key]) for key, value in made.state_dict().items())


def test_a_frozen_script_has_no_mode() -> None:
    model, x = seeded(0, lambda: net(nn.Linear(5, 6), nn.BatchNorm1d(6), shape=(5,))).eval(), images(3, 5)
    frozen = torch.jit.freeze(torch.jit.script(model))
    torch.testing.assert_close(ApproximateEMR().value(frozen, x), ApproximateEMR().value(model, x))


def test_a_scripted_module_around_a_batch_norm_is_none_itself() -> None:
    class MyBatchNorm1d(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(6)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x)

    model, x = seeded(0, lambda: net(nn.Linear(5, 6), MyBatchNorm1d(), shape=(5,))).eval(), images(3, 5)
    torch.testing.assert_close(ApproximateEMR().value(torch.jit.script(model), x), ApproximateEMR().value(model, x))
