"""Operators that work in place: followed where every user of the tensor is known, left to double backward elsewhere."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from sweep_checks import Apply, check, is_recorded, net
from torch import Tensor, nn

from oracles import images, seeded

Function = Callable[[Tensor], Tensor]


def check_same(function: Function, plain: Function, *, recorded: bool = True) -> None:
    """``function`` inside a network against ``plain``, which computes the same out of place."""

    def network(activation: Function) -> nn.Module:
        return seeded(0, lambda: net(nn.Linear(5, 6), Apply(activation), nn.Linear(6, 4), nn.ReLU(), shape=(5,)))

    check(network(function), images(3, 5), recorded=recorded, like=network(plain))


def add_unused(h: Tensor) -> Tensor:
    h.add_(h.relu())
    return h


def several_names(h: Tensor) -> Tensor:
    y = h.relu_()
    h.add_(1)
    return y * 2


def names_cross(h: Tensor) -> Tensor:
    y = h
    z = y.mul_(2)
    h += 1
    z.relu_()
    y -= 0.5
    return h + z


def used_before(h: Tensor) -> Tensor:
    before = h.mean(1, keepdim=True)
    product = h * h
    h.relu_()
    return product + h + before


def plus_equal(h: Tensor) -> Tensor:
    out = 2 * h
    out += h
    out *= h
    out /= 3
    out -= 1
    return out


def squeeze_and_excite(h: Tensor) -> Tensor:
    out = F.relu(h.clone(), inplace=True)
    out.mul_(torch.sigmoid(h))
    return out


def unread_change(h: Tensor) -> Tensor:
    kept = h + 0
    kept.mul_(3)
    return h


def after_dropout(h: Tensor) -> Tensor:
    return F.relu(F.dropout(h, 0.5, training=False, inplace=True), inplace=True)


FOLLOWED: dict[str, tuple[Function, Function]] = {
    "relu_": (Tensor.relu_, torch.relu),
    "torch.relu_": (torch.relu_, torch.relu),
    "relu by option": (lambda h: F.relu(h, inplace=True), torch.relu),
    "leaky relu": (lambda h: F.leaky_relu(h, 0.1, inplace=True), lambda h: F.leaky_relu(h, 0.1)),
    "leaky_relu_": (lambda h: F.leaky_relu_(h, 0.1), lambda h: F.leaky_relu(h, 0.1)),
    "hardtanh": (lambda h: F.hardtanh(h, inplace=True), F.hardtanh),
    "silu": (lambda h: F.silu(h, inplace=True), F.silu),
    "elu": (lambda h: F.elu(h, 0.5, inplace=True), lambda h: F.elu(h, 0.5)),
    "tanh_": (Tensor.tanh_, torch.tanh),
    "add_ unused": (add_unused, lambda h: h + h.relu()),
    "several names": (several_names, lambda h: (h.relu() + 1) * 2),
    "names cross": (names_cross, lambda h: 2 * ((2 * h + 1).relu() - 0.5)),
    "used before": (used_before, lambda h: h * h + h.relu() + h.mean(1, keepdim=True)),
    "plus equal": (plus_equal, lambda h: 3 * h * h / 3 - 1),
    "gate": (squeeze_and_excite, lambda h: h.relu() * torch.sigmoid(h)),
    "unread": (unread_change, lambda h: h),
    "after dropout": (after_dropout, torch.relu),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_followed(name: str) -> None:
    check_same(*FOLLOWED[name])


def on_a_view(h: Tensor) -> Tensor:
    h = h.clone()
    h[:, :3].relu_()
    return h


def base_of_a_view(h: Tensor) -> Tensor:
    h = h.clone()
    view = h.view(-1, 2, 3)
    h.relu_()
    return h + view.flatten(1)


def on_a_constant(h: Tensor) -> Tensor:
    total = torch.zeros(len(h), 6, dtype=h.dtype)
    total += h
    return total.relu()


def set_item(h: Tensor) -> Tensor:
    h = h.clone()
    h[:, 0] = 0
    return h


def set_item_of_a_constant(h: Tensor) -> Tensor:
    total = torch.zeros(len(h), 6, dtype=h.dtype)
    total[:, 1:] = h[:, 1:]
    return total


def to_zeros_and_ones(h: Tensor) -> Tensor:
    positive = h.clone()
    positive.gt_(0)
    return positive * h


def without_gradient(h: Tensor) -> Tensor:
    h = h * 1
    with torch.no_grad():
        h.mul_(2)
    return h + 0


def copied(h: Tensor) -> Tensor:
    return torch.empty_like(h).copy_(h).relu()


def zero_first(h: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(h[:, :1]), h[:, 1:]], dim=1)


LEFT: dict[str, tuple[Function, Function]] = {
    "on a view": (on_a_view, lambda h: torch.cat([h[:, :3].relu(), h[:, 3:]], 1)),
    "base of a view": (base_of_a_view, lambda h: 2 * h.relu()),
    "on a constant": (on_a_constant, torch.relu),
    "set item": (set_item, zero_first),
    "set item of a constant": (set_item_of_a_constant, zero_first),
    "type of the tensor": (to_zeros_and_ones, torch.relu),
    "without gradient": (without_gradient, lambda h: h + h.detach()),
    "copied": (copied, torch.relu),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_to_double_backward(name: str) -> None:
    check_same(*LEFT[name], recorded=False)


def test_a_type_that_would_widen_is_left() -> None:
    def narrow(h: Tensor) -> Tensor:
        low = h.float()
        low += h.double()
        return low.float()

    model = nn.Sequential(nn.Linear(5, 6), Apply(narrow), nn.Linear(6, 3))
    assert not is_recorded(model, images(3, 5, dtype=torch.float32))
