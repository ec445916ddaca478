"""What is no number, or has none: it stays visible, it is never a good result, and messages name it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from oracles import Network, images, labels, relu_net
from widemargin import PGD, ApproximateEMR, ExactEMR, InputError, effective_margin
from widemargin.data import ImageSet
from widemargin.evaluation import Report, evaluate
from widemargin.gradients.jacobian import logit_jacobian
from widemargin.losses import predicted
from widemargin.regularizers import InputGradient

X, Y = images(6, 1, 3, 5), labels(6, 4)


def sloping(self: Network, x: Tensor) -> Tensor:
    """Finite logits, but the gradient of a norm at zero for the images whose first pixel is small."""
    x = x.flatten(1)
    others = (x[:, :1].detach() >= 0.5).to(x.dtype)
    return self.last(x) + ((x - x.detach()).pow(2).sum(1, keepdim=True) + others).sqrt()


def no_slope() -> nn.Module:
    return Network(sloping, last=nn.Linear(15, 4).double())


def telling(change: Callable[[Tensor, Tensor], Tensor], net: nn.Module | None = None) -> nn.Module:
    """What a function makes of the logits and the images."""
    return Network(lambda self, x: change(self.net(x), x.flatten(1)), net=net or relu_net().float())


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
    inf = torch.inf
    logits = torch.tensor([[torch.nan, torch.nan], [2.0, torch.nan], [inf, 0.0], [-inf, -inf], [2.0, 1.0], [2.0, -inf]])
    assert predicted(logits, torch.zeros(6, dtype=torch.long)).tolist() == [False] * 4 + [True] * 2


def report_of(model: nn.Module, norm: str = "linf") -> Report:
    data = ImageSet(images(40, 1, 3, 5).float(), torch.zeros(40, dtype=torch.long), num_classes=4, name="noise")
    return evaluate(model.float(), data, ("clean", "pgd3"), 0.1, norm)


@pytest.mark.parametrize("attacks", [["clean"], ["fgsm"], ["autoattack"]])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_an_image_without_a_prediction_is_named_and_gets_no_verdict(value: float, attacks: list[str]) -> None:
    x, y = images(40, 1, 3, 5).float() * 0.9, torch.zeros(40, dtype=torch.long)
    x[[17, 19], 0, 0, 0] = 1.0
    model = telling(lambda logits, x: torch.where(x[:, :1] == 1, value, logits))
    says = r"no prediction for 2 of images 15 to 29, the first is image 17: a logit is NaN or \+inf, or all are"
    with pytest.raises(InputError, match=says):
        evaluate(model, (x, y), attacks, 0.01, shard_size=15, batch_size=4, margins=False, max_steps=2)


def test_a_class_that_is_ruled_out_is_no_lack_of_a_prediction() -> None:
    x, y = images(40, 1, 3, 5).float(), torch.arange(40) % 4
    ruled_out = telling(lambda logits, x: logits.masked_fill(torch.arange(4) == 3, -torch.inf))
    report = evaluate(ruled_out, (x, y), ["clean", "pgd3"], 0.1, sanity=False, margins=False)
    assert not report.verdicts["clean"][y == 3].any()
    assert report.verdicts["clean"].tolist() == ((ruled_out(x).argmax(1) == y) & (y != 3)).tolist()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_an_attack_that_leads_to_no_prediction_has_broken_the_image_and_it_is_named(
    value: float, tmp_path: Path
) -> None:
    x = (images(8, 1, 6, 5) * 3 + 0.5).round() / 4
    net = nn.Sequential(nn.Flatten(), nn.Linear(30, 4))
    moved = telling(lambda logits, x: torch.where(((4 * x).frac() != 0).any(1, keepdim=True), value, logits), net)
    y = net(x.float()).argmax(1)
    for _ in range(2):  # the second time it is read from the folder
        report = evaluate(moved, (x.float(), y), ["clean", "fgsm"], 0.01, out=tmp_path, shard_size=5, margins=False)
        assert report.accuracy == {"clean": 100.0, "fgsm": 0.0}
        assert report.undecided == {"fgsm": list(range(8))}
        message = "under fgsm 8 images have logits with a NaN or +inf, or -inf alone (the first: 0)"
        assert message in {alarm.message for alarm in report.alarms if alarm.name == "not-finite"}


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_gradient_of_nan_moves_nothing_and_is_told(norm: str) -> None:
    net = no_slope()
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


@pytest.mark.parametrize(
    "call",
    [
        lambda net: ExactEMR()(net, X),
        lambda net: ApproximateEMR().value(net, X),
        lambda net: effective_margin(net, X, Y),
    ],
)
def test_a_part_without_gradients_is_named(call: Callable[[nn.Module], Tensor]) -> None:
    def forward(self: Network, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.first(x.flatten(1))
        return self.last(x)

    with pytest.raises(InputError, match="no gradient to the images"):
        call(Network(forward, first=nn.Linear(15, 8), last=nn.Linear(8, 4)).double())


@pytest.mark.parametrize("size", [0, -3])
def test_classes_at_once_is_a_count(size: int) -> None:
    with pytest.raises(InputError, match="classes_at_once must be a whole number"):
        effective_margin(relu_net(), X, Y, classes_at_once=size)
    with pytest.raises(InputError, match="classes_at_once must be a whole number"):
        logit_jacobian(relu_net(), X, classes_at_once=size)


def test_a_slope_that_is_no_number_is_no_margin_and_the_files_are_json(tmp_path: Path) -> None:
    model, x, y = no_slope().float(), 0.4 * images(3, 1, 3, 5).float(), torch.zeros(3, dtype=torch.long)
    assert effective_margin(model, x, y).isnan().all()
    report = evaluate(model, (x, y), ["clean"], out=tmp_path, sanity=False)
    assert report.margin is not None
    assert report.margin.isnan().all()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    for line in (tmp_path / "examples.jsonl").read_text().splitlines():
        assert json.loads(line, parse_constant=refuse)["margin"] == "nan"
    json.loads((tmp_path / "report.json").read_text(), parse_constant=refuse)
