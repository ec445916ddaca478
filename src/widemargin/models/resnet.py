"""ResNet-18 for small images: as TRADES, MART and MAIL share it, and the pre-activation one of Rice and AWP.

A 3x3 stem without pooling, four stages of two blocks, global average, head; PyTorch's default initialization. The field
writes average pool 4 (teacher: 8); on 32x32 images that is the global average taken here.

The usual one has the keys ``conv1.weight, bn1.*, layer{1-4}.{0,1}.{conv1,bn1,conv2,bn2}.*,
layer{2-4}.0.shortcut.{0.weight,1.*}, linear.*``; 11,173,962 parameters. With strides (1, 1, 2, 2) it is LBGAT's
teacher: the same parameters on larger maps (32, 32, 16, 8), about 3.2 times the work.

The pre-activation one normalizes and activates before each convolution and once more after the last block. Keys:
``conv1.weight, layer{1-4}.{0,1}.{bn1,conv1,bn2,conv2}.*, layer{2-4}.0.shortcut.0.weight, bn.*, linear.*``; older files
have no ``bn`` (``last_norm=False``). 11,172,170 parameters.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self, cast

from torch import Tensor, nn

from widemargin.core.schema import added
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
    require_count,
)
from widemargin.types import MakeHead

USUAL_STRIDES = (1, 2, 2, 2)
TEACHER_STRIDES = (1, 1, 2, 2)


class BasicBlock(nn.Module):
    """act(bn(conv(act(bn(conv(x))))) + shortcut(x)); the shortcut projects where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, activation: Activation = "relu") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.act1 = ACTIVATIONS[activation]()
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.act2 = ACTIVATIONS[activation]()
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != out_channels:
            project = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(project, nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) to (B, out, H / stride, W / stride)."""
        out = self.act1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out)) + self.shortcut(x)
        return cast(Tensor, self.act2(out))


class ResNet18(Classifier):
    """Four stages of two basic blocks, of widths w, 2w, 4w, 8w."""

    head_key = "linear"

    def __init__(
        self,
        *,
        image_shape: ImageShape = (3, 32, 32),
        num_classes: int = 10,
        width: int = 64,
        strides: tuple[int, int, int, int] = USUAL_STRIDES,
        activation: Activation = "relu",
        normalize: Normalization | None = None,
        make_head: MakeHead = LinearHead,
    ) -> None:
        require_count("ResNet18.width", width, remedy="the usual width is 64")
        check_activation("ResNet18", activation)
        super().__init__(image_shape=image_shape, num_classes=num_classes, feature_size=8 * width, normalize=normalize)
        self.conv1 = nn.Conv2d(image_shape[0], width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.act1 = ACTIVATIONS[activation]()
        self.layer1, self.layer2, self.layer3, self.layer4 = _stages(BasicBlock, width, strides, activation)
        self.linear = self._new_head(make_head)

    def embed(self, x: Tensor) -> Tensor:
        """The average of the last feature map: (B, 8 * width)."""
        x = self.act1(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return x.mean(dim=(2, 3))


class PreActBlock(nn.Module):
    """conv(act(bn(conv(act(bn(x)))))) + shortcut; where the shape changes, it projects act(bn(x))."""

    def __init__(self, in_channels: int, out_channels: int, *, stride: int, activation: Activation = "relu") -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.act1 = ACTIVATIONS[activation]()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.act2 = ACTIVATIONS[activation]()
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.shortcut: nn.Module | None = None
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) to (B, out, H / stride, W / stride)."""
        active = self.act1(self.bn1(x))
        out = self.conv2(self.act2(self.bn2(self.conv1(active))))
        return cast(Tensor, out + (x if self.shortcut is None else self.shortcut(active)))


