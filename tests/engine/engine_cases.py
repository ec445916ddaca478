"""Small runs over every objective and penalty, and how to take their steps with any engine."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.attacks import PGD
from widemargin.config import AWPConfig, DataConfig, EMRConfig, IGRConfig, OptimizerConfig, RunConfig
from widemargin.core.randomness import initialized_from
from widemargin.data import Batch
from widemargin.engine import Plan
from widemargin.heads import Hypersphere, LargeMargin, LinearHead, MakeHead
from widemargin.models import (
    Classifier,
    CNNConfig,
    ImageShape,
    LBGATTeacherConfig,
    MLPConfig,
    ResNet18Config,
    SwishWideResNetConfig,
    WideResNetConfig,
)
from widemargin.models.classifier import build_model
from widemargin.objectives import Adversarial, Lbgat, Mail, Mart, Standard, Trades
from widemargin.optimizers import make_optimizer
from widemargin.training.graphed_step import make_steps
from widemargin.training.state import TrainState
from widemargin.training.step import StepContext, Steps
from widemargin.types import Nets


@dataclass(frozen=True, kw_only=True)
class TinyConfig:
    """Two convolutions, a batch norm, a residual sum: the least that has every kind of layer, quick to compile."""

    def build(
        self, *, image_shape: ImageShape, num_classes: int, seed: int | None, make_head: MakeHead = LinearHead
    ) -> Classifier:
        with initialized_from(seed):
            return Tiny(image_shape, num_classes, make_head)


class Tiny(Classifier):
    def __init__(self, image_shape: ImageShape, num_classes: int, make_head: MakeHead) -> None:
        super().__init__(image_shape=image_shape, num_classes=num_classes, feature_size=8, normalize=None)
        self.first = nn.Conv2d(image_shape[0], 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.fc = self._new_head(make_head)

    @property
    def head(self) -> Any:
        return self.fc

    def embed(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return torch.relu(self.second(x) + x).mean((2, 3))


SHAPES = {
    "tiny": (3, 16, 16),
    "mlp": (1, 28, 28),
    "cnn": (3, 32, 32),
    "resnet": (3, 16, 16),
    "wide": (3, 16, 16),
    "leaky": (3, 16, 16),
    "swish": (3, 16, 16),
}
MODELS = {
    "tiny": TinyConfig(),
    "mlp": MLPConfig(hidden=(24, 24)),
    "cnn": CNNConfig(),
    "resnet": ResNet18Config(width=4),
    "wide": WideResNetConfig(depth=10, widen=1, variant="trades"),
    "leaky": WideResNetConfig(depth=10, widen=1, variant="madry"),
    "swish": SwishWideResNetConfig(depth=10, widen=1),
}
PLAIN = PGD(eps=8 / 255, step_size=2 / 255, steps=2)
RANDOM = replace(PLAIN, random_start="gaussian")
OBJECTIVES = {
    "st": Standard(),
    "at": Adversarial(attack=PLAIN),
    "at-random": Adversarial(attack=replace(PLAIN, random_start="uniform")),
    "at-train-mode": Adversarial(attack=replace(PLAIN, mode="train")),
    "trades": Trades(attack=RANDOM),
    "mart": Mart(attack=PLAIN),
    "mail": Mail(attack=PLAIN, over="at", slope=5.0, bias=-0.05, burn_in=1),
    "lbgat": Lbgat(attack=RANDOM, beta=1.0),
}
RODRIGUEZ_MUNOZ: Any = {"weight": 0.02, "norm": "linf", "squared": False, "label_smoothing": 0.1}
PENALTIES = {
    "none": {},
    "exact": {"emr": EMRConfig(kind="exact", weight=0.01)},
    "approximate": {"emr": EMRConfig(kind="approximate", weight=0.1)},
    "stochastic": {"emr": EMRConfig(kind="stochastic", weight=0.01, every=2)},
    "igr": {"igr": IGRConfig(weight=0.1)},
    "linf": {"emr": EMRConfig(kind="exact", weight=1e-4, norm="linf"), "igr": IGRConfig(**RODRIGUEZ_MUNOZ)},
    "stochastic-linf": {"emr": EMRConfig(kind="stochastic", weight=1e-4, norm="linf")},
    "both": {"emr": EMRConfig(kind="approximate", weight=0.1), "igr": IGRConfig(weight=0.1)},
    "awp": {"awp": AWPConfig(gamma=0.01)},
    "awp-approximate": {"emr": EMRConfig(kind="approximate", weight=0.1), "awp": AWPConfig(gamma=0.01)},
}
HEADS = {"linear": {}, "hypersphere": {"head": Hypersphere()}, "large-margin": {"head": LargeMargin()}}


def run_of(model: str = "mlp", objective: str = "st", penalties: str = "none", head: str = "linear") -> RunConfig:
    own: Any = TinyConfig() if model == "tiny" else LBGATTeacherConfig(width=4)
    teacher = own if objective == "lbgat" else None
    return RunConfig(
        name="engine",
        epochs=2,
        batch_size=6,
        data=DataConfig(name="mnist"),
        model=MODELS[model],
        objective=OBJECTIVES[objective],
        teacher=teacher,
        optimizer=OptimizerConfig(lr=0.02, weight_decay=1e-3),
        **PENALTIES[penalties],
        **HEADS[head],
    )


def state_of(config: RunConfig, device: str = "cpu", shape: tuple[int, int, int] = (1, 28, 28)) -> TrainState:
    sizes = {"image_shape": shape, "num_classes": 10}
    model = build_model(config.model, **sizes, seed=0, make_head=config.head).to(device).train()
    teacher = None
    if config.teacher is not None:
        teacher = build_model(config.teacher, **sizes, seed=1).to(device).train()
    nets = Nets(model=model, teacher=teacher)
    return TrainState(nets=nets, optimizer=make_optimizer(nets.all().values(), config.optimizer))


def batches(shape: tuple[int, int, int], count: int, device: str = "cpu") -> list[Batch]:
    generator = torch.Generator().manual_seed(3)
    made = []
    for step in range(count):
        images = torch.rand(6, *shape, generator=generator).to(device)
        labels = torch.randint(0, 10, (6,), generator=generator).to(device)
        made.append(Batch(step, torch.arange(6), images, labels))
    return made


def take(steps: Steps, given: list[Batch], *, per_epoch: int = 10) -> None:
    for number, batch in enumerate(given):
        epoch, step = divmod(number, per_epoch)
        steps(batch, StepContext(seed=0, epoch=epoch, step=step, steps_per_epoch=per_epoch))


def trained(
    config: RunConfig,
    plan: Plan,
    model: str,
    *,
    count: int,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> TrainState:
    """The state after ``count`` steps under a plan."""
    shape = SHAPES[model]
    state = state_of(config, device, shape)
    for net in state.nets.all().values():
        net.to(dtype)
    given = [
        Batch(batch.step, batch.indices, batch.images.to(dtype), batch.labels)
        for batch in batches(shape, count, device)
    ]
    take(make_steps(plan, state, config), given)
    return state


def weights(state: TrainState) -> Tensor:
    """Every parameter and statistic of every network, flat."""
    nets = [net.state_dict() for net in state.nets.all().values()]
    return torch.cat([value.double().flatten().cpu() for net in nets for value in net.values()])


def parameters(state: TrainState) -> Tensor:
    """Every parameter of every network, flat."""
    nets = state.nets.all().values()
    return torch.cat([p.detach().double().flatten().cpu() for net in nets for p in net.parameters()])


def gradients(model: nn.Module, value: Tensor) -> Tensor:
    """d value / d parameters, flat, zero where there is none."""
    parameters = list(model.parameters())
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    pairs = zip(found, parameters, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])


def difference(a: Tensor, b: Tensor) -> float:
    """How far apart they are, in units of the second one's size."""
    return float((a - b).norm() / b.norm())
