"""The models by name, each as a frozen dataclass that is its own configuration and builds itself.

What the data decides (image shape, classes) and what the run decides (seed, head) are arguments of ``build``;
what makes the architecture is a field. ``MODELS`` is the one list of legal names.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import nn

from widemargin.core.randomness import initialized_from
from widemargin.errors import InputError
from widemargin.heads.linear import Linear, LinearHead
from widemargin.models.classifier import (
    ImageShape,
    Init,
    Normalization,
    initialize,
    require_count,
    require_counts,
    require_init,
)
from widemargin.models.cnn import CNN
from widemargin.models.mlp import MLP
from widemargin.models.resnet import TEACHER_STRIDES, USUAL_STRIDES, PreActResNet18, ResNet18
from widemargin.models.wide_resnet import Variant, WideResNet, check_wide_resnet
from widemargin.types import MakeHead


@dataclass(frozen=True, kw_only=True)
class MLPConfig:
    """The paper's MLP for MNIST; ``hidden`` holds one width per hidden layer, ``init`` says how weights are drawn."""

    hidden: tuple[int, ...] = (1024, 1024, 1024, 1024)
    normalize: Normalization | None = None
    init: Init = None

    def __post_init__(self) -> None:
        """Refuse widths that are not counts."""
        require_counts("MLPConfig.hidden", self.hidden, remedy="give one width per hidden layer, such as (1024, 1024)")
        _require_normalization("MLPConfig", self.normalize)
        require_init("MLPConfig", self.init)

    def build(
        self, *, image_shape: ImageShape, num_classes: int, seed: int | None, make_head: MakeHead = LinearHead
    ) -> MLP:
        """The network with weights drawn from ``seed``."""
        with initialized_from(seed):
            model = MLP(
                image_shape=image_shape,
                num_classes=num_classes,
                hidden=self.hidden,
                normalize=self.normalize,
                make_head=make_head,
            )
            initialize(model, self.init)
            return model


@dataclass(frozen=True, kw_only=True)
class CNNConfig:
    """The paper's small CNN for CIFAR-10; ``init`` says how weights are drawn."""

    normalize: Normalization | None = None
    init: Init = None

    def __post_init__(self) -> None:
        """Refuse a normalization of the wrong kind."""
        _require_normalization("CNNConfig", self.normalize)
        require_init("CNNConfig", self.init)

    def build(
        self, *, image_shape: ImageShape, num_classes: int, seed: int | None, make_head: MakeHead = LinearHead
    ) -> CNN:
        """The network with weights drawn from ``seed``."""
        with initialized_from(seed):
            model = CNN(
                image_shape=image_shape,
                num_classes=num_classes,
                normalize=self.normalize,
                make_head=make_head,
            )
            initialize(model, self.init)
            return model


@dataclass(frozen=True, kw_only=True)
class ResNet18Config:
    """ResNet-18 for small images; ``width`` is that of the first stage, 64 in the field."""

    width: int = 64
    normalize: Normalization | None = None

    def __post_init__(self) -> None:
        """Refuse a width that is not a count."""
        require_count("ResNet18Config.width", self.width, remedy="the usual width is 64")
        _require_normalization("ResNet18Config", self.normalize)

    def build(
        self, *, image_shape: ImageShape, num_classes: int, seed: int | None, make_head: MakeHead = LinearHead
    ) -> ResNet18:
        """The network with weights drawn from ``seed``."""
        with initialized_from(seed):
            return ResNet18(
                image_shape=image_shape,
                num_classes=num_classes,
                width=self.width,
                strides=USUAL_STRIDES,
                normalize=self.normalize,
                make_head=make_head,
            )


@dataclass(frozen=True, kw_only=True)
class PreActResNet18Config:
    """Pre-activation ResNet-18 for small images; ``last_norm`` is the batch norm after the last block."""

    width: int = 64
    last_norm: bool = True
    normalize: Normalization | None = None

    def __post_init__(self) -> None:
        """Refuse a width that is not a count."""
        require_count("PreActResNet18Config.width", self.width, remedy="the usual width is 64")
        _require_normalization("PreActResNet18Config", self.normalize)

    def build(
        self, *, image_shape: ImageShape, num_classes: int, seed: int | None, make_head: MakeHead = LinearHead
    ) -> PreActResNet18:
        """The network with weights drawn from ``seed``."""
        with initialized_from(seed):
            return PreActResNet18(
                image_shape=image_shape,
                num_classes=num_classes,
                width=self.width,
                last_norm=self.last_norm,
                normalize=self.normalize,
                make_head=make_head,
            )


