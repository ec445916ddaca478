"""WideResNet, in the two variants that the field calls WRN-34-10.

``trades``: ReLU and a 1x1 convolution as shortcut where the width changes (TRADES, MART, LBGAT, HE,
RobustBench; 46,160,474 parameters). ``madry``: LeakyReLU(0.1) and an average pool with zero channels on both
sides as shortcut (Madry's original, and the released EMR code; 45,901,914 parameters). The paper's large
table mixes the two. Either may have another activation.
Both are pre-activation, with widths 16, 16w, 32w, 64w and (depth - 4) / 6 blocks per group; no dropout.
Keys: ``conv1.weight, block{1-3}.layer.{i}.{bn1,conv1,bn2,conv2}.*, bn1.*, fc.*``, and
``...layer.0.convShortcut.weight`` or, in every block, ``...layer.{i}.poolpadShortcut.1.padding``.
Initialization: convolutions N(0, 2 / (k^2 out)), ``fc.bias`` 0, the rest PyTorch's default.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Self, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
    is_count,
    require_count,
)
from widemargin.types import MakeHead

Variant = Literal["trades", "madry"]
ACTIVATION_OF: dict[Variant, Activation] = {"trades": "relu", "madry": "leaky_relu"}


class ChannelPadding(nn.Module):
    """Adds (out - in) / 2 channels of zeros on either side.

    The buffer exists for the public key only. Padding with a number instead of concatenating the buffer keeps
    the dtype under autocast and the memory format.
    """

    padding: Tensor

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.extra = (out_channels - in_channels) // 2
        self.register_buffer("padding", torch.zeros(1, self.extra, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) to (B, out, H, W)."""
        return F.pad(x, (0, 0, 0, 0, self.extra, self.extra)) if self.extra else x


