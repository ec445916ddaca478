"""How training uses a head: those of the package, one of the user's own, models that have none; no margin is lost."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from head_steps import X, Y, network, step
from torch import Tensor, nn

from widemargin import InputError
from widemargin.heads import Hypersphere, LargeMargin, Linear, LinearHead, MakeHead, after_update, logits_for_training
from widemargin.models import build_model
from widemargin.models.classifier import ImageShape
from widemargin.objectives import Standard
from widemargin.types import Nets


class Body(nn.Module):
    """A network of the user's own that knows nothing of this package."""

    def __init__(self, head: nn.Module, name: str = "head") -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU())
        self.name = name
        self.passes = 0
        setattr(self, name, head)

    def features(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self, self.name)(self.features(x))


class Halved(nn.Linear):
    """A head of the user's own: it trains with halved logits."""

    def training_logits(self, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        assert features.shape == (len(y), self.in_features)
        return logits / 2


@pytest.mark.parametrize("name", ["head", "last"])
def test_a_head_without_the_contract_trains_with_what_it_predicts(name: str) -> None:
    model = Body(nn.Linear(5, 3), name)
    logits, label_logits = logits_for_training(model, X, Y)
    assert label_logits is logits
    assert torch.equal(logits, model(X))


def test_a_head_of_the_users_own_is_asked_and_the_features_are_computed_once() -> None:
    model = Body(Halved(5, 3))
    logits, label_logits = logits_for_training(model, X, Y)
    assert model.passes == 1
    assert torch.equal(logits, model(X))
    assert torch.equal(label_logits, logits / 2)


@pytest.mark.parametrize("head", [Linear(), Hypersphere(margin=0.0), LargeMargin(margin=1)])
def test_the_packages_heads_predict_in_training_what_the_model_predicts(head: MakeHead) -> None:
    model = network(head)
    logits, label_logits = logits_for_training(model, X, Y)
    assert torch.equal(logits, model(X))
    torch.testing.assert_close(label_logits, logits)


@pytest.mark.parametrize(("head", "factor"), [(nn.Linear(5, 3), 1.0), (Halved(5, 3), 0.5)], ids=["plain", "halved"])
def test_a_step_of_a_network_of_the_users_own(head: nn.Module, factor: float) -> None:
    model = Body(head)
    before = [p.detach().clone() for p in model.parameters()]
    expected = F.cross_entropy(factor * model(X), Y, reduction="none").detach()
    torch.testing.assert_close(step(model, Standard())["loss"], expected)
    assert all(not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_after_an_update_every_head_inside_is_told_once() -> None:
    class Told(nn.Linear):
        told = 0

        def after_step(self) -> None:
            self.told += 1

    model = nn.ModuleDict({"one": nn.Sequential(nn.ReLU(), Told(2, 2)), "other": Told(2, 2)})
    after_update(model)
    assert [module.told for module in model.modules() if isinstance(module, Told)] == [1, 1]


def test_the_linear_head_is_a_linear_layer_under_the_usual_keys() -> None:
    head = LinearHead(5, 3)
    plain = nn.Linear(5, 3)
    plain.load_state_dict(head.state_dict())
    features = torch.randn(5, 5)
    assert list(head.state_dict()) == ["weight", "bias"]
    logits = head(features)
    assert torch.equal(logits, plain(features))
    assert head.training_logits(features, logits, Y) is logits


# A margin is never left out silently: behind a wrapper, under another name, or not built at all


class NoFeatures(nn.Module):
    """Its head lies under the name given."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, LargeMargin()(12, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.get_submodule(self.name)(x.flatten(1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.DataParallel(Body(Hypersphere()(5, 3))),
        lambda: nn.Sequential(Body(Hypersphere()(5, 3))),
        lambda: NoFeatures("last"),
    ],
)
def test_a_hidden_margin_is_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(InputError, match=r"margin training would leave out; it is looked for as model\.head"):
        Standard()(Nets(make()), X, Y, epoch=0)


def test_a_head_needs_features() -> None:
    with pytest.raises(InputError, match=r"needs NoFeatures\.features\(x\)"):
        Standard()(Nets(NoFeatures("head")), X, Y, epoch=0)


def test_a_margin_in_its_place_counts_also_behind_a_compiled_head() -> None:
    net = Body(Hypersphere(margin=0.5)(5, 3))
    expected = Standard()(Nets(net), X, Y, epoch=0).loss
    assert (expected > F.cross_entropy(net(X), Y, reduction="none")).all()
    net.head = torch.compile(net.head, backend="eager")
    torch.testing.assert_close(Standard()(Nets(net), X, Y, epoch=0).loss, expected)


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
