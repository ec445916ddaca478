"""A small network with a head, its images, and one step of training."""

import torch
from torch import Tensor, nn

from oracles import images
from widemargin.data import Batch
from widemargin.heads import MakeHead
from widemargin.models import Classifier, MLPConfig, build_model
from widemargin.training import StepContext, train_step
from widemargin.training.state import TrainState
from widemargin.types import Nets, Objective

X, Y = images(5, 1, 3, 4, dtype=torch.float32), torch.tensor([0, 1, 2, 0, 1])


def network(head: MakeHead) -> Classifier:
    return build_model(MLPConfig(hidden=(6,)), image_shape=(1, 3, 4), num_classes=3, seed=0, make_head=head)


def features_of(batch: int = 4) -> Tensor:
    return 3 * torch.randn(batch, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def step(model: nn.Module, objective: Objective, *, number: int = 0) -> dict[str, Tensor]:
    """Of plain gradient descent; what it measured of every image."""
    state = TrainState(nets=Nets(model=model), optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    batch = Batch(step=number, indices=torch.arange(len(Y)), images=X, labels=Y)
    context = StepContext(seed=0, epoch=0, step=number, steps_per_epoch=3)
    return {name: value.detach() for name, value in train_step(state, objective, (), batch, context).items()}
