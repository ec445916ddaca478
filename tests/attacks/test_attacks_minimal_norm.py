"""DDN and ALMA: adv-lib's end points, the nearest point of linear models, and what they do where there is none."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracles import golden, images, labels, relu_net, seeded, under
from widemargin import InputError
from widemargin.attacks import ALMA, DDN
from widemargin.attacks.alma import first_rate

F64, F32 = torch.float64, torch.float32
ATTACKS = {"ddn": DDN(), "ddn_x3": DDN(logit_scale=3), "ddn_x10": DDN(logit_scale=10), "alma": ALMA()}
IN_FLOAT32 = 5e-6
"""Relative: adv-lib keeps DDN's length in float32 whatever the images are."""


class StoredCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(F.relu(self.bn2(self.conv2(x))).flatten(1))


class StoredMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def stored(net: str, dtype: torch.dtype) -> tuple[nn.Module, Tensor, Tensor]:
    model = {"cnn": StoredCNN, "mlp": StoredMLP}[net]()
    model.load_state_dict(under("minimal_norm", f"net/{net}/w/"))
    arrays = golden("minimal_norm")
    return model.to(dtype).eval(), arrays[f"net/{net}/xs"].to(dtype), arrays[f"net/{net}/ys"]


def lengths(x_adv: Tensor, x: Tensor) -> Tensor:
    return (x_adv.double() - x.double()).flatten(1).square().sum(1).sqrt()


def unambiguous(net: str, attack: str) -> Tensor:
    """Images whose end point neither hangs on the last bits nor on random numbers."""
    arrays = golden("minimal_norm")
    return (arrays[f"{net}/{attack}/stable"] == 1) & (arrays[f"{net}/{attack}/random"] == 0)


@pytest.mark.parametrize("net", ["cnn", "mlp"])
@pytest.mark.parametrize("name", ATTACKS)
class TestAgainstAdvLib:
    def test_lengths_in_float64(self, net: str, name: str) -> None:
        model, x, y = stored(net, F64)
        chosen, expected = unambiguous(net, name), golden("minimal_norm")[f"{net}/{name}/length"]
        assert int(chosen.sum()) >= 4
        found = lengths(ATTACKS[name](model, x, y), x)
        rtol = 1e-10 if name == "alma" else IN_FLOAT32
        torch.testing.assert_close(found[chosen], expected[chosen], rtol=rtol, atol=1e-12)
        if name in ("ddn", "alma"):
            points = golden("minimal_norm")[f"{net}/{name}/x_adv"]
            x_adv = ATTACKS[name](model, x, y)
            torch.testing.assert_close(x_adv[chosen], points[chosen], rtol=0, atol=rtol)

    def test_lengths_in_float32(self, net: str, name: str) -> None:
        """Rounding turns some steps of a path; the median does not feel it."""
        model, x, y = stored(net, F32)
        chosen, expected = unambiguous(net, name), golden("minimal_norm")[f"{net}/{name}/length"]
        found = lengths(ATTACKS[name](model, x, y), x)
        torch.testing.assert_close(found[chosen], expected[chosen], rtol=0.03, atol=1e-6)
        assert float(found.median()) <= 1.001 * float(expected.median())


def test_sharp_logits_do_not_lose_their_gradient() -> None:
    """adv-lib moves at random where the cross-entropy's gradient vanishes, and ends up 20% too far."""
    model, x, y = stored("mlp", F32)
    found = lengths(DDN(logit_scale=10)(model, x, y), x)
    reference = golden("minimal_norm")["mlp/ddn_x10/length"]
    assert float(found.median()) < 0.85 * float(reference.median())
    assert float(found.median()) < 1.005 * float(golden("minimal_norm")["mlp/ddn/length"].median())
    much_sharper = lengths(DDN(logit_scale=1e4)(model, x, y), x)
    assert float(much_sharper.median()) < 1.05 * float(found.median())


def linear(num_classes: int, size: int, seed: int = 0) -> nn.Module:
    return seeded(seed, lambda: nn.Sequential(nn.Flatten(), nn.Linear(size, num_classes)))


