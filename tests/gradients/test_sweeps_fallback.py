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
    is_recorded,
    net,
    penalties_slowly,
    penalty_of,
    uneven_gradients,
)
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from oracles import effective_margin_slowly, images, labels, relu_net, seeded, smooth_net
from widemargin import ApproximateEMR, ExactEMR, InputError, effective_margin
from widemargin.gradients.jacobian import logit_jacobian, logit_jacobian_slowly


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


OUTSIDE = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)

FUNCTIONS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "a tensor from a closure": (lambda h: h * OUTSIDE.to(h.dtype), ()),
    "a weight from two": (lambda h, a, b: F.linear(h, a @ b), ((6, 2), (2, 6))),
    "a positive scale": (lambda h, s: h * s.exp(), ((6,),)),
    "a detached parameter": (lambda h, s: h * s.detach() + h * s, ((6,),)),
    "under no_grad": (lambda h: h * stop(h), ()),
    "detached": (lambda h: h * h.detach(), ()),
    "straight through": (lambda h: h + (h.sign() - h).detach(), ()),
    "data": (lambda h: h * h.data, ()),
    "unknown operator": (lambda h: h.cumsum(1), ()),
    "power": (lambda h: h**2, ()),
    "several results": (lambda h: h.chunk(2, dim=1)[0], ()),
    "maximum with its place": (lambda h: h.max(1, keepdim=True).values, ()),
    "pool with places": (lambda h: F.max_pool1d(h, 2, return_indices=True)[0], ()),
    "vmap": (lambda h: torch.vmap(torch.relu)(h), ()),
    "other namespace": (lambda h: torch.ops.aten.tanh(h), ()),
}


def _hooked(h: Tensor) -> Tensor:
    h = h * 1
    if h.requires_grad:
        h.register_hook(lambda gradient: 2 * gradient)
    return h


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


def mixed_by_fourier(h: Tensor) -> Tensor:
    return h + torch.fft.fft(h).real


def filtered(h: Tensor) -> Tensor:
    return h + torch.fft.irfft(torch.fft.rfft(h) * 0.5, n=8)


FILLED: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "a triangle": (triangular, ((36,),)),
    "half a scale": (scaled_half, ((4,),)),
    "added in place": (added_in_place, ()),
    "written into a slice": (written_into_a_slice, ()),
    "experts": (experts, ((4,),)),
    "into an out": (into_an_out, ((4,),)),
    "mixed by fourier": (mixed_by_fourier, ()),
    "filtered": (filtered, ()),
    "relu by name": (lambda h: torch.relu(input=torch.sinc(h)), ()),
}
"""Tensors that a forward makes and then fills, and complex numbers: never taken for what they are not."""


@pytest.mark.parametrize("name", FILLED)
def test_filled_tensors_and_complex_numbers(name: str) -> None:
    function, sizes = FILLED[name]
    check_layers(lambda: nn.Linear(5, 8), lambda: Apply(function, *sizes), shape=(5,), recorded=name == "into an out")


def signed_root(h: Tensor) -> Tensor:
    return torch.sqrt(F.relu(h)) - torch.sqrt(F.relu(-h))


def masked(h: Tensor) -> Tensor:
    return F.relu(h.masked_fill(torch.arange(8) > 5, -torch.inf))


@pytest.mark.parametrize("odd", [signed_root, masked])
def test_a_relu_stops_an_infinity(odd: Callable[[Tensor], Tensor]) -> None:
    model, x = seeded(0, lambda: net(nn.Linear(5, 8), Apply(odd), shape=(5,))), images(3, 5)
    rows = logit_jacobian_slowly(model, x)
    assert rows.isfinite().all()
    torch.testing.assert_close(logit_jacobian(model, x), rows)
    expected = rows.flatten(1).square().sum(1)
    torch.testing.assert_close(ExactEMR().value(model, x), expected)
    torch.testing.assert_close(ExactEMR()(model, x).detach(), expected)
    y = labels(3, 3)
    torch.testing.assert_close(effective_margin(model, x, y), effective_margin_slowly(model, x, y, "l2"))


def test_what_has_no_batched_second_derivative_goes_one_by_one() -> None:
    layers = [lambda: nn.Conv2d(1, 4, 2), lambda: nn.GroupNorm(2, 4), lambda: Apply(F.softsign)]
    check_layers(*layers, shape=(1, 3, 5), recorded=False)


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrization(wrap: Callable[[nn.Module], nn.Module]) -> None:
    check_layers(lambda: wrap(nn.Linear(5, 6)), nn.ReLU, shape=(5,), recorded=False)


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


