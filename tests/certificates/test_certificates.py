"""Certified margins: auto_LiRPA's bounds, brute force inside every radius, closed forms, and what is refused."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oracles import golden, under
from widemargin import InputError, certified_margin, effective_margin
from widemargin.certificates.crown import Ball, Crown
from widemargin.certificates.lipschitz import pair_slopes
from widemargin.certificates.margin import METHODS, PRECISION
from widemargin.certificates.network import Bend, Network, read_network
from widemargin.certificates.relaxation import crosses, lines
from widemargin.models.mlp import MLP
from widemargin.types import Norm

NORMS: tuple[Norm, ...] = ("l2", "linf")
TRIES = 100_000


class GoldenCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8)
        self.fc = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))
        return self.fc(x.flatten(1))


class GoldenMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


def golden_case(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    model = {"mlp": GoldenMLP, "cnn": GoldenCNN}[name]().double()
    model.load_state_dict(under("crown", f"{name}/w/"))
    return model.eval(), golden("crown")[f"{name}/x"], golden("crown")[f"{name}/y"]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["mlp", "cnn"])
class TestAgainstAutoLirpa:
    def test_bounds(self, name: str, norm: Norm) -> None:
        model, x, y = golden_case(name)
        network = read_network(model, x, owner="test")
        stored = under("crown", f"{name}/{'l2' if norm == 'l2' else 'linf_box'}/")
        for radius, lower in zip(stored["radii"].tolist(), stored["lower"], strict=True):
            eps = torch.full((len(x),), radius, dtype=torch.float64)
            with torch.no_grad():
                found = Crown(network, Ball(norm, x, eps)).floor(network.differences(y)).at(eps).T
            found[torch.arange(len(y)), y] = 0.0
            torch.testing.assert_close(found, lower, rtol=1e-9, atol=1e-9)
            assert (found <= lower + 1e-12).all()  # what rounding may do is taken off

    def test_radius(self, name: str, norm: Norm) -> None:
        model, x, y = golden_case(name)
        radius = golden("crown")[f"{name}/{'l2' if norm == 'l2' else 'linf_box'}/radius"]
        found = certified_margin(model, x, y, norm, method="crown")
        assert (found <= radius + 1e-6).all()
        assert (found >= radius * (1 - 1.01 * PRECISION) - 1e-6).all()
        assert found[-1] == 0


class Residual(nn.Module):
    """Everything that can be bounded, in one small network."""

    def __init__(self, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.norm1, self.act1 = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), activation()
        self.conv2, self.act2 = nn.Conv2d(4, 4, 3, padding=1, groups=2), activation()
        self.short, self.pool = nn.Conv2d(4, 4, 1), nn.AvgPool2d(2)
        self.conv3, self.act3 = nn.Conv2d(4, 5, 3, stride=2, padding=2, dilation=2), activation()
        self.fc = nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.norm1(self.conv1((x - 0.4) / 0.3)))
        x = self.act2(self.conv2(x)) + self.short(x)
        x = self.act3(self.conv3(torch.cat([self.pool(x), -self.pool(x)], 1)[:, 2:6]))
        return self.fc(x.mean((2, 3))) * self.scale


def fitted(model: nn.Module, shape: tuple[int, ...], classes: int) -> tuple[nn.Module, Tensor, Tensor]:
    """The network after a few steps on noisy patterns, its images and labels."""
    patterns = torch.rand(classes, *shape)
    y = torch.arange(60) % classes
    x = (patterns[y] + 0.15 * torch.randn(60, *shape)).clamp(0, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model.eval(), x[:3], y[:3]


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky": lambda: nn.LeakyReLU(0.2),
    "steep": lambda: nn.LeakyReLU(1.5),
    "falling": lambda: nn.LeakyReLU(-0.5),
    "hardtanh": lambda: nn.Hardtanh(-0.4, 0.5),
    "relu6": nn.ReLU6,
}


def residual(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(1)
    return fitted(Residual(ACTIVATIONS[name]), (2, 6, 6), 3)


def small_mlp() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(1)
    return fitted(MLP(image_shape=(1, 3, 3), num_classes=4, hidden=(16, 16)), (1, 3, 3), 4)


def inside(x: Tensor, radius: float, norm: Norm, count: int) -> Tensor:
    """Random images in the ball around one image, most of them at its edge; in Linf cut with [0, 1]."""
    noise = torch.randn(count, *x.shape, dtype=torch.float64)
    if norm == "linf":
        noise = torch.where(torch.rand(count, *[1] * x.dim()) < 0.5, noise.sign(), noise.clamp(-1, 1))
        return (x + radius * noise).clamp(0, 1)
    share = torch.rand(count, dtype=torch.float64).sqrt()
    return x + (radius * share / noise.flatten(1).norm(dim=1)).view(-1, *[1] * x.dim()) * noise


def climbed(model: nn.Module, x: Tensor, y: int, radius: float, norm: Norm, start: Tensor) -> Tensor:
    """Where gradient steps towards every other class lead from some images of the ball."""
    found = []
    for other in range(model(x.unsqueeze(0)).shape[1]):
        moved = start.clone()
        for _ in range(20):
            leaf = moved.requires_grad_(True)
            z = model(leaf)
            (slope,) = torch.autograd.grad((z[:, other] - z[:, y]).sum(), leaf)
            if norm == "linf":
                step = leaf.detach() + radius / 4 * slope.sign()
                moved = step.clamp(x - radius, x + radius).clamp(0, 1)
            else:
                long = slope.flatten(1).norm(dim=1).clamp_min(1e-30).view(-1, *[1] * x.dim())
                off = leaf.detach() + radius / 4 * slope / long - x
                size = off.flatten(1).norm(dim=1).view(-1, *[1] * x.dim())
                moved = x + off * (radius / size.clamp_min(1e-30)).clamp_max(1)
        found.append(moved)
    return torch.cat(found)


CASES = {"mlp": small_mlp, **{name: (lambda name=name: residual(name)) for name in ACTIVATIONS}}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", CASES)
def test_no_image_inside_has_another_class(name: str, norm: Norm) -> None:
    """Radii of all methods lie below the nearest adversarial image that brute force finds; they are not zero."""
    model, x, y = CASES[name]()
    radii = torch.stack([certified_margin(model, x, y, norm, method=method) for method in METHODS])
    assert (radii > 0).all()
    assert (radii[0] >= radii[1:].amax(0)).all()
    judge = model.double()
    for image, label, radius in zip(x.double(), y.tolist(), radii[0].tolist(), strict=True):
        tries = inside(image, radius, norm, (TRIES if name in ("mlp", "relu") else TRIES // 10) // len(x))
        with torch.no_grad():
            assert (judge(tries).argmax(1) == label).all()
        assert (judge(climbed(judge, image, label, radius, norm, tries[:30])).argmax(1) == label).all()


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", CASES)
def test_bounds_are_below_the_logits_everywhere_in_the_ball(name: str, norm: Norm) -> None:
    """Far outside what is certified, too: bounds are about numbers, of which a wrong one need not show in a class."""
    model, x, y = CASES[name]()
    model, x = model.double(), x.double()
    for share in (0.1, 1.0, 4.0):
        eps = share * effective_margin(model, x, y, norm).abs().clamp_max(0.5)
        network = read_network(model, x, owner="test")
        with torch.no_grad():
            lower = Crown(network, Ball(norm, x, eps)).floor(network.differences(y)).at(eps)
            steepest = pair_slopes(network, y, norm)
        for i, image in enumerate(x):
            tries = inside(image, float(eps[i]), norm, 2000)
            tries = torch.cat([tries, climbed(model, image, int(y[i]), float(eps[i]), norm, tries[:20])])
            with torch.no_grad():
                z = model(tries)
            gaps = z[:, int(y[i])].unsqueeze(1) - z
            assert (gaps.amin(0) >= lower[:, i]).all()
            moved = (gaps - network.differences(y)[:, i] @ network.logits[i]).abs().amax(0)
            assert (moved <= steepest[:, i] * eps[i] * (1 + 1e-12) + 1e-12).all()


@pytest.mark.parametrize("norm", NORMS)
def test_a_linear_model_has_its_exact_distance(norm: Norm) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).double()
    x = 0.3 + 0.4 * torch.rand(20, 1, 3, 4, dtype=torch.float64)
    y = model(x).argmax(1)
    exact = effective_margin(model, x, y, norm)
    reachable = exact < 0.3  # in Linf a larger ball meets the edge of [0, 1]
    assert reachable.sum() > 5
    for method in METHODS:
        found = certified_margin(model, x, y, norm, method=method)
        if method != "lipschitz" or norm == "l2":
            torch.testing.assert_close(found[reachable], exact[reachable], rtol=1e-6, atol=0.0)
        assert (found <= exact.where(reachable, exact.new_tensor(torch.inf))).all()
    wrong = (y + 1) % 5
    assert (certified_margin(model, x, wrong, norm) == 0).all()


def test_in_linf_the_edge_of_the_box_stops_the_attacker() -> None:
    """An image at the corner: one class is farther away than its linear boundary, another cannot be reached at all."""
    model = nn.Linear(2, 2, bias=True).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]))
        model.bias.copy_(torch.tensor([-1.6, 1.6]))
    x = torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    y = torch.tensor([0, 1, 1])
    torch.testing.assert_close(
        certified_margin(model, x, y, "linf"), torch.tensor([0.2, 0.8, 0.6], dtype=torch.float64)
    )
    with torch.no_grad():
        model.bias.copy_(torch.tensor([0.1, -0.1]))
    assert certified_margin(model, x[:1], y[:1], "linf").item() == math.inf


def test_every_class_counts_and_not_the_runner_up_alone() -> None:
    """The nearest class is the one with the steepest way, not the second logit."""
    model = nn.Linear(2, 3, bias=True).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 0.0], [0.1, 0.0], [0.0, 10.0]]))
        model.bias.copy_(torch.tensor([1.0, 0.9, -4.5]))
    x = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    assert model(x).argsort(descending=True).tolist() == [[0, 1, 2]]
    found = certified_margin(model, x, torch.tensor([0]), "l2", method="crown")
    assert found.item() == pytest.approx(0.05)


@pytest.mark.parametrize("norm", NORMS)
def test_a_type_with_fewer_digits_is_certified_as_the_function_it_is_and_rounded_down(norm: Norm) -> None:
    model, x, y = small_mlp()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        model, x = model.to(dtype), x.to(dtype)
        found = certified_margin(model, x, y, norm)
        assert found.dtype == dtype
        exact = certified_margin(model.double(), x.double(), y, norm)
        assert (found.double() <= exact).all()
        assert (found.double() >= exact * (1 - 2 * torch.finfo(dtype).eps) - 1e-300).all()
        model = model.to(torch.float32)


def test_the_model_is_left_as_it_was_and_images_do_not_see_each_other() -> None:
    model, x, y = residual("relu")
    model.train()
    model.norm1.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.inference_mode():
        together = certified_margin(model, x, y)
    alone = torch.cat([certified_margin(model, x[i : i + 1], y[i : i + 1]) for i in range(len(x))])
    torch.testing.assert_close(together, alone, rtol=PRECISION, atol=0.0)
    assert model.training
    assert not model.norm1.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_what_draws_a_line_holds_the_curve_between_its_lines() -> None:
    torch.manual_seed(0)
    ends = torch.randn(2, 1, 4000, dtype=torch.float64).sort(0).values * 2
    share = torch.linspace(0, 1, 101, dtype=torch.float64).view(-1, 1)
    for low, high, slope in [(0.0, math.inf, 0.0), (0.0, math.inf, 0.3), (0.0, math.inf, 1.7), (-0.5, 0.75, 0.0)]:
        bend = Bend(inputs=(0,), output=1, name="", shape=(4000,), low=low, high=high, slope=slope, center=ends[0])
        line = lines(bend, ends[0], ends[1])
        z = ends[0] + share * (ends[1] - ends[0])
        y = bend.of(z)
        assert (line.lower_slope * z + line.lower_offset <= y + 1e-12).all()
        assert (line.upper_slope * z + line.upper_offset >= y - 1e-12).all()
        straight = ~crosses(bend, ends[0], ends[1])[0]
        assert straight.any()
        torch.testing.assert_close((line.lower_slope * z + line.lower_offset)[:, straight], y[:, straight])


@pytest.mark.parametrize("slope", [0.0, 0.3, 1.7])
def test_a_chord_is_outside_the_curve_in_exact_arithmetic(slope: float) -> None:
    torch.manual_seed(0)
    ends = torch.rand(2, 1, 400, dtype=torch.float64) * torch.tensor([-1.0, 1.0]).view(2, 1, 1)
    bend = Bend(inputs=(0,), output=1, name="", shape=(400,), low=0.0, high=math.inf, slope=slope, center=ends[0])
    line = lines(bend, ends[0], ends[1])
    chord = (line.upper_slope, line.upper_offset) if slope < 1 else (line.lower_slope, line.lower_offset)
    for end, steepness in ((ends[0], slope), (ends[1], 1.0)):
        for z, a, b in zip(end[0].tolist(), *(part[0].tolist() for part in chord), strict=True):
            above = Fraction(a) * Fraction(z) + Fraction(b) - Fraction(steepness) * Fraction(z)
            assert above >= 0 if slope < 1 else above <= 0


def test_a_lipschitz_constant_of_a_steep_activation() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(-3.0), nn.Linear(2, 2)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
        model[2].weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
    x = torch.rand(1, 2, dtype=torch.float64)
    for norm, steepest in (("l2", 3 * math.sqrt(8)), ("linf", 3 * 4)):
        with torch.no_grad():
            found = pair_slopes(read_network(model, x, owner="test"), torch.tensor([0]), norm)
        torch.testing.assert_close(found[:, 0], torch.tensor([0.0, steepest], dtype=torch.float64), rtol=1e-6, atol=0.0)


class Peeking(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.fc, self.how = nn.Linear(9, 3), how

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if self.how == "mask":
            return self.fc(x * (x > 0.5))
        if self.how == "branch" and float(x.detach().sum()) > 0:
            return self.fc(x)
        if self.how == "noise":
            return self.fc(x) + torch.randn(3, dtype=x.dtype)
        if self.how == "mean of the batch":
            return self.fc(x - x.mean(0, keepdim=True))
        if self.how == "another image":
            return self.fc(x.flip(0))
        if self.how == "images joined":
            return self.fc(torch.cat([x, 1 - x])).unflatten(0, (2, -1)).mean(0)
        if self.how == "statistics of the batch":
            return self.fc(F.batch_norm(x, None, None, training=True))
        if self.how == "detour":
            return self.fc(x.float().to(x.dtype)) if x.dtype == torch.float64 else self.fc(x)
        return self.fc(torch.where(x > 0.5, x, 0.5 * x))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.Sigmoid(), nn.Linear(4, 3)), "no bounds for sigmoid"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.GELU(), nn.Linear(4, 3)), "no bounds for gelu"),
        (lambda: nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1, 3)), "no bounds for max_pool2d"),
        (lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(9), nn.Linear(9, 3)), "no bounds for layer_norm"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, 3), nn.Softmax(1)), "no bounds for softmax"),
        (lambda: Peeking("mask"), "gt of an activation"),
        (lambda: Peeking("where"), "gt of an activation"),
        (lambda: Peeking("branch"), "detach of an activation"),
        (lambda: Peeking("detour"), "float gives torch.float32"),
        (lambda: Peeking("noise"), "other logits each time"),
        (lambda: Peeking("mean of the batch"), r"mean makes \(1, 9\) of 2 images"),
        (lambda: Peeking("another image"), "or beside other images"),
        (lambda: Peeking("images joined"), r"unflatten makes \(2, 1, 3\) of 1 images"),
        (lambda: Peeking("statistics of the batch"), "more than 1 value per channel"),
    ],
)
def test_what_cannot_be_bounded_is_refused_by_name(model: Callable[[], nn.Module], words: str) -> None:
    x, y = torch.rand(2, 1, 3, 3), torch.tensor([0, 1])
    for method in METHODS:
        with pytest.raises(InputError, match=words):
            certified_margin(model(), x, y, method=method)


def test_mistakes() -> None:
    model, x, y = nn.Linear(4, 3), torch.rand(2, 4), torch.tensor([0, 1])
    with pytest.raises(InputError, match=r"certified_margin.norm must be one of 'l2', 'linf', got 'l1'"):
        certified_margin(model, x, y, "l1")
    with pytest.raises(InputError, match=r"certified_margin.method must be one of 'auto', 'crown', 'lipschitz'"):
        certified_margin(model, x, y, method="smoothing")
    with pytest.raises(InputError, match=r"labels must be in 0\.\.2"):
        certified_margin(model, x, y + 2)
    with pytest.raises(InputError, match="images must be in"):
        certified_margin(model, x * 255, y)
    with pytest.raises(InputError, match="does not convert them"):
        certified_margin(model, x.double(), y)


def test_many_classes_never_make_a_matrix_of_classes_by_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 3,000 classes one image's whole table of differences would be 9 million numbers."""
    largest = 0
    usual = Network.differences

    def watched(network: Network, y: Tensor, classes: slice = slice(None)) -> Tensor:
        nonlocal largest
        rows = usual(network, y, classes)
        largest = max(largest, rows.numel())
        return rows

    monkeypatch.setattr(Network, "differences", watched)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3000))
    x = torch.rand(1, 6)
    radius = certified_margin(model, x, model(x).argmax(1), method="lipschitz")
    assert radius > 0
    assert 0 < largest <= 64 * 3000
