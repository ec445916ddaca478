"""Models: normalization, backbone and head in one module, under the field's public key names.

``MODELS`` is the one list of legal names; a class of your own may be added to it (``docs/adding.md``).
"""

from widemargin.models.classifier import (
    CIFAR10_NORMALIZATION,
    MNIST_NORMALIZATION,
    Classifier,
    ImageShape,
    ModelConfig,
    ModelFactory,
    Normalization,
    Normalize,
    build_model,
)
from widemargin.models.cnn import CNN, CNNConfig
from widemargin.models.mlp import MLP, MLPConfig
from widemargin.models.normalization import pixels
from widemargin.models.public_weights import load_public_state_dict
from widemargin.models.resnet import (
    TEACHER_STRIDES,
    USUAL_STRIDES,
    LBGATTeacherConfig,
    PreActResNet18,
    PreActResNet18Config,
    ResNet18,
    ResNet18Config,
)
from widemargin.models.swish_wide_resnet import LargeSwishWideResNetConfig, SwishWideResNet, SwishWideResNetConfig
from widemargin.models.wide_resnet import WideResNet, WideResNetConfig

MODELS: dict[str, type] = {
    "mlp": MLPConfig,
    "cnn": CNNConfig,
    "resnet18": ResNet18Config,
    "preact-resnet18": PreActResNet18Config,
    "lbgat-teacher": LBGATTeacherConfig,
    "wrn-34-10": WideResNetConfig,
    "wrn-28-10-swish": SwishWideResNetConfig,
    "wrn-70-16-swish": LargeSwishWideResNetConfig,
}

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
    "LargeSwishWideResNetConfig",
    "MLPConfig",
    "ModelConfig",
    "ModelFactory",
    "Normalization",
    "Normalize",
    "PreActResNet18",
    "PreActResNet18Config",
    "ResNet18",
    "ResNet18Config",
    "SwishWideResNet",
    "SwishWideResNetConfig",
    "WideResNet",
    "WideResNetConfig",
    "build_model",
    "load_public_state_dict",
    "pixels",
]
