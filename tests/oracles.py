"""Slow, obvious answers to hold the package against, and the small networks they are asked about.

Nothing here imports widemargin: an oracle that shares code with what it judges cannot disagree with it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

GOLDEN = Path(__file__).parent / "golden"


# Golden networks


@cache
def golden(name: str) -> dict[str, Any]:
    """The arrays of ``golden/<name>.npz``; floating ones as float64 tensors, labels and counters as int64."""
    with np.load(GOLDEN / f"{name}.npz") as stored:
        arrays = {key: torch.from_numpy(np.array(stored[key])) for key in stored.files}
    return {key: value.double() if value.is_floating_point() else value for key, value in arrays.items()}


def under(name: str, prefix: str) -> dict[str, Tensor]:
    """The golden arrays whose key starts with the prefix, which is cut off."""
    return {k.removeprefix(prefix): v for k, v in golden(name).items() if k.startswith(prefix)}


class GoldenBN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.fc(x.mean((2, 3)))


class GoldenMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fcs = nn.ModuleList([nn.Linear(36, 32), nn.Linear(32, 24), nn.Linear(24, 10)])

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.fcs[:-1]:
            x = torch.relu(layer(x))
        return self.fcs[-1](x)


def golden_net(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor, Tensor]:
    """The network ``bn`` or ``mlp`` with its stored weights, in training mode, and its images and labels."""
    model = {"bn": GoldenBN, "mlp": GoldenMLP}[name]().to(dtype)
    model.load_state_dict(under("emr", f"{name}/w/"))
    return model, golden("emr")[f"{name}/x"].to(dtype), golden("emr")[f"{name}/y"]


class ModernCNN(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor] = F.relu) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.fc = nn.Linear(128, 10)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.bn1(self.conv1(x)))
        x = self.activation(self.bn2(self.conv2(x)))
        return self.fc(x.flatten(1))


class ModernMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(12, 16), nn.Linear(16, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


MODERN: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "cnn_relu": ("cnn", ModernCNN),
    "cnn_gelu": ("cnn", lambda: ModernCNN(F.gelu)),
    "mlp_relu": ("mlp", ModernMLP),
}


def modern_net(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor, Tensor]:
    """The network of ``modern_objectives.npz`` with its stored weights, in training mode, its images and labels."""
    weights, make = MODERN[name]
    model = make().to(dtype)
    model.load_state_dict(under("modern_objectives", f"net/{weights}/w/"))
    stored = golden("modern_objectives")
    return model, stored[f"net/{weights}/x"].to(dtype), stored[f"net/{weights}/y"]


# Other small networks


class Network(nn.Module):
    """A forward, given the network and the images, and the parts it needs."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.run = forward

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def smooth_net(num_classes: int = 4, shape: tuple[int, ...] = (1, 3, 5), seed: int = 0) -> nn.Module:
    """A two-layer tanh network in float64: a second derivative everywhere."""
    size = int(np.prod(shape))
    return seeded(seed, lambda: nn.Sequential(nn.Flatten(), nn.Linear(size, 9), nn.Tanh(), nn.Linear(9, num_classes)))


def relu_net(num_classes: int = 4, shape: tuple[int, ...] = (1, 3, 5), seed: int = 0) -> nn.Module:
    size = int(np.prod(shape))
    return seeded(
        seed,
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(size, 11), nn.ReLU(), nn.Linear(11, 8), nn.ReLU(), nn.Linear(8, num_classes)
        ),
    )


def troublesome_net(num_classes: int = 5, seed: int = 0) -> nn.Module:
    """Images (2, 4, 5) through batch norms with uncommon statistics, dropout, in-place and leaky ReLUs; float64."""

    def make() -> nn.Module:
        net = nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.Linear(6 * 4 * 5, 10),
            nn.BatchNorm1d(10),
            nn.LeakyReLU(0.1),
            nn.Linear(10, num_classes),
        )
        for module in net:
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
        return net

    return seeded(seed, make)


def seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().double()


