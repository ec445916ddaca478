"""The paper's small CNN for CIFAR-10 (Table 5): four convolutions, no padding, no batch norm.

Sizes 32 -> 28 -> 24 -> (average pool) 12 -> 10 -> 8 -> (global average) 1; ReLU after each convolution.
Keys: ``conv{1-4}.{weight,bias}, fc.{weight,bias}``. 276,426 parameters.
"""

from dataclasses import dataclass
from typing import Self

from torch import Tensor, nn

from widemargin.errors import InputError
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
)
from widemargin.types import MakeHead

SMALLEST_SIDE = 18  # 18 -> 14 -> 10 -> 5 -> 3 -> 1


class CNN(Classifier):
    """Two 5x5 convolutions, a pool, two 3x3 convolutions, a global average, a head."""

    def __init__(
        self,
        *,
        image_shape: ImageShape = (3, 32, 32),
        num_classes: int = 10,
        activation: Activation = "relu",
        normalize: Normalization | None = None,
        make_head: MakeHead = LinearHead,
    ) -> None:
        check_activation("CNN", activation)
        super().__init__(image_shape=image_shape, num_classes=num_classes, feature_size=128, normalize=normalize)
        if min(image_shape[1:]) < SMALLEST_SIDE:
            raise InputError(
                f"CNN.image_shape must be at least {SMALLEST_SIDE} high and wide, got {image_shape}; "
                "the convolutions have no padding, use an MLP for smaller images"
            )
        self.conv1 = nn.Conv2d(image_shape[0], 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.pool = nn.AvgPool2d(2)
        self.conv3 = nn.Conv2d(64, 128, 3)
        self.conv4 = nn.Conv2d(128, 128, 3)
        self.activations = nn.ModuleList(ACTIVATIONS[activation]() for _ in range(4))
        self.fc = self._new_head(make_head)

    def embed(self, x: Tensor) -> Tensor:
        """The average of the last feature map: (B, 128)."""
        x = self.activations[0](self.conv1(x))
        x = self.pool(self.activations[1](self.conv2(x)))
        x = self.activations[2](self.conv3(x))
        x = self.activations[3](self.conv4(x))
        return x.mean(dim=(2, 3))


@dataclass(frozen=True, kw_only=True)
class CNNConfig(InitializedConfig):
    """The paper's small CNN for CIFAR-10; ``init`` says how weights are drawn."""

    architecture = CNN
    facts = Facts(
        cost_rank=1,
        small_image=3072,
        measured_at_once=1000,
        judged_at_once=10_000,
        gradient_mib=0.4,
        tf32_search="autoattack",
    )

    @classmethod
    def from_shapes(cls, shapes: Shapes) -> Self | None:
        """By the four convolutions with biases."""
        convolutions = {f"conv{i}.{part}" for i in range(1, 5) for part in ("weight", "bias")}
        return cls() if convolutions <= shapes.keys() else None
