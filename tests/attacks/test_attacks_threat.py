"""The geometry of threat models."""

import pytest
import torch
from torch import Tensor

from oracles import images
from widemargin.attacks.threat import L2, THREATS, Linf, Threat, make_threat
from widemargin.errors import InputError

ALL: list[Threat] = [Linf(0.3), L2(0.8)]


def deltas(batch: int = 6) -> Tensor:
    noise = 2 * images(batch, 2, 3, 1) - 1
    return noise * torch.logspace(-3, 1, batch, dtype=noise.dtype).view(-1, 1, 1, 1)


def test_every_norm_is_tried() -> None:
    assert {threat.norm: type(threat) for threat in ALL} == THREATS
    assert make_threat("l2", 0.8) == L2(0.8)


@pytest.mark.parametrize("threat", ALL, ids=repr)
class TestEveryThreat:
    def test_projections_are_inside_and_leave_insiders_alone(self, threat: Threat) -> None:
        delta = deltas()
        projected = threat.project(delta)
        assert (threat.size(projected) <= threat.eps + 1e-12).all()
        inside = threat.size(delta) <= threat.eps
        assert inside.any()
        assert (~inside).any()
        torch.testing.assert_close(projected[inside], delta[inside], rtol=1e-15, atol=0)
        torch.testing.assert_close(threat.project(projected), projected, rtol=1e-12, atol=0)

    def test_a_projection_is_the_nearest_point(self, threat: Threat) -> None:
        delta = deltas()
        nearest = (threat.project(delta) - delta).flatten(1).norm(dim=1)
        generator = torch.Generator().manual_seed(0)
        for _ in range(200):
            other = threat.random(delta, generator)
            assert ((other - delta).flatten(1).norm(dim=1) >= nearest - 1e-12).all()

    def test_ascent_has_size_one_and_nothing_of_that_size_climbs_faster(self, threat: Threat) -> None:
        gradient = deltas()
        direction = threat.ascent(gradient)
        torch.testing.assert_close(threat.size(direction), torch.ones(6, dtype=torch.float64))
        climbed = (gradient * direction).flatten(1).sum(1)
        generator = torch.Generator().manual_seed(0)
        for _ in range(200):
            other = threat.random(gradient, generator) / threat.eps
            assert ((gradient * other).flatten(1).sum(1) <= climbed + 1e-12).all()

    def test_a_zero_gradient_has_no_direction(self, threat: Threat) -> None:
        assert torch.equal(threat.ascent(torch.zeros(2, 3)), torch.zeros(2, 3))

    def test_projecting_nothing(self, threat: Threat) -> None:
        assert torch.equal(threat.project(torch.zeros(2, 3)), torch.zeros(2, 3))

    def test_random_points_are_inside_and_come_from_the_generator(self, threat: Threat) -> None:
        x = images(50, 1, 2, 3, dtype=torch.float32)
        one, two = (threat.random(x, torch.Generator().manual_seed(1)) for _ in range(2))
        assert torch.equal(one, two)
        assert one.dtype == x.dtype
        assert (threat.size(one) <= threat.eps * (1 + 1e-6)).all()


def test_sizes_by_hand() -> None:
    delta = torch.tensor([[[3.0, -4.0]], [[0.0, 0.5]]])
    assert Linf(0.1).size(delta).tolist() == [4.0, 0.5]
    assert L2(0.1).size(delta).tolist() == [5.0, 0.5]


@pytest.mark.parametrize("scale", [1e-30, 1e-44, 1e30])
def test_l2_ascent_of_tiny_and_huge_float32_gradients(scale: float) -> None:
    gradient = torch.tensor([[3.0, 4.0]]) * scale
    expected = torch.tensor([[0.6, 0.8]])
    torch.testing.assert_close(L2(0.1).ascent(gradient), expected, rtol=0.05 if scale < 1e-40 else 1e-6, atol=0)


def test_unknown_norm() -> None:
    with pytest.raises(InputError, match=r"threat.norm must be one of 'linf', 'l2', got 'l0'"):
        make_threat("l0", 0.1)


def test_l2_ascent_leaves_out_what_is_no_number() -> None:
    gradient = torch.tensor([[3.0, 4.0, float("inf"), float("nan")], [float("-inf"), 0.0, float("nan"), 0.0]])
    expected = torch.tensor([[0.6, 0.8, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(L2(0.1).ascent(gradient), expected)
