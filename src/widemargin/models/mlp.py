"""The paper's MLP for MNIST: 784 -> 1024 x 4 (ReLU each) -> 10, without batch norm or dropout.

Keys: ``fcs.{i}.{weight,bias}``; the last one is the head.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Self, cast

from torch import Tensor, nn

from widemargin.heads.linear import LinearHead
from widemargin.models.classifier import (
    ACTIVATIONS,
    Activation,
    Classifier,
    Facts,
    ImageShape,
    InitializedConfig,
    Normalization,
    Shapes,
    check_activation,
    require_counts,
    require_image_shape,
)
from widemargin.types import Head, MakeHead

WIDTHS = "give one width per hidden layer, such as (1024, 1024)"


class MLP(Classifier):
    """Fully connected layers with activations between; ``hidden=()`` gives a linear classifier of the pixels."""

    def __init__(
        self,
        *,
        image_shape: ImageShape = (1, 28, 28),
        num_classes: int = 10,
        hidden: tuple[int, ...] = (1024, 1024, 1024, 1024),
        activation: Activation = "relu",
        normalize: Normalization | None = None,
        make_head: MakeHead = LinearHead,
    ) -> None:
        require_image_shape("MLP.image_shape", image_shape)
        require_counts("MLP.hidden", hidden, remedy=WIDTHS)
        check_activation("MLP", activation)
        widths = (math.prod(image_shape), *hidden)
        super().__init__(image_shape=image_shape, num_classes=num_classes, feature_size=widths[-1], normalize=normalize)
        layers: list[nn.Module] = [nn.Linear(wide, narrow) for wide, narrow in pairwise(widths)]
        self.fcs = nn.ModuleList([*layers, self._new_head(make_head)])
        self.activations = nn.ModuleList(ACTIVATIONS[activation]() for _ in hidden)

    @property
    def head(self) -> Head:
        """The last fully connected layer."""
        return cast(Head, self.fcs[-1])

    def embed(self, x: Tensor) -> Tensor:
        """The last hidden layer (B, hidden[-1])."""
        x = x.flatten(1)
        for i, activation in enumerate(self.activations):
            x = activation(self.fcs[i](x))
        return x


@dataclass(frozen=True, kw_only=True)
class MLPConfig(InitializedConfig):
    """The paper's MLP for MNIST; ``hidden`` holds one width per hidden layer, ``init`` says how weights are drawn."""

    hidden: tuple[int, ...] = (1024, 1024, 1024, 1024)
    architecture = MLP
    facts = Facts(
        cost_rank=0,
        small_image=1024,
        measured_at_once=2500,
        judged_at_once=10_000,
        gradient_mib=0.1,
        tf32_search="never",
    )

    def __post_init__(self) -> None:
        require_counts("MLPConfig.hidden", self.hidden, remedy=WIDTHS)
        super().__post_init__()

    @property
    def head_key(self) -> str:
        """The last of the fully connected layers."""
        return f"fcs.{len(self.hidden)}"

    @classmethod
    def from_shapes(cls, shapes: Shapes) -> Self | None:
        """By the numbered layers."""
        count = sum(key.startswith("fcs.") and key.endswith(".weight") for key in shapes)
        return cls(hidden=tuple(shapes[f"fcs.{i}.weight"][0] for i in range(count - 1))) if count else None
