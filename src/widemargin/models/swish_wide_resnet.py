"""The WideResNet of Gowal et al. 2020, and of Rebuffi et al. 2021, Wang et al. 2023 and Bartoldson et al. 2024.

Swish (SiLU) in place of ReLU, and TensorFlow's padding: a strided 3x3 convolution gets one row of zeros below and one
column on the right, none above and on the left, so it looks at other pixels than torch's symmetric padding would.
Otherwise as TRADES's WideResNet (``wide_resnet``): pre-activation, widths 16, 16w, 32w, 64w, (depth - 4) / 6 blocks per
group, a 1x1 convolution as shortcut where the width changes, both branches then starting from act(bn(x)).

Keys: ``init_conv.weight, layer.{0-2}.block.{i}.{batchnorm_0,conv_0,batchnorm_1,conv_1}.*,
layer.{0-2}.block.0.shortcut.weight, batchnorm.*, logits.*``. WRN-28-10 has 36,479,194 parameters, WRN-70-16 has
266,796,506. Batch norm moves its statistics by 0.01 a step. Initialization: convolutions N(0, 2 / (k^2 out)),
``logits.bias`` 0, the rest PyTorch's default.

The public networks normalize inside and mostly do not save by what: see ``NORMALIZATIONS`` in ``classifier``. Weights
do not say their activation either; those of these names are taken to be swish networks, as all published ones are.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Self, cast

import torch.nn.functional as F
from torch import Tensor, nn

from widemargin.core.schema import added
from widemargin.errors import InputError
from widemargin.heads.linear import LinearHead
from widemargin.models.classifier import (
    ACTIVATIONS,
    Activation,
    Classifier,
    Facts,
    ImageShape,
    ModelConfig,
    Normalization,
    Shapes,
    check_activation,
)
from widemargin.models.wide_resnet import check_depth_and_width, initialize_by_fan_out
from widemargin.types import MakeHead

MOMENTUM = 0.01  # of batch norm; JAX calls it a decay of 0.99


class PaddedBlock(nn.Module):
    """conv(act(bn(conv(act(bn(x)))))) + shortcut; where the width changes, both start from act(bn(x))."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, activation: Activation) -> None:
        super().__init__()
        self.strided = stride > 1
        self.batchnorm_0 = nn.BatchNorm2d(in_channels, momentum=MOMENTUM)
        self.act_0 = ACTIVATIONS[activation]()
        padding = 0 if self.strided else 1
        self.conv_0 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=padding, bias=False)
        self.batchnorm_1 = nn.BatchNorm2d(out_channels, momentum=MOMENTUM)
        self.act_1 = ACTIVATIONS[activation]()
        self.conv_1 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.shortcut: nn.Module | None = None
        if in_channels != out_channels:
            self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) to (B, out, H / stride, W / stride)."""
        active = self.act_0(self.batchnorm_0(x))
        padded = F.pad(active, (0, 1, 0, 1)) if self.strided else active
        out = self.conv_1(self.act_1(self.batchnorm_1(self.conv_0(padded))))
        return cast(Tensor, out + (x if self.shortcut is None else self.shortcut(active)))


class PaddedGroup(nn.Module):
    """Blocks of one width; the first changes width and resolution."""

    def __init__(
        self, blocks: int, in_channels: int, out_channels: int, *, stride: int, activation: Activation
    ) -> None:
        super().__init__()
        first = PaddedBlock(in_channels, out_channels, stride=stride, activation=activation)
        rest = (PaddedBlock(out_channels, out_channels, stride=1, activation=activation) for _ in range(blocks - 1))
        self.block = nn.Sequential(first, *rest)

    def forward(self, x: Tensor) -> Tensor:
        """All blocks, one after the other."""
        return cast(Tensor, self.block(x))


class SwishWideResNet(Classifier):
    """Three groups of blocks, a last batch norm and activation, global average (the field's pool 8), head."""

    head_key = "logits"

    def __init__(
        self,
        *,
        image_shape: ImageShape = (3, 32, 32),
        num_classes: int = 10,
        depth: int = 28,
        widen: int = 10,
        activation: Activation = "silu",
        normalize: Normalization | None = None,
        make_head: MakeHead = LinearHead,
    ) -> None:
        check_depth_and_width("SwishWideResNet", depth=depth, widen=widen)
        check_activation("SwishWideResNet", activation)
        super().__init__(image_shape=image_shape, num_classes=num_classes, feature_size=64 * widen, normalize=normalize)
        if any(side % 4 for side in image_shape[1:]):  # the branches of a strided block would not fit
            raise InputError(
                f"SwishWideResNet.image_shape must have sides divisible by 4, got {image_shape}; pad the images"
            )
        group = partial(PaddedGroup, (depth - 4) // 6, activation=activation)
        w = 16 * widen
        self.init_conv = nn.Conv2d(image_shape[0], 16, 3, padding=1, bias=False)
        groups = (group(16, w, stride=1), group(w, 2 * w, stride=2), group(2 * w, 4 * w, stride=2))
        self.layer = nn.Sequential(*groups)
        self.batchnorm = nn.BatchNorm2d(4 * w, momentum=MOMENTUM)
        self.act = ACTIVATIONS[activation]()
        self.logits = self._new_head(make_head)
        initialize_by_fan_out(self)

    def embed(self, x: Tensor) -> Tensor:
        """The average of the last feature map: (B, 64 * widen)."""
        return cast(Tensor, self.act(self.batchnorm(self.layer(self.init_conv(x)))).mean(dim=(2, 3)))


@dataclass(frozen=True, kw_only=True)
class SwishWideResNetConfig(ModelConfig):
    """The WideResNet of Gowal et al. 2020 and those after; WRN-28-10 unless told otherwise."""

    depth: int = 28
    widen: int = 10
    activation: Activation = added("silu")
    architecture = SwishWideResNet
    facts = Facts(cost_rank=4)

    def __post_init__(self) -> None:
        check_depth_and_width(type(self).__name__, depth=self.depth, widen=self.widen)
        check_activation(type(self).__name__, self.activation)
        super().__post_init__()

    def smoke(self) -> Self:
        """WRN-10-1: a block in each group."""
        return replace(self, depth=10, widen=1)

    @classmethod
    def from_shapes(cls, shapes: Shapes) -> Self | None:
        """By the blocks of the first group."""
        blocks = sum(key.startswith("layer.0.block.") and key.endswith(".conv_0.weight") for key in shapes)
        return cls(depth=6 * blocks + 4, widen=shapes["logits.weight"][1] // 64) if blocks else None


@dataclass(frozen=True, kw_only=True)
class LargeSwishWideResNetConfig(SwishWideResNetConfig):
    """The same network as WRN-70-16."""

    depth: int = 70
    widen: int = 16
    facts = Facts(cost_rank=5)
