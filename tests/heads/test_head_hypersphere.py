"""The hypersphere head: scaled cosines for everybody, a margin for the label's loss, rows of unit length."""

import pytest
import torch
import torch.nn.functional as F
from head_steps import X, Y, features_of, network, step
from torch import Tensor

from widemargin import InputError
from widemargin.heads import Hypersphere, HypersphereHead
from widemargin.objectives import Standard


def head_of(rows: str = "projected", *, scale: float = 10.0, margin: float = 0.2) -> HypersphereHead:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        head = Hypersphere(scale=scale, margin=margin, rows=rows)(5, 3).double()  # type: ignore[arg-type]
    head.project()  # as double as the rest
    return head


def cosines_slowly(features: Tensor, weight: Tensor) -> Tensor:
    rows = [[float(f @ w / (f.norm() * w.norm())) for w in weight.detach()] for f in features.detach()]
    return torch.tensor(rows, dtype=torch.float64)


def lengths(weight: Tensor) -> Tensor:
    return weight.detach().square().sum(1).sqrt()


@pytest.mark.parametrize("rows", ["projected", "differentiable"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_logits_are_scaled_cosines_in_training_and_evaluation(rows: str, training: bool) -> None:
    head, features = head_of(rows, scale=15.0).train(training), features_of()
    torch.testing.assert_close(head(features), 15 * cosines_slowly(features, head.weight), rtol=0, atol=1e-12)
    torch.testing.assert_close(head(7 * features), head(features))


@pytest.mark.parametrize("rows", ["projected", "differentiable"])
def test_the_margin_is_in_the_training_logits_alone(rows: str) -> None:
    head, features, y = head_of(rows), features_of(), torch.tensor([2, 0, 1, 1])
    logits = head(features)
    expected = logits.detach().clone()
    for i, label in enumerate(y.tolist()):
        expected[i, label] -= 10 * 0.2
    torch.testing.assert_close(head.training_logits(features, logits, y), expected)


@pytest.mark.parametrize("rows", ["projected", "differentiable"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_forward_never_changes_the_weight(rows: str, training: bool) -> None:
    head = head_of(rows).train(training)
    with torch.no_grad():
        head.weight *= torch.tensor([[2.0], [0.5], [3.0]], dtype=torch.float64)
    before = head.weight.detach().clone()
    logits = head(features_of())
    head.training_logits(features_of(), logits, torch.tensor([0, 1, 2, 0]))
    assert torch.equal(head.weight.detach(), before)


def test_projected_rows_are_used_as_they_are() -> None:
    """As released: no gradient through the normalization, so a row off the sphere has its own length."""
    head, features = head_of(), features_of()
    logits = head(features).detach()
    with torch.no_grad():
        head.weight *= 2
    torch.testing.assert_close(head(features), 2 * logits)


def test_rows_are_unit_after_construction_and_after_a_step() -> None:
    torch.testing.assert_close(lengths(Hypersphere()(5, 3).weight), torch.ones(3))
    head = head_of()
    assert list(head.state_dict()) == ["weight"]  # no bias, the usual key
    direction = head.weight.detach().clone()
    with torch.no_grad():
        head.weight *= torch.tensor([[2.0], [0.5], [3.0]], dtype=torch.float64)
    head.after_step()
    torch.testing.assert_close(head.weight.detach(), direction)


def test_differentiable_rows_are_left_free_and_have_no_gradient_along_themselves() -> None:
    head = head_of("differentiable")
    assert not torch.allclose(lengths(head.weight), torch.ones(3, dtype=torch.float64), atol=1e-3)
    before = head.weight.detach().clone()
    head.after_step()
    assert torch.equal(head.weight.detach(), before)
    head(features_of()).square().sum().backward()
    assert head.weight.grad is not None
    along = (head.weight.grad * head.weight).sum(1).detach()
    torch.testing.assert_close(along, torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-10)
    assert float(head.weight.grad.norm()) > 1

    projected = head_of()
    projected(features_of()).square().sum().backward()
    assert projected.weight.grad is not None
    assert (projected.weight.grad * projected.weight).sum(1).abs().max() > 1


@pytest.mark.parametrize("rows", ["projected", "differentiable"])
def test_gradients_are_those_of_the_formula(rows: str) -> None:
    head, features, y = head_of(rows), features_of(2).requires_grad_(True), torch.tensor([2, 0])

    def loss(features: Tensor, weight: Tensor) -> Tensor:
        with torch.no_grad():
            head.weight.copy_(weight)
        logits = torch.func.functional_call(head, {"weight": weight}, (features,))
        return head.training_logits(features, logits, y)

    assert torch.autograd.gradcheck(loss, (features, head.weight.detach().clone().requires_grad_(True)))


def test_a_train_step_leaves_unit_rows_and_has_used_the_margin() -> None:
    model = network(Hypersphere(scale=10, margin=0.2))
    head = model.head
    assert isinstance(head, HypersphereHead)
    with torch.no_grad():
        margin = 10 * (cosines_slowly(model.features(X), head.weight) - 0.2 * F.one_hot(Y, 3))
        before = head.weight.clone()
    expected = F.cross_entropy(margin, Y, reduction="none")
    torch.testing.assert_close(step(model, Standard())["loss"], expected.float(), rtol=1e-4, atol=1e-5)
    assert (head.weight - before).abs().max() > 1e-3
    torch.testing.assert_close(lengths(head.weight), torch.ones(3), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": 0.0}, r"Hypersphere.scale must be a positive number, got 0.0"),
        ({"scale": float("inf")}, r"Hypersphere.scale must be a positive number, got inf"),
        ({"margin": 1.0}, r"Hypersphere.margin must be in \[0, 1\), got 1.0"),
        ({"margin": -0.1}, r"Hypersphere.margin must be in \[0, 1\), got -0.1"),
        ({"rows": "unit"}, r"Hypersphere.rows must be one of 'projected', 'differentiable', got 'unit'"),
    ],
)
def test_bad_settings(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Hypersphere(**change)  # type: ignore[arg-type]