def images(batch: int, *shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(batch, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def labels(batch: int, num_classes: int, seed: int = 2) -> Tensor:
    return torch.randint(num_classes, (batch,), generator=torch.Generator().manual_seed(seed))


# Oracles


@contextmanager
def plain_evaluation(model: nn.Module) -> Iterator[None]:
    flags = {module: module.training for module in model.modules()}
    model.eval()
    yield
    for module, flag in flags.items():
        module.training = flag


def jacobian_rows(model: nn.Module, sample: Tensor, *, create_graph: bool = False) -> tuple[Tensor, Tensor]:
    """One sample (1, ...) -> its logits (K,) and their input gradients (K, D), one class at a time, stock operators."""
    leaf = sample.detach().clone().requires_grad_(True)
    with plain_evaluation(model), torch.enable_grad():
        logits = model(leaf)[0]
        rows = [
            torch.autograd.grad(logits[j], leaf, retain_graph=True, create_graph=create_graph)[0]
            for j in range(len(logits))
        ]
    return logits, torch.stack([row.flatten() for row in rows])


def jacobian_slowly(model: nn.Module, x: Tensor) -> Tensor:
    """(B, K, D)."""
    return torch.stack([jacobian_rows(model, sample)[1] for sample in x.split(1)])


def exact_emr_slowly(model: nn.Module, x: Tensor) -> Tensor:
    return torch.stack([jacobian_rows(model, sample, create_graph=True)[1].square().sum() for sample in x.split(1)])


def approximate_emr_slowly(model: nn.Module, x: Tensor, temperature: float) -> Tensor:
    penalties = []
    for sample in x.split(1):
        logits, rows = jacobian_rows(model, sample, create_graph=True)
        weights = torch.softmax(logits.detach() / temperature, dim=0)
        penalties.append((weights @ rows).square().sum())
    return torch.stack(penalties)


def effective_margin_slowly(model: nn.Module, x: Tensor, y: Tensor, norm: str) -> Tensor:
    margins = []
    for sample, label in zip(x.split(1), y.tolist(), strict=True):
        logits, rows = (t.detach() for t in jacobian_rows(model, sample))
        others = [j for j in range(len(logits)) if j != label]
        difference = rows[label] - rows[others]
        dual = difference.square().sum(1).sqrt() if norm == "l2" else difference.abs().sum(1)
        margins.append(((logits[label] - logits[others]) / dual).min())
    return torch.stack(margins)


def pgd_slowly(model: nn.Module, x: Tensor, y: Tensor, *, eps: float, step_size: float, steps: int) -> Tensor:
    """Linf PGD on the cross-entropy from x, one image at a time, clipping pixel ranges by their bounds."""
    ends = []
    for sample, label in zip(x.split(1), y.split(1), strict=True):
        low, high = (sample - eps).clamp_min(0), (sample + eps).clamp_max(1)
        point = sample
        for _ in range(steps):
            leaf = point.detach().clone().requires_grad_(True)
            with plain_evaluation(model):
                (gradient,) = torch.autograd.grad(F.cross_entropy(model(leaf), label), leaf)
            point = torch.minimum(torch.maximum(point + step_size * gradient.sign(), low), high)
        ends.append(point)
    return torch.cat(ends)


# Comparing


def parameter_gradients(model: nn.Module, scalar: Tensor, *, retain_graph: bool = False) -> dict[str, Tensor]:
    """d(scalar)/d(parameter) by name of each that is trained, zeros where none; leaves .grad alone."""
    trained = {name.removeprefix("_orig_mod."): p for name, p in model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(scalar, list(trained.values()), retain_graph=retain_graph, allow_unused=True)
    pairs = zip(trained.items(), gradients, strict=True)
    return {name: torch.zeros_like(p) if g is None else g for (name, p), g in pairs}


def assert_close_to_largest(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Every entry within ``tolerance`` of the largest expected entry."""
    scale = float(expected.abs().max())
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0, atol=tolerance * max(scale, 1e-300))


def assert_all_close(actual: dict[str, Tensor], expected: dict[str, Tensor], *, rtol: float, atol: float) -> None:
    assert actual.keys() == expected.keys()
    for name in actual:
        torch.testing.assert_close(
            actual[name], expected[name], rtol=rtol, atol=atol, check_dtype=False, msg=lambda m, n=name: f"{n}: {m}"
        )