def nearest_by_formula(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The distance to the nearest of the hyperplanes, one image and one class at a time."""
    weight, logits = model[1].weight.detach(), model(x).detach()
    found = []
    for row, label in zip(logits, y.tolist(), strict=True):
        rivals = [j for j in range(len(row)) if j != label]
        found.append(min(float((row[label] - row[j]) / (weight[label] - weight[j]).norm()) for j in rivals))
    return torch.tensor(found, dtype=F64)


@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("num_classes", [2, 3, 6])
@pytest.mark.parametrize("name", ATTACKS)
def test_the_nearest_point_of_a_linear_model(name: str, num_classes: int, dtype: torch.dtype) -> None:
    model, x = linear(num_classes, 20).to(dtype), (0.4 + 0.2 * images(12, 1, 4, 5)).to(dtype)
    y = model(x).argmax(1)
    exact = nearest_by_formula(model, x, y)
    x_adv = ATTACKS[name](model, x, y)
    assert (model(x_adv).argmax(1) != y).all()
    assert float(x_adv.min()) >= 0
    assert float(x_adv.max()) <= 1
    ratio = lengths(x_adv, x) / exact
    assert float(ratio.min()) > 0.9999, "nearer than anything can be"
    if num_classes == 2:  # one boundary: any logit scale has the same direction
        assert float(ratio.max()) < 1.005
    elif name in ("ddn_x10", "alma"):
        assert float(ratio.median()) < 1.03
    assert float(ratio.max()) < 1.15, "a mixture of boundaries"


@pytest.mark.parametrize("name", ATTACKS)
class TestEveryAttack:
    def test_an_image_that_is_wrong_already_stays_as_it_is(self, name: str) -> None:
        model, x = linear(3, 15), images(4, 1, 3, 5)
        y = (model(x).argmax(1) + 1) % 3
        assert torch.equal(ATTACKS[name](model, x, y), x)

    def test_where_nothing_fools_the_model_the_image_stays_as_it_is(self, name: str) -> None:
        class Certain(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return torch.stack([0.1 * x.flatten(1).sum(1) + 100, x.flatten(1).sum(1), 0 * x.flatten(1)[:, 0]], 1)

        x = images(3, 1, 2, 2)
        assert torch.equal(ATTACKS[name](Certain(), x, torch.zeros(3, dtype=torch.int64)), x)

    def test_without_any_gradient_at_the_image_it_moves_at_random_from_the_generator(self, name: str) -> None:
        class Flat(nn.Module):
            """No slope inside the cube around the middle, and beyond it the other class."""

            def forward(self, x: Tensor) -> Tensor:
                beyond = ((x - 0.5).abs().flatten(1) - 0.03).relu().sum(1)
                return torch.stack([0 * beyond + 0.01, beyond, 0 * beyond - 1], 1)

        x, y = torch.full((3, 1, 4, 4), 0.5, dtype=F64), torch.zeros(3, dtype=torch.int64)
        one, same, other = (
            ATTACKS[name](Flat(), x, y, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
        )
        assert torch.equal(one, same)
        assert not torch.equal(one, other)
        assert (lengths(one, x) > 0.03).all()

    def test_a_gradient_that_is_no_number_stays_where_it_is(self, name: str) -> None:
        class Broken(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                root = (x.flatten(1) - x.flatten(1).detach()).abs().sqrt().sum(1)  # 0, with an infinite slope
                return torch.stack([1 + root, 0 * root, 0 * root - 1], 1)

        x_adv = ATTACKS[name](Broken(), images(2, 1, 2, 2), torch.tensor([0, 1]))
        assert x_adv.isfinite().all()

    @pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
    def test_what_is_found_in_half_precision_fools_the_model_as_it_is_given(self, name: str, kind: torch.dtype) -> None:
        model, x = linear(4, 20).to(kind), (0.4 + 0.2 * images(12, 1, 4, 5)).to(kind)
        y = model(x).argmax(1)
        x_adv = ATTACKS[name](model, x, y)
        assert x_adv.dtype == kind
        moved = (x_adv != x).flatten(1).any(1)
        assert int(moved.sum()) >= 10
        assert (model(x_adv).argmax(1) != y)[moved].all()


def test_the_first_step_of_alma_is_as_long_as_asked_or_ends_at_the_corner() -> None:
    x, gradient = images(5, 1, 3, 4), images(5, 1, 3, 4, seed=1) - 0.5
    rate = first_rate(x, gradient, 0.1).view(-1, 1, 1, 1)
    torch.testing.assert_close(
        lengths((x - rate * gradient).clamp(0, 1), x), torch.full((5,), 0.1).double(), rtol=1e-5, atol=0
    )
    corner = torch.ones(1, 1, 1, 1, dtype=F64)
    assert first_rate(corner, -corner, 0.1).isfinite().all()


REFUSALS = {
    "no steps": (lambda: DDN(steps=0), r"DDN.steps must be a whole number of at least 1, got 0"),
    "no scale": (lambda: DDN(logit_scale=0.0), r"DDN.logit_scale must be a positive number, got 0.0; 1, 3 and 10"),
    "a length that is none": (lambda: DDN(first_length=math.inf), r"DDN.first_length must be a positive number"),
    "all at once": (lambda: DDN(gamma=1.0), r"DDN.gamma must be in \(0, 1\), got 1.0"),
    "never looked": (lambda: ALMA(check_every=0), r"ALMA.check_every must be a whole number"),
    "no smoothing": (lambda: ALMA(smoothing=1.0), r"ALMA.smoothing must be in \(0, 1\), got 1.0"),
    "a tolerance below zero": (lambda: ALMA(tolerance=-1.0), r"ALMA.tolerance must be a number of at least 0"),
    "images of another range": (
        lambda: ALMA()(relu_net(), 2 + images(2, 1, 3, 5), labels(2, 4)),
        r"ALMA: images must be in \[0, 1\]",
    ),
    "no module": (lambda: DDN()(len, images(2, 1, 3, 5), labels(2, 4)), r"DDN: the model comes first"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case: str) -> None:
    call, message = REFUSALS[case]
    with pytest.raises(InputError, match=message):
        call()