def test_hook_on_an_activation() -> None:
    model = seeded(0, lambda: net(nn.Linear(5, 6), Apply(_hooked), nn.Tanh(), shape=(5,)))
    check(model, images(3, 5), recorded=False)


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


def test_result_written_into_a_tensor_is_refused_as_torch_does() -> None:
    def written(h: Tensor) -> Tensor:
        return torch.mul(h, 2, out=torch.empty_like(h))

    model = seeded(0, lambda: nn.Sequential(nn.Linear(5, 6), Apply(written), nn.Linear(6, 3)))
    with pytest.raises(RuntimeError, match=r"out=.* don't support automatic differentiation"):
        penalty_of("exact", model, images(3, 5))


def test_numpy_is_refused_as_torch_does() -> None:
    model = seeded(0, lambda: nn.Sequential(nn.Linear(5, 3), Apply(lambda h: h * float(h.numpy().sum()))))
    with pytest.raises(RuntimeError, match="Can't call numpy"):
        penalty_of("exact", model, images(3, 5))


def test_checkpoint() -> None:
    inner = seeded(0, lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh()))

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner, self.last = nn.Linear(5, 6), inner, nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(checkpoint(self.inner, self.first(x), use_reentrant=False))

    check(seeded(0, Checkpointed), images(3, 5))


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("make", [smooth_net, relu_net])
def test_hooks_on_saved_tensors(name: str, make: Callable[[], nn.Module]) -> None:
    model, x = make(num_classes=3), images(3, 1, 3, 5)
    expected = uneven_gradients(model, penalties_slowly(model, x)[name])
    packed = []
    with saved_tensors_hooks(lambda tensor: packed.append(tensor.shape) or tensor, lambda tensor: tensor):
        gradients = uneven_gradients(model, penalty_of(name, model, x))
    assert packed
    for key, right in expected.items():
        torch.testing.assert_close(gradients[key], right, rtol=1e-9, atol=1e-12)


def test_python_state_that_changes_between_calls() -> None:
    class Alternating(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([relu_net(3), smooth_net(3)])
            self.turn = 0

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[self.turn](x)

    model, x = Alternating(), images(3, 1, 3, 5)
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
    if name != "input gradient":
        with pytest.raises(InputError, match="the penalty does not depend on the parameters"):
            penalty_of(name, model, x).sum().backward()
        return
    actual, expected = penalty_of(name, model, x), penalties_slowly(model, x)[name]
    for key, right in uneven_gradients(model, expected).items():
        torch.testing.assert_close(uneven_gradients(model, actual)[key], right, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shown", [torch.inference_mode, torch.no_grad])
def test_model_without_gradients_is_refused(shown: Callable[[], Any]) -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            with shown():
                return self.layer(x)

    for emr in (ApproximateEMR(), ExactEMR()):
        with pytest.raises(InputError, match="logits carry no gradient"):
            emr(seeded(0, Hidden), images(3, 5))


def test_batch_norm_that_couples_samples_keeps_its_statistics() -> None:
    class Forced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.layer = nn.BatchNorm1d(5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            norm = self.norm
            return self.layer(F.batch_norm(x, norm.running_mean, norm.running_var, training=True))

    model = seeded(0, Forced)
    with pytest.raises(InputError, match="batch norm without running statistics"):
        ExactEMR()(model, images(3, 5))
    assert torch.equal(model.norm.running_mean, torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize("generated", [True, False])
def test_a_buffer_that_carries_a_gradient(generated: bool) -> None:
    """Weights that a part of the model makes and keeps as a buffer, or a buffer that is itself trained."""

    class Generated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.generator = nn.Linear(5, 6), nn.Linear(4, 18)
            self.register_buffer("weight", torch.randn(3, 6))

        def make(self) -> None:
            ones = torch.ones(4, dtype=torch.float64)
            self.weight = self.generator(ones).view(3, 6) if generated else self.weight.requires_grad_(True)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(torch.relu(self.body(x)), self.weight)

    model, x = seeded(0, Generated), images(3, 5)
    model.make()
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

    class Followed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.follower = relu_net(num_classes=3), nn.Linear(3, 3).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    model, x = Followed(), images(3, 1, 3, 5)
    expected = uneven_gradients(model, penalty_of(name, model, x))
    penalty = penalty_of(name, model, x)
    with torch.no_grad():
        model.follower.weight.mul_(0.5)
    found = uneven_gradients(model, penalty)
    assert all(torch.equal(found[key], right) for key, right in expected.items())


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