class PreActResNet18(Classifier):
    """Four stages of two pre-activation blocks, of widths w, 2w, 4w, 8w, then a last bn and activation."""

    head_key = "linear"

    def __init__(
        self,
        *,
        image_shape: ImageShape = (3, 32, 32),
        num_classes: int = 10,
        width: int = 64,
        last_norm: bool = True,
        activation: Activation = "relu",
        normalize: Normalization | None = None,
        make_head: MakeHead = LinearHead,
    ) -> None:
        require_count("PreActResNet18.width", width, remedy="the usual width is 64")
        check_activation("PreActResNet18", activation)
        super().__init__(image_shape=image_shape, num_classes=num_classes, feature_size=8 * width, normalize=normalize)
        self.conv1 = nn.Conv2d(image_shape[0], width, 3, padding=1, bias=False)
        self.layer1, self.layer2, self.layer3, self.layer4 = _stages(PreActBlock, width, USUAL_STRIDES, activation)
        self.bn = nn.BatchNorm2d(8 * width) if last_norm else None
        self.act = ACTIVATIONS[activation]() if last_norm else None
        self.linear = self._new_head(make_head)

    def embed(self, x: Tensor) -> Tensor:
        """The average of the last feature map: (B, 8 * width)."""
        x = self.layer4(self.layer3(self.layer2(self.layer1(self.conv1(x)))))
        if self.bn is not None and self.act is not None:
            x = self.act(self.bn(x))
        return x.mean(dim=(2, 3))


def _stages(
    block: type[nn.Module], width: int, strides: tuple[int, int, int, int], activation: Activation
) -> Iterator[nn.Sequential]:
    """Two blocks each; all but the first double the width."""
    widths = (width, width, 2 * width, 4 * width, 8 * width)
    for before, after, stride in zip(widths, widths[1:], strides, strict=False):
        first = block(before, after, stride=stride, activation=activation)
        yield nn.Sequential(first, block(after, after, stride=1, activation=activation))


@dataclass(frozen=True, kw_only=True)
class ResNetConfig(ModelConfig):
    """What the three here share."""

    width: int = 64
    activation: Activation = added("relu")

    def __post_init__(self) -> None:
        require_count(f"{type(self).__name__}.width", self.width, remedy="the usual width is 64")
        check_activation(type(self).__name__, self.activation)
        super().__post_init__()

    def smoke(self) -> Self:
        """An eighth of the usual width."""
        return replace(self, width=8)


@dataclass(frozen=True, kw_only=True)
class ResNet18Config(ResNetConfig):
    """ResNet-18 for small images; ``width`` is that of the first stage, 64 in the field."""

    architecture = ResNet18
    facts = Facts(cost_rank=2, judged_at_once=2500, gradient_mib=4.5)

    @classmethod
    def from_shapes(cls, shapes: Shapes) -> Self | None:
        """By the last stage, with batch norm after the first convolution."""
        if not {"layer4.0.conv1.weight", "bn1.weight"} <= shapes.keys():
            return None
        return cls(width=shapes["linear.weight"][1] // 8)


@dataclass(frozen=True, kw_only=True)
class LBGATTeacherConfig(ResNetConfig):  # not recognized: weights of it are called and shaped as the usual one's
    """LBGAT's teacher: ResNet-18 whose second stage keeps the resolution."""

    architecture = ResNet18

    def network(self, image_shape: ImageShape, num_classes: int, make_head: MakeHead) -> ResNet18:
        """The network with weights drawn from torch's global generator."""
        return ResNet18(
            image_shape=image_shape,
            num_classes=num_classes,
            width=self.width,
            strides=TEACHER_STRIDES,
            activation=self.activation,
            normalize=self.normalize,
            make_head=make_head,
        )


@dataclass(frozen=True, kw_only=True)
class PreActResNet18Config(ResNetConfig):
    """Pre-activation ResNet-18 for small images; ``last_norm`` is the batch norm after the last block."""

    last_norm: bool = True
    architecture = PreActResNet18
    facts = Facts(cost_rank=3)

    @classmethod
    def from_shapes(cls, shapes: Shapes) -> Self | None:
        """By the last stage, without batch norm after the first convolution."""
        if not {"layer4.0.conv1.weight", "layer1.0.bn1.weight"} <= shapes.keys() or "bn1.weight" in shapes:
            return None
        return cls(width=shapes["linear.weight"][1] // 8, last_norm="bn.weight" in shapes)
