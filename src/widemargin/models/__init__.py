"""Models: normalization, backbone and head in one module, under the field's public key names."""

from widemargin.models.catalog import (
    MODELS,
    CNNConfig,
    LBGATTeacherConfig,
    MLPConfig,
    ModelConfig,
    ModelFactory,
    PreActResNet18Config,
    ResNet18Config,
    WideResNetConfig,
    build_model,
)
from widemargin.models.classifier import (
    CIFAR10_NORMALIZATION,
    MNIST_NORMALIZATION,
    Classifier,
    ImageShape,
    Normalization,
    Normalize,
)
from widemargin.models.cnn import CNN
from widemargin.models.mlp import MLP
from widemargin.models.public_weights import load_public_state_dict
from widemargin.models.resnet import TEACHER_STRIDES, USUAL_STRIDES, PreActResNet18, ResNet18
from widemargin.models.wide_resnet import WideResNet

__all__ = [
    "CIFAR10_NORMALIZATION",
    "CNN",
    "MLP",
    "MNIST_NORMALIZATION",
    "MODELS",
    "TEACHER_STRIDES",
    "USUAL_STRIDES",
    "CNNConfig",
    "Classifier",
    "ImageShape",
    "LBGATTeacherConfig",
    "MLPConfig",
    "ModelConfig",
    "ModelFactory",
    "Normalization",
    "Normalize",
    "PreActResNet18",
    "PreActResNet18Config",
    "ResNet18",
    "ResNet18Config",
    "WideResNet",
    "WideResNetConfig",
    "build_model",
    "load_public_state_dict",
]
