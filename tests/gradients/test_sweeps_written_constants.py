"""Tensors that a forward makes and then fills, complex numbers, infinite slopes: never taken for what they are not."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracles import (
    assert_all_close,
    effective_margin_slowly,
    exact_emr_slowly,
    images,
    labels,
    parameter_gradients,
    seeded,
)
from widemargin import ExactEMR, StochasticEMR, effective_margin
from widemargin.gradients.jacobian import logit_jacobian, logit_jacobian_slowly

X = images(3, 1, 3, 5)


class Odd(nn.Module):
    """A linear layer, something odd on its 8 activations, a linear layer; ``p`` and ``g`` are for the odd part."""

    def __init__(self, odd: Callable[["Odd", Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(15, 8), nn.Linear(8, 5)
        self.p, self.g = nn.Parameter(torch.randn(36)), nn.Parameter(torch.randn(4))
        self.odd = odd

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.odd(self, self.first(x.flatten(1))))


def triangular(net: Odd, h: Tensor) -> Tensor:
    weight = torch.zeros(8, 8, dtype=h.dtype)
    rows, columns = torch.tril_indices(8, 8)
    weight[rows, columns] = net.p
    return F.relu(F.linear(h, weight))


def scaled_half(net: Odd, h: Tensor) -> Tensor:
    scale = torch.ones(8, dtype=h.dtype)
    scale[:4] *= net.g
    return h * scale


def added_in_place(net: Odd, h: Tensor) -> Tensor:
    total = torch.zeros_like(h, requires_grad=False)
    total += torch.sin(h)
    return h + total


def written_into_a_slice(net: Odd, h: Tensor) -> Tensor:
    total = torch.zeros(len(h), 8, dtype=h.dtype)
    total[:, :4] = torch.sin(h[:, :4])
    return h + total


def experts(net: Odd, h: Tensor) -> Tensor:
    out = torch.zeros(len(h), 8, dtype=h.dtype)
    chosen = torch.arange(len(h))
    out.index_add_(0, chosen, F.linear(h[chosen], h.new_zeros(8, 8) + net.g.sum()))
    return h + out


def into_an_out(net: Odd, h: Tensor) -> Tensor:
    scale = torch.ones(4, dtype=h.dtype)
    with torch.no_grad():
        torch.mul(net.g, 2.0, out=scale)  # without a graph: a constant for autograd too
    return h * torch.cat([scale, scale])


def mixed_by_fourier(net: Odd, h: Tensor) -> Tensor:
    return h + torch.fft.fft(h).real


def filtered(net: Odd, h: Tensor) -> Tensor:
    return h + torch.fft.irfft(torch.fft.rfft(h) * 0.5, n=8)


ODD = [triangular, scaled_half, added_in_place, written_into_a_slice, experts, into_an_out, mixed_by_fourier, filtered]


@pytest.mark.parametrize("odd", ODD)
def test_values_and_gradients_are_those_of_autograd(odd: Callable[[Odd, Tensor], Tensor]) -> None:
    net = seeded(0, lambda: Odd(odd)).double()
    ours, expected = ExactEMR()(net, X), exact_emr_slowly(net, X)
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(ExactEMR().value(net, X), expected)
    assert_all_close(
        parameter_gradients(net, ours.mean()), parameter_gradients(net, expected.mean()), rtol=1e-8, atol=1e-12
    )


def signed_root(net: Odd, h: Tensor) -> Tensor:
    return torch.sqrt(F.relu(h)) - torch.sqrt(F.relu(-h))


def masked(net: Odd, h: Tensor) -> Tensor:
    return F.relu(h.masked_fill(torch.arange(8) > 5, -torch.inf))


@pytest.mark.parametrize("odd", [signed_root, masked])
def test_a_relu_stops_an_infinity(odd: Callable[[Odd, Tensor], Tensor]) -> None:
    net = seeded(0, lambda: Odd(odd)).double()
    rows = logit_jacobian_slowly(net, X)
    assert rows.isfinite().all()
    torch.testing.assert_close(logit_jacobian(net, X), rows)
    expected = rows.flatten(1).square().sum(1)
    torch.testing.assert_close(ExactEMR().value(net, X), expected)
    torch.testing.assert_close(ExactEMR()(net, X).detach(), expected)
    y = labels(3, 5)
    torch.testing.assert_close(effective_margin(net, X, y), effective_margin_slowly(net, X, y, "l2"))


class GroupNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.softsign(self.norm(self.conv(x))).mean((2, 3)))


def test_what_has_no_batched_second_derivative_goes_one_by_one() -> None:
    net = seeded(0, GroupNormed).double()
    ours, expected = ExactEMR()(net, X), exact_emr_slowly(net, X)
    torch.testing.assert_close(ours, expected)
    assert_all_close(
        parameter_gradients(net, ours.mean()), parameter_gradients(net, expected.mean()), rtol=1e-8, atol=1e-12
    )
    torch.testing.assert_close(StochasticEMR(projections=5)(net, X), expected)


def test_relu_by_name() -> None:
    net = seeded(0, lambda: Odd(lambda _, h: torch.relu(input=torch.sinc(h)))).double()
    torch.testing.assert_close(ExactEMR()(net, X), exact_emr_slowly(net, X))
