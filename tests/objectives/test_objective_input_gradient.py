"""IGR, the penalty of a baseline objective, against stored numbers and against one sample at a time."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracles import (
    assert_all_close,
    assert_close_to_largest,
    golden,
    golden_net,
    images,
    labels,
    parameter_gradients,
    plain_evaluation,
    troublesome_net,
    under,
)
from widemargin import InputError
from widemargin.regularizers import InputGradient, Penalty

F64, F32 = torch.float64, torch.float32


@pytest.mark.parametrize("dtype", [F64, F32], ids=["float64", "float32"])
@pytest.mark.parametrize("net", ["bn", "mlp"])
def test_the_stored_penalty_and_its_gradients(net: str, dtype: torch.dtype) -> None:
    model, x, y = golden_net(net, dtype)
    stored = golden("igr")
    penalty = Penalty(name="igr", regularizer=InputGradient(), weight=1.0, scaling="released")
    amount = penalty(model, x, None, y, generator=torch.Generator())
    released = penalty.factor(0, len(x)) * amount.mean()
    gradients, expected = parameter_gradients(model, released), under("igr", f"{net}/igr/grad/")
    per_sample = (len(x) * stored[f"{net}/igr/input_grad"]).flatten(1).square().sum(1)  # of CE_i, not of the mean
    assert amount.dtype == dtype
    if dtype == F64:
        torch.testing.assert_close(released.detach(), stored[f"{net}/igr/penalty"], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(amount.detach(), per_sample, rtol=1e-9, atol=1e-11)
        assert_all_close(gradients, expected, rtol=1e-9, atol=1e-11)
    else:
        assert_close_to_largest(released.detach(), stored[f"{net}/igr/penalty"], 1e-4)
        assert_close_to_largest(amount.detach(), per_sample, 1e-4)
        largest = max(float(gradient.abs().max()) for gradient in expected.values())
        assert_all_close({n: g.double() for n, g in gradients.items()}, expected, rtol=0, atol=1e-4 * largest)


def slowly(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    penalties = []
    with plain_evaluation(model):
        for sample, label in zip(x.split(1), y.split(1), strict=True):
            leaf = sample.clone().requires_grad_(True)
            (gradient,) = torch.autograd.grad(F.cross_entropy(model(leaf), label), leaf, create_graph=True)
            penalties.append(gradient.square().sum())
    return torch.stack(penalties)


@pytest.mark.parametrize("batch", [1, 4])
def test_one_sample_at_a_time(batch: int) -> None:
    model, x, y = troublesome_net().train(), images(batch, 2, 4, 5), labels(batch, 5)
    expected = slowly(model, x, y)
    actual = InputGradient()(model, x, y)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(InputGradient().value(model, x, y), expected.detach(), rtol=1e-9, atol=1e-12)
    assert not InputGradient().value(model, x, y).requires_grad
    assert_all_close(
        parameter_gradients(model, actual.mean()), parameter_gradients(model, expected.mean()), rtol=1e-9, atol=1e-12
    )


def test_it_needs_labels_that_fit() -> None:
    model, x = troublesome_net(), images(3, 2, 4, 5)
    with pytest.raises(InputError, match=r"InputGradient: labels are missing; call it as regularizer\(model, x, y\)"):
        InputGradient()(model, x)
    with pytest.raises(InputError, match=r"InputGradient: labels must be in 0..4, got 0..5"):
        InputGradient().value(model, x, torch.tensor([0, 5, 1]))