@dataclass(frozen=True, kw_only=True)
class LBGATTeacherConfig:
    """LBGAT's teacher: ResNet-18 whose second stage keeps the resolution."""

    width: int = 64
    normalize: Normalization | None = None

    def __post_init__(self) -> None:
        """Refuse a width that is not a count."""
        require_count("LBGATTeacherConfig.width", self.width, remedy="the usual width is 64")
        _require_normalization("LBGATTeacherConfig", self.normalize)

    def build(
        self, *, image_shape: ImageShape, num_classes: int, seed: int | None, make_head: MakeHead = LinearHead
    ) -> ResNet18:
        """The network with weights drawn from ``seed``."""
        with initialized_from(seed):
            return ResNet18(
                image_shape=image_shape,
                num_classes=num_classes,
                width=self.width,
                strides=TEACHER_STRIDES,
                normalize=self.normalize,
                make_head=make_head,
            )


@dataclass(frozen=True, kw_only=True)
class WideResNetConfig:
    """WideResNet-depth-widen; ``trades`` for public checkpoints, ``madry`` for the paper's own networks."""

    depth: int = 34
    widen: int = 10
    variant: Variant = "madry"
    normalize: Normalization | None = None

    def __post_init__(self) -> None:
        """Refuse a depth, width or variant that no WideResNet has."""
        check_wide_resnet("WideResNetConfig", depth=self.depth, widen=self.widen, variant=self.variant)
        _require_normalization("WideResNetConfig", self.normalize)

    def build(
        self, *, image_shape: ImageShape, num_classes: int, seed: int | None, make_head: MakeHead = LinearHead
    ) -> WideResNet:
        """The network with weights drawn from ``seed``."""
        with initialized_from(seed):
            return WideResNet(
                image_shape=image_shape,
                num_classes=num_classes,
                depth=self.depth,
                widen=self.widen,
                variant=self.variant,
                normalize=self.normalize,
                make_head=make_head,
            )


class ModelFactory(Protocol):
    """What a model's configuration must offer; those below do, and so may one of your own."""

    def build(
        self, *, image_shape: ImageShape, num_classes: int, seed: int | None, make_head: MakeHead = LinearHead
    ) -> nn.Module:
        """The network with weights drawn from ``seed``."""
        ...


ModelConfig = MLPConfig | CNNConfig | ResNet18Config | PreActResNet18Config | LBGATTeacherConfig | WideResNetConfig

MODELS: dict[str, type] = {
    "mlp": MLPConfig,
    "cnn": CNNConfig,
    "resnet18": ResNet18Config,
    "preact-resnet18": PreActResNet18Config,
    "lbgat-teacher": LBGATTeacherConfig,
    "wrn-34-10": WideResNetConfig,
}


def build_model(
    config: ModelFactory,
    *,
    image_shape: ImageShape,
    num_classes: int,
    seed: int | None,
    make_head: MakeHead = LinearHead,
) -> nn.Module:
    """The network that ``config`` describes, on the CPU, with weights drawn from ``seed``."""
    made: list[nn.Module] = []

    def noted(feature_size: int, num_classes: int) -> nn.Module:
        made.append(make_head(feature_size, num_classes))
        return made[-1]

    model = config.build(image_shape=image_shape, num_classes=num_classes, seed=seed, make_head=noted)
    if not made and make_head is not LinearHead and not isinstance(make_head, Linear):
        raise InputError(
            f"head: {make_head!r} would have no effect: {type(config).__name__}.build makes its own last layer; "
            "let it call make_head(feature_size, num_classes), or leave the head linear"
        )
    return model


def _require_normalization(owner: str, value: object) -> None:
    if value is not None and not isinstance(value, Normalization):
        raise InputError(
            f"{owner}.normalize must be a Normalization or None, got {value!r}; "
            "give mean and std, one number per channel each"
        )
