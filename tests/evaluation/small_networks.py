"""Small networks and images for the evaluator's tests; a child process imports this file too."""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Shape = tuple[int, int, int]


@cache
def pictures(num_classes: int, count: int, shape: Shape = (1, 8, 8), seed: int = 0) -> tuple[Tensor, Tensor]:
    """Noisy copies of one random picture per class."""
    generator = torch.Generator().manual_seed(seed)
    prototypes = torch.rand(num_classes, *shape, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(count) % num_classes
    noise = 0.25 * torch.randn(count, *shape, generator=generator)
    return (prototypes[labels] + noise).clamp(0, 1), labels


def conv_net(num_classes: int, shape: Shape = (1, 8, 8), dropout: float = 0.0) -> nn.Module:
    """Two convolutions with batch norm."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Conv2d(6, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * ((height + 1) // 2) * ((width + 1) // 2), num_classes),
    )


def flat_net(num_classes: int, size: int = 64) -> nn.Module:
    """A network of flat inputs (N, D)."""
    return nn.Sequential(nn.Linear(size, 16), nn.ReLU(), nn.Linear(16, num_classes))


def taught(make: Callable[[], nn.Module], x: Tensor, y: Tensor, steps: int = 25, seed: int = 3) -> nn.Module:
    """A moment of training, in evaluation mode after; the global random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make().train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model.eval()


@cache
def _taught_conv(num_classes: int, shape: Shape, dropout: float) -> nn.Module:
    x, y = pictures(num_classes, 120, shape, seed=1)
    return taught(lambda: conv_net(num_classes, shape, dropout), x, y)


def taught_conv(num_classes: int = 10, shape: Shape = (1, 8, 8), dropout: float = 0.0) -> nn.Module:
    """A fresh copy of the trained convolutional network."""
    model = conv_net(num_classes, shape, dropout)
    model.load_state_dict(_taught_conv(num_classes, shape, dropout).state_dict())
    return model.eval()


def taught_flat(num_classes: int = 10) -> nn.Module:
    """The trained network of flat inputs."""
    x, y = pictures(num_classes, 120, seed=1)
    return taught(lambda: flat_net(num_classes), x.flatten(1), y)


class Around(nn.Module):
    """A model whose forward pass is a function of a network and the images."""

    def __init__(self, network: nn.Module, forward: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.network, self.how = network, forward

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self.network, x)


class Counted(nn.Module):
    """Remembers the images of every call; ``at`` gives a function to run in place of the n-th call (from 1)."""

    def __init__(self, model: nn.Module, at: int | None = None, happens: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.model, self.at, self.happens = model, at, happens
        self.seen: list[Tensor] = []

    @property
    def calls(self) -> int:
        return len(self.seen)

    def forward(self, x: Tensor) -> Tensor:
        if self.at is not None and self.calls + 1 == self.at:
            assert self.happens is not None
            self.happens()
        self.seen.append(x.detach().clone())
        return self.model(x)


class Rough(nn.Module):
    """A surface of small waves before the network: gradient attacks get stuck, the black-box one does not."""

    def __init__(self, model: nn.Module, height: float = 0.07, frequency: float = 80.0) -> None:
        super().__init__()
        self.model, self.height, self.frequency = model, height, frequency

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x + self.height * torch.sin(self.frequency * x))
