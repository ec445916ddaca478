"""What is no number, or has none: it stays visible, it is never a good result, and messages name it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from oracles import images, labels, relu_net
from widemargin import PGD, ApproximateEMR, ExactEMR, InputError, effective_margin
from widemargin.data import ImageSet
from widemargin.evaluation import Report, evaluate
from widemargin.evaluation.accuracy import predicted
from widemargin.jacobian import logit_jacobian
from widemargin.regularizers import InputGradient

X, Y = images(6, 1, 3, 5), labels(6, 4)


class NoSlope(nn.Module):
    """Finite logits, but the gradient of a norm at zero for the images whose first pixel is small."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(15, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        others = (x[:, :1].detach() >= 0.5).to(x.dtype)
        return self.last(x) + ((x - x.detach()).pow(2).sum(1, keepdim=True) + others).sqrt()


def broken() -> nn.Module:
    net = relu_net()
    with torch.no_grad():
        list(net.parameters())[-1].fill_(torch.nan)
    return net


def test_a_margin_of_nan_is_nan() -> None:
    assert effective_margin(broken(), X, Y).isnan().all()
    nans = X.clone()
    nans[0] = torch.nan
    margins = effective_margin(relu_net(), nans, Y)
    assert margins[0].isnan()
    assert margins[1:].isfinite().all()


def test_logits_of_nan_predict_nothing() -> None:
    logits = torch.tensor([[torch.nan, torch.nan], [2.0, 1.0], [torch.inf, 0.0]])
    assert predicted(logits, torch.zeros(3, dtype=torch.long)).tolist() == [False, True, True]


def report_of(model: nn.Module, norm: str = "linf") -> Report:
    data = ImageSet(images(40, 1, 3, 5).float(), torch.zeros(40, dtype=torch.long), num_classes=4, name="noise")
    return evaluate(model.float(), data, ("clean", "pgd3"), 0.1, norm)


def test_an_evaluation_of_nan_is_zero_and_says_why() -> None:
    report = report_of(broken())
    assert set(report.accuracy.values()) == {0.0}
    assert "not-finite" in {alarm.name for alarm in report.alarms}


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_gradient_of_nan_moves_nothing_and_is_told(norm: str) -> None:
    net = NoSlope()
    x_adv = PGD(eps=0.1, step_size=0.05, steps=2, norm=norm)(net, X, Y)
    small = X.flatten(1)[:, 0] < 0.5
    assert 0 < int(small.sum()) < len(X)
    assert x_adv.isfinite().all()
    assert torch.equal(x_adv[small], X[small])
    assert not torch.equal(x_adv[~small], X[~small])
    assert "not-finite" in {alarm.name for alarm in report_of(net, norm).alarms}


@pytest.mark.parametrize("kind", [torch.int32, torch.int16, torch.uint8])
def test_labels_of_any_integer_type(kind: torch.dtype) -> None:
    net, attack = relu_net(), PGD(eps=0.1, step_size=0.05, steps=2)
    assert torch.equal(attack(net, X, Y.to(kind)), attack(net, X, Y))
    assert torch.equal(InputGradient()(net, X, Y.to(kind)), InputGradient()(net, X, Y))
    assert torch.equal(effective_margin(net, X, Y.to(kind)), effective_margin(net, X, Y))


def test_truth_values_are_no_labels() -> None:
    for call in (PGD(eps=0.1, step_size=0.05, steps=2), InputGradient(), effective_margin):
        with pytest.raises(InputError, match="labels must be integers"):
            call(relu_net(), X, Y > 0)


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(15, 8).double(), nn.Linear(8, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.first(x.flatten(1))
        return self.last(x)


@pytest.mark.parametrize(
    "call",
    [
        lambda net: ExactEMR()(net, X),
        lambda net: ApproximateEMR().value(net, X),
        lambda net: effective_margin(net, X, Y),
    ],
)
def test_a_part_without_gradients_is_named(call: Callable[[nn.Module], Tensor]) -> None:
    with pytest.raises(InputError, match="no gradient to the images"):
        call(Frozen())


def test_biases_alone_are_named() -> None:
    net = relu_net()
    for name, parameter in net.named_parameters():
        parameter.requires_grad_("bias" in name)
    with pytest.raises(InputError, match="biases alone"):
        ExactEMR()(net, X)


@pytest.mark.parametrize("size", [0, -3])
def test_classes_at_once_is_a_count(size: int) -> None:
    with pytest.raises(InputError, match="classes_at_once must be a whole number"):
        effective_margin(relu_net(), X, Y, classes_at_once=size)
    with pytest.raises(InputError, match="classes_at_once must be a whole number"):
        logit_jacobian(relu_net(), X, classes_at_once=size)


class RootAtZero(nn.Module):
    """Finite logits with an input gradient that is no number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        root = (x - x.detach()).square().sum(1, keepdim=True).sqrt()
        return self.layer(x) + root * torch.tensor([1.0, 2.0, 3.0])


def test_a_slope_that_is_no_number_is_no_margin_and_the_files_are_json(tmp_path: Path) -> None:
    x, y = torch.rand(3, 1, 2, 2), torch.zeros(3, dtype=torch.long)
    assert effective_margin(RootAtZero(), x, y).isnan().all()
    report = evaluate(RootAtZero(), (x, y), ["clean"], out=tmp_path, sanity=False)
    assert report.margin is not None
    assert report.margin.isnan().all()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    for line in (tmp_path / "examples.jsonl").read_text().splitlines():
        assert json.loads(line, parse_constant=refuse)["margin"] == "nan"
    json.loads((tmp_path / "report.json").read_text(), parse_constant=refuse)
