"""Effective margins against closed forms and one image at a time; their summary and their counts."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oracles import effective_margin_slowly, images, labels, relu_net, troublesome_net
from widemargin import InputError, effective_margin, summarize
from widemargin.core.precision import allowing_tf32
from widemargin.margins import FARTHEST, count_margins


def linear(num_classes: int = 5, size: int = 12) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(size, num_classes)).double()


def distance_by_hand(model: nn.Module, x: Tensor, y: Tensor, norm: str) -> Tensor:
    """The closed form: |z_y - z_j| over the dual norm of the difference of the rows, nearest class, signed."""
    weight, bias = model[1].weight.detach(), model[1].bias.detach()
    out = []
    for sample, label in zip(x.flatten(1), y.tolist(), strict=True):
        distances = []
        for j in range(len(weight)):
            if j != label:
                difference = weight[label] - weight[j]
                dual = difference.square().sum().sqrt() if norm == "l2" else difference.abs().sum()
                distances.append((difference @ sample + bias[label] - bias[j]) / dual)
        out.append(min(distances))
    return torch.stack(out)


@pytest.mark.parametrize("norm", ["l2", "linf"])
class TestLinearModel:
    def test_is_the_closed_form_distance(self, norm: str) -> None:
        model, x, y = linear(), images(20, 1, 3, 4), labels(20, 5)
        margin = effective_margin(model, x, y, norm)
        torch.testing.assert_close(margin, distance_by_hand(model, x, y, norm), rtol=1e-12, atol=1e-14)
        wrong = model(x).argmax(1) != y
        assert wrong.any()
        assert (~wrong).any()
        assert torch.equal(margin < 0, wrong)

    def test_moving_that_far_reaches_the_boundary_and_no_less_does(self, norm: str) -> None:
        model, x = linear(), images(8, 1, 3, 4)
        y = model(x).argmax(1)
        margin = effective_margin(model, x, y, norm)
        weight = model[1].weight.detach()
        for i in range(len(x)):
            z = model(x[i : i + 1])[0].detach()
            before, after = [], []
            for j in set(range(5)) - {int(y[i])}:
                direction = weight[j] - weight[y[i]]
                direction = direction / direction.norm() if norm == "l2" else direction.sign()
                for scale, gaps in ((0.999, before), (1.001, after)):
                    moved = z + weight @ (scale * margin[i] * direction)
                    gaps.append(float(moved[y[i]] - moved[j]))
            assert min(before) > 0 > min(after)


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("classes_at_once", [1, 3, 16])
def test_equals_one_class_at_a_time(norm: str, classes_at_once: int) -> None:
    model, x, y = troublesome_net(), images(6, 2, 4, 5), labels(6, 5)
    margin = effective_margin(model, x, y, norm, classes_at_once=classes_at_once)
    torch.testing.assert_close(margin, effective_margin_slowly(model, x, y, norm), rtol=1e-9, atol=1e-12)


def test_many_classes_an_odd_shape_and_a_single_sample() -> None:
    model, x, y = relu_net(num_classes=1000, shape=(3, 1, 7)), images(1, 3, 1, 7), labels(1, 1000)
    margin = effective_margin(model, x, y)
    assert margin.shape == (1,)
    torch.testing.assert_close(margin, effective_margin_slowly(model, x, y, "l2"), rtol=1e-9, atol=1e-12)


def test_a_batch_of_flat_vectors() -> None:
    model, x = relu_net(shape=(7,)), images(2, 7)
    torch.testing.assert_close(
        effective_margin(model, x, labels(2, 4))[1:], effective_margin(model, x[1:], labels(2, 4)[1:])
    )


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("biases", [[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]], ids=["apart", "equal"])
def test_a_model_that_ignores_its_input_is_infinitely_far_on_both_sides(norm: str, biases: list[float]) -> None:
    """Signed by what it predicts: of equal logits the first."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.tensor(biases))
    assert effective_margin(model, images(3, 4), torch.arange(3), norm).tolist() == [math.inf, -math.inf, -math.inf]