class PreActivationBlock(nn.Module):
    """conv(act(bn(conv(act(bn(x)))))) + shortcut; where the width changes, both start from act(bn(x))."""

    def __init__(
        self, in_channels: int, out_channels: int, *, stride: int, variant: Variant, activation: Activation
    ) -> None:
        super().__init__()
        self.changes_width = in_channels != out_channels
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.act1 = ACTIVATIONS[activation]()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.act2 = ACTIVATIONS[activation]()
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.convShortcut: nn.Module | None = None
        self.poolpadShortcut: nn.Module | None = None
        if variant == "madry":
            pool = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()
            self.poolpadShortcut = nn.Sequential(pool, ChannelPadding(in_channels, out_channels))
        elif self.changes_width:
            self.convShortcut = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) to (B, out, H / stride, W / stride)."""
        active = self.act1(self.bn1(x))
        out = self.conv2(self.act2(self.bn2(self.conv1(active))))
        shortcut = self.convShortcut if self.poolpadShortcut is None else self.poolpadShortcut
        x = active if self.changes_width else x
        return cast(Tensor, out + (x if shortcut is None else shortcut(x)))


class BlockGroup(nn.Module):
    """Blocks of one width; the first changes width and resolution. The public keys say ``layer``."""

    def __init__(
        self,
        blocks: int,
        in_channels: int,
        out_channels: int,
        *,
        stride: int,
        variant: Variant,
        activation: Activation,
    ) -> None:
        super().__init__()
        block = partial(PreActivationBlock, variant=variant, activation=activation)
        first = block(in_channels, out_channels, stride=stride)
        rest = (block(out_channels, out_channels, stride=1) for _ in range(blocks - 1))
        self.layer = nn.Sequential(first, *rest)

    def forward(self, x: Tensor) -> Tensor:
        """All blocks, one after the other."""
        return cast(Tensor, self.layer(x))


class WideResNet(Classifier):
    """Three groups of blocks, a last bn and activation, global average (the field's pool 8), head."""

    def __init__(
        self,
        *,
        image_shape: ImageShape = (3, 32, 32),
        num_classes: int = 10,
        depth: int = 34,
        widen: int = 10,
        variant: Variant = "madry",
        activation: Activation | None = None,
        normalize: Normalization | None = None,
        make_head: MakeHead = LinearHead,
    ) -> None:
        check_depth_and_width("WideResNet", depth=depth, widen=widen)
        check_variant("WideResNet", variant)
        activation = ACTIVATION_OF[variant] if activation is None else activation
        check_activation("WideResNet", activation)
        super().__init__(image_shape=image_shape, num_classes=num_classes, feature_size=64 * widen, normalize=normalize)
        if variant == "madry" and any(side % 4 for side in image_shape[1:]):
            # average pools round an odd side down, strided convolutions up: the branches would not fit
            raise InputError(
                f"WideResNet.image_shape must have sides divisible by 4 for variant='madry', got {image_shape}; "
                "pad the images or use variant='trades'"
            )
        blocks, w = (depth - 4) // 6, 16 * widen
        self.conv1 = nn.Conv2d(image_shape[0], 16, 3, padding=1, bias=False)
        group = partial(BlockGroup, blocks, variant=variant, activation=activation)
        self.block1 = group(16, w, stride=1)
        self.block2 = group(w, 2 * w, stride=2)
        self.block3 = group(2 * w, 4 * w, stride=2)
        self.bn1 = nn.BatchNorm2d(4 * w)
        self.act1 = ACTIVATIONS[activation]()
        self.fc = self._new_head(make_head)
        initialize_by_fan_out(self)

    def embed(self, x: Tensor) -> Tensor:
        """The average of the last feature map: (B, 64 * widen)."""
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        return cast(Tensor, self.act1(self.bn1(x)).mean(dim=(2, 3)))


def initialize_by_fan_out(network: nn.Module) -> None:
    """Convolutions N(0, 2 / (k^2 out)), biases of linear layers 0; batch norm is 1 and 0 already."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = math.prod(module.kernel_size) * module.out_channels
            nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
        elif isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)


def check_depth_and_width(owner: str, *, depth: object, widen: object) -> None:
    """Refuse a depth or width that no WideResNet has; ``owner`` is who is blamed."""
    if not is_count(depth) or depth < 10 or depth % 6 != 4:
        raise InputError(f"{owner}.depth must be 6n + 4 with n of at least 1, got {depth!r}; try 10, 16, 28 or 34")
    require_count(f"{owner}.widen", widen, remedy="the field uses 10")


def check_variant(owner: str, variant: object) -> None:
    """Refuse what is no variant."""
    if variant not in get_args(Variant):
        names = " or ".join(repr(name) for name in get_args(Variant))
        raise InputError(
            f"{owner}.variant must be {names}, got {variant!r}; "
            "public checkpoints are 'trades', the paper's own networks 'madry'"
        )


@dataclass(frozen=True, kw_only=True)
class WideResNetConfig(ModelConfig):
    """WideResNet-depth-widen; ``trades`` for public checkpoints, ``madry`` for the paper's own networks."""

    depth: int = 34
    widen: int = 10
    variant: Variant = "madry"
    activation: Activation | None = None
    """None: the variant's own."""
    architecture = WideResNet
    facts = Facts(cost_rank=4)

    def __post_init__(self) -> None:
        check_depth_and_width("WideResNetConfig", depth=self.depth, widen=self.widen)
        check_variant("WideResNetConfig", self.variant)
        if self.activation is not None:
            check_activation("WideResNetConfig", self.activation)
        super().__post_init__()

    def smoke(self) -> Self:
        """WRN-10-1: a block in each group."""
        return replace(self, depth=10, widen=1)

    @classmethod
    def from_shapes(cls, shapes: Shapes) -> Self | None:
        """By the blocks of the first group and the kind of their shortcuts."""
        blocks = sum(key.startswith("block1.layer.") and key.endswith(".conv1.weight") for key in shapes)
        if not blocks:
            return None
        variant: Variant = "madry" if any("poolpadShortcut" in key for key in shapes) else "trades"
        return cls(depth=6 * blocks + 4, widen=shapes["fc.weight"][1] // 64, variant=variant)
