"""A head's margin is never left out silently: behind a wrapper, under another name, or not built at all."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from widemargin import InputError
from widemargin.heads import Hypersphere, LargeMargin, Linear, MakeHead
from widemargin.models import build_model
from widemargin.models.classifier import ImageShape
from widemargin.objectives import Standard
from widemargin.types import Nets

X, Y = torch.rand(3, 1, 3, 4), torch.tensor([0, 1, 4])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(12, 8))
        self.head = Hypersphere(margin=0.5)(8, 5)

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class NoFeatures(nn.Module):
    """Its head lies under the name given."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, LargeMargin()(12, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.get_submodule(self.name)(x.flatten(1))


@pytest.mark.parametrize(
    "make", [lambda: nn.DataParallel(Net()), lambda: nn.Sequential(Net()), lambda: NoFeatures("last")]
)
def test_a_hidden_margin_is_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(InputError, match=r"margin training would leave out; it is looked for as model\.head"):
        Standard()(Nets(make()), X, Y, epoch=0)


def test_a_head_needs_features() -> None:
    with pytest.raises(InputError, match=r"needs NoFeatures\.features\(x\)"):
        Standard()(Nets(NoFeatures("head")), X, Y, epoch=0)


def test_its_own_place_works() -> None:
    net = Net()
    loss = Standard()(Nets(net), X, Y, epoch=0).loss
    assert (loss > torch.nn.functional.cross_entropy(net(X), Y, reduction="none")).all()


@dataclass(frozen=True, kw_only=True)
class Own:
    def build(
        self, *, image_shape: ImageShape, num_classes: int, seed: int | None, make_head: MakeHead | None = None
    ) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(12, num_classes))


def test_a_head_that_is_not_built_is_refused() -> None:
    sizes = {"image_shape": (1, 3, 4), "num_classes": 5, "seed": 0}
    with pytest.raises(InputError, match=r"would have no effect: Own\.build makes its own last layer"):
        build_model(Own(), **sizes, make_head=Hypersphere())
    assert isinstance(build_model(Own(), **sizes, make_head=Linear()), nn.Module)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_steps_are_counted_in_any_precision(kind: torch.dtype) -> None:
    head = LargeMargin()(8, 5).to(kind)
    for _ in range(300):
        head.after_step()
    head.steps += 3000
    head.after_step()
    assert int(head.steps) == 3301