def test_works_without_gradients_and_with_frozen_parameters_and_has_no_graph() -> None:
    model, x, y = relu_net(), images(2, 1, 3, 5), labels(2, 4)
    expected = effective_margin(model, x, y)
    assert not expected.requires_grad
    with torch.no_grad():
        assert torch.equal(effective_margin(model.requires_grad_(False), x, y), expected)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (torch.tensor([0, 4], dtype=torch.uint16), r"labels must be in 0\.\.3, got 0\.\.4"),
        (torch.tensor([0, 4]), r"effective_margin: labels must be in 0\.\.3, got 0\.\.4; the model has 4 outputs"),
        (torch.tensor([-1, 1]), r"labels must be in 0\.\.3, got -1\.\.1"),
        (torch.tensor([0.0, 1.0]), r"labels must be integers of shape \(2,\), got torch.float32"),
        (torch.tensor([[0], [1]]), r"labels must be integers of shape \(2,\), got torch.int64 \(2, 1\)"),
        (torch.tensor([0, 1, 2]), r"labels must be integers of shape \(2,\)"),
    ],
)
def test_bad_labels_are_refused(y: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        effective_margin(relu_net(), images(2, 1, 3, 5), y)


def test_a_bad_norm_is_refused() -> None:
    with pytest.raises(ValueError, match=r"effective_margin.norm must be one of 'l2', 'linf', got 'l1'"):
        effective_margin(relu_net(), images(2, 1, 3, 5), labels(2, 4), norm="l1")


class TestSummary:
    def test_by_hand(self) -> None:
        summary = summarize(torch.tensor([4.0, 1.0, 3.0, 2.0, 5.0]))
        assert (summary.count, summary.mean) == (5, 3.0)
        assert summary.std == pytest.approx(math.sqrt(2))
        assert summary.quantiles == pytest.approx({"0.05": 1.2, "0.25": 2.0, "0.5": 3.0, "0.75": 4.0, "0.95": 4.8})

    def test_infinite_margins_do_not_count(self) -> None:
        assert summarize(torch.tensor([1.0, math.inf, 3.0, -math.inf])) == summarize(torch.tensor([1.0, 3.0]))

    def test_one_and_none(self) -> None:
        one = summarize(torch.tensor([2.0]))
        assert (one.count, one.mean, one.std) == (1, 2.0, 0.0)
        none = summarize(torch.empty(0))
        assert (none.count, none.mean, none.std, none.quantiles) == (0, None, None, {})


def test_quantiles_of_more_margins_than_torch_sorts_for_its_own() -> None:
    count = 10_000_001
    found = summarize(torch.arange(count, dtype=torch.float32).flip(0)).quantiles
    assert found["0.05"] == pytest.approx(0.05 * count, rel=1e-3)
    assert found["0.5"] == pytest.approx(0.5 * count, rel=1e-3)


class Masked(nn.Module):
    """Rules classes out by a logit of minus infinity, or nearly."""

    def __init__(self, floor: float) -> None:
        super().__init__()
        self.model, self.floor = linear(), floor

    def forward(self, x: Tensor) -> Tensor:
        logits = self.model(x)
        return torch.cat([logits[:, :3], torch.full_like(logits[:, 3:], self.floor)], dim=1)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_a_class_that_is_ruled_out_is_no_neighbor(norm):
    x, y = images(20, 1, 3, 4), labels(20, 3)
    margin = effective_margin(Masked(-math.inf), x, y, norm)
    assert margin.isfinite().all()
    torch.testing.assert_close(margin, effective_margin(Masked(-1e30), x, y, norm))
    assert (effective_margin(Masked(-math.inf), x, torch.full_like(y, 3), norm) == -math.inf).all()


def test_margins_are_measured_without_tf32_whatever_the_user_allows() -> None:
    seen: dict[str, set[tuple[bool, bool]]] = {"forward": set(), "backward": set()}

    def note(when: str) -> None:
        seen[when].add((torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32))

    class Told(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            note("forward")
            return x.clone()

        @staticmethod
        def setup_context(ctx: object, inputs: object, output: object) -> None:
            pass

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            note("backward")
            return gradient.clone()

    class Telling(nn.Flatten):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(Told.apply(x))

    model = nn.Sequential(Telling(), nn.Linear(12, 5)).double()
    with allowing_tf32():
        effective_margin(model, images(2, 1, 3, 4), labels(2, 5))
        assert torch.backends.cudnn.allow_tf32
    assert seen == {"forward": {(False, False)}, "backward": {(False, False)}}


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize(
    ("dtype", "factor"),
    [(torch.float32, f) for f in (1e-36, 1e-30, 1e-20, 1e20, 1e35)] + [(torch.float64, f) for f in (1e-200, 1e200)],
)
def test_the_scale_of_the_logits_does_not_matter(norm: str, dtype: torch.dtype, factor: float) -> None:
    model, x, y = linear().to(dtype), images(6, 1, 3, 4, dtype=dtype), labels(6, 5)
    expected = effective_margin(model, x, y, norm)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    torch.testing.assert_close(effective_margin(model, x, y, norm), expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("width", [0.05, 0.25])
def test_the_counts_are_those_of_numpy(width):
    values = torch.randn(5000, generator=torch.Generator().manual_seed(0)).double()
    found = count_margins(values, width=width)
    edges = width * np.arange(found.first, found.first + len(found.counts) + 1)
    assert list(found.counts) == np.histogram(values.numpy(), bins=edges)[0].tolist()
    assert sum(found.counts) == 5000
    assert found.counts[0] > 0
    assert found.counts[-1] > 0


def test_zero_is_an_edge():
    found = count_margins(torch.tensor([-1e-6, 0.0, 1e-6]), width=0.05)
    assert (found.first, found.counts) == (-1, (1, 2))


def test_what_is_not_finite_is_left_out_and_what_is_far_is_in_the_last_bin():
    found = count_margins(torch.tensor([torch.inf, torch.nan, -torch.inf, 1e9, -1e9]), width=0.05)
    assert found.first == -FARTHEST
    assert len(found.counts) == 2 * FARTHEST
    assert (found.counts[0], found.counts[-1], sum(found.counts)) == (1, 1, 2)
    assert count_margins(torch.tensor([torch.inf]), width=0.05).counts == ()
