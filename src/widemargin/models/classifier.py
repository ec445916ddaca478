"""What every model is: images -> normalization -> backbone -> features -> head -> logits, and its configuration.

``model(x) == model.head(model.features(x))`` always holds, so a loss that needs the features (large margin,
hypersphere) computes them once. A backbone writes ``embed`` and keeps its head under the name the field uses
(``head_key``: ``fc``, ``linear``), so that public checkpoints load; ``model.head`` finds it whatever its name.

The normalization (x - mean) / std, per channel, lives inside the model so that everything outside (attacks, eps,
margins) is in pixel units, images in [0, 1]. Its buffers are not saved: the run description holds the numbers, and the
state dict keeps the field's public keys. No normalization is ``nn.Identity``, which adds no keys.

Each architecture's file also holds its ``ModelConfig``: a frozen dataclass that is its own configuration and builds the
network. What makes the architecture is a field, which the network takes under the same name; what the data decides
(image shape, classes) and what the run decides (seed, head) are arguments of ``build``. The class carries what the
package knows of the architecture, too.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, Self, TypeGuard, cast

import torch
from torch import Tensor, nn

from widemargin.core.randomness import initialized_from
from widemargin.core.schema import added
from widemargin.errors import InputError
from widemargin.heads.linear import Linear, LinearHead
from widemargin.types import AfterAverage, Head, MakeHead

ImageShape = tuple[int, int, int]
"""(channels, height, width) of one image."""


def is_count(value: object) -> TypeGuard[int]:
    """Whether this is an integer of one or more; ``True`` is not a count."""
    return type(value) is int and value >= 1


def require_count(name: str, value: object, *, remedy: str) -> None:
    """Refuse anything but an integer of one or more. ``name`` is ``Owner.field``."""
    if not is_count(value):
        raise InputError(f"{name} must be an integer of at least 1, got {value!r}; {remedy}")


def require_counts(name: str, values: object, *, remedy: str) -> None:
    """Refuse anything but a tuple of integers of one or more."""
    if not isinstance(values, tuple) or not all(is_count(value) for value in values):
        raise InputError(f"{name} must be a tuple of integers of at least 1, got {values!r}; {remedy}")


def require_image_shape(name: str, shape: object) -> None:
    """Refuse anything but (channels, height, width)."""
    remedy = "give (channels, height, width), such as (3, 32, 32)"
    require_counts(name, shape, remedy=remedy)
    if isinstance(shape, tuple) and len(shape) != 3:
        raise InputError(f"{name} must have three entries, got {shape!r}; {remedy}")


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """One mean and one standard deviation per channel, in pixel units ([0, 1])."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if not isinstance(values, tuple) or not values or not all(_is_finite_number(value) for value in values):
                raise InputError(
                    f"Normalization.{name} must be a tuple of finite numbers, got {values!r}; "
                    "give one number per channel"
                )
        if len(self.mean) != len(self.std):
            raise InputError(
                f"Normalization.std must be as long as mean ({len(self.mean)}), got {len(self.std)}; "
                "give one of each per channel"
            )
        if min(self.std) <= 0:
            raise InputError(f"Normalization.std must be positive, got {self.std}; images are divided by it")


def _is_finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


MNIST_NORMALIZATION = Normalization(mean=(0.1307,), std=(0.3081,))
CIFAR10_NORMALIZATION = Normalization(mean=(0.4914, 0.4822, 0.4465), std=(0.2471, 0.2435, 0.2616))
NORMALIZATIONS = {
    "cifar10": CIFAR10_NORMALIZATION,
    "cifar100": Normalization(mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)),
    "svhn": Normalization(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
    "tiny-imagenet": Normalization(mean=(0.4802, 0.4481, 0.3975), std=(0.2302, 0.2265, 0.2262)),
    "mnist": MNIST_NORMALIZATION,
}
"""As the public robust networks for these data have them."""


def normalization_of(text: str, channels: int, *, owner: str) -> Normalization | None:
    """A data set's name, ``none``, or MEAN,STD: one of each, or first all means and then all deviations."""
    if text == "none":
        return None
    named, numbers = NORMALIZATIONS.get(text), list[float]()
    with suppress(ValueError):
        numbers = [float(part) for part in text.split(",")]
    if len(numbers) == 2:
        numbers = [number for number in numbers for _ in range(channels)]
    if named is None and len(numbers) == 2 * channels:
        named = Normalization(mean=tuple(numbers[:channels]), std=tuple(numbers[channels:]))
    if named is None or len(named.mean) != channels:
        raise InputError(
            f"{owner} must be none, {', '.join(NORMALIZATIONS)}, or MEAN,STD (2 numbers, or {2 * channels} for images "
            f"of {channels} channels: the means, then the standard deviations), got {text!r}"
        )
    return named


class Normalize(nn.Module):
    """(x - mean) / std per channel, for images of shape (B, C, H, W)."""

    mean: Tensor  # (C, 1, 1)
    std: Tensor  # (C, 1, 1)

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.values = Normalization(mean=tuple(mean), std=tuple(std))
        for name, values in (("mean", self.values.mean), ("std", self.values.std)):
            buffer = torch.tensor(values, dtype=torch.get_default_dtype()).view(-1, 1, 1)
            self.register_buffer(name, buffer, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The normalized images. Without the check one channel would broadcast silently over three."""
        channels = len(self.values.mean)
        if x.dim() < 3 or x.shape[-3] != channels:
            raise InputError(
                f"Normalize expects images of {channels} channel(s), got shape {tuple(x.shape)}; "
                "give one mean and std per channel"
            )
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        return f"mean={self.values.mean}, std={self.values.std}"


class Classifier(nn.Module):
    """Images (B, C, H, W) in [0, 1] to logits (B, K). Backbones write ``embed``, and make their head last."""

    head_key: ClassVar[str] = "fc"
    """Under which public key the network keeps its last layer."""

    def __init__(
        self, *, image_shape: ImageShape, num_classes: int, feature_size: int, normalize: Normalization | None
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        require_image_shape(f"{owner}.image_shape", image_shape)
        if not is_count(num_classes) or num_classes < 2:
            raise InputError(
                f"{owner}.num_classes must be an integer of at least 2, got {num_classes!r}; count the classes of the "
                "data set"
            )
        self.image_shape, self.num_classes, self.feature_size = image_shape, num_classes, feature_size
        if normalize is not None and len(normalize.mean) != image_shape[0]:
            raise InputError(
                f"{owner}.normalize must have {image_shape[0]} channel(s), as the images, "
                f"got {len(normalize.mean)}; give one mean and std per channel"
            )
        self.normalize = nn.Identity() if normalize is None else Normalize(normalize.mean, normalize.std)

    @property
    def head(self) -> Head:
        """The last layer, wherever the backbone keeps it."""
        return cast(Head, getattr(self, self.head_key))

    def embed(self, x: Tensor) -> Tensor:
        """Normalized images (B, C, H, W) to features (B, d)."""
        raise NotImplementedError

    def features(self, x: Tensor) -> Tensor:
        """What the head sees: (B, feature_size)."""
        self.check_images(x)
        return self.embed(self.normalize(x))

    def forward(self, x: Tensor) -> Tensor:
        """The logits (B, K)."""
        return self.head(self.features(x))

    def check_images(self, x: Tensor) -> None:
        """Refuse the wrong images, by shape and dtype only: no device sync, constant under torch.compile."""
        owner = type(self).__name__
        if x.dim() != 4 or tuple(x.shape[1:]) != self.image_shape:
            expected = ", ".join(str(size) for size in self.image_shape)
            raise InputError(
                f"{owner} expects images of shape (B, {expected}), got {tuple(x.shape)}; "
                "build the model with the image_shape of the data"
            )
        if not x.is_floating_point():
            raise InputError(f"{owner} expects floating-point images in [0, 1], got {x.dtype}; divide by 255 first")

    def _new_head(self, make_head: MakeHead) -> nn.Module:
        head = make_head(self.feature_size, self.num_classes)
        if not isinstance(head, Head):
            raise InputError(
                f"{type(self).__name__}.make_head must make a module with training_logits(features, logits, y),"
                f" got {type(head).__name__}; use widemargin.heads.LinearHead in place of nn.Linear"
            )
        return head


Activation = Literal["relu", "silu", "gelu", "leaky_relu"]
LEAK = 0.1
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "silu": nn.SiLU,  # what the field also calls swish
    "gelu": nn.GELU,
    "leaky_relu": partial(nn.LeakyReLU, LEAK),  # Madry's slope, not torch's
}


def check_activation(owner: str, activation: object) -> None:
    """Refuse what is no name of an activation; ``owner`` is who is blamed."""
    if activation not in ACTIVATIONS:
        names = ", ".join(repr(name) for name in ACTIVATIONS)
        raise InputError(f"{owner}.activation must be one of {names}, got {activation!r}; the field's usual is 'relu'")


Init = Literal["he"] | None
"""None: as torch's layers draw them.

Torch's own have a sixth of the variance that keeps the size of activations, as He et al. derive it for ReLU, so a deep
network without batch norm starts with small outputs. What it learns remembers that: see ``docs/paper-vs-code.md`` on
the MLP.
"""


class ModelFactory(Protocol):
    """What a model's configuration must offer; those here do, and so may one of your own."""

    def build(
        self, *, image_shape: ImageShape, num_classes: int, seed: int | None, make_head: MakeHead = LinearHead
    ) -> nn.Module:
        """The network with weights drawn from ``seed``."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of an architecture's size and cost; the defaults are for one of which nothing is."""

    cost_rank: int = 5
    """Its place among the others by the time of a step: longer runs of a table are started first."""
    small_image: int = 0
    """Up to so many numbers in an image, ``measured_at_once`` images are measured at once while it trains."""
    measured_at_once: int = 500
    judged_at_once: int | None = None
    """Images that a GPU takes at once in an evaluation: fewer launches, and enough for an attack to work on when most
    are broken already. The evaluation records it. None: the evaluation's own choice will do."""
    gradient_mib: float = 0.0
    """MiB that the gradient of an image needs; a quarter of a GPU's memory may hold those judged at once."""
    tf32_search: Literal["never", "autoattack", "always"] = "always"
    """Whether attacks search with TF32, where it is: a small network gains by it in AutoAttack alone, or never."""


Shapes = Mapping[str, tuple[int, ...]]
"""The shape of each tensor of a state dict."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What the architectures' configurations share; each names its network, which takes its fields as arguments."""

    normalize: Normalization | None = None
    architecture: ClassVar[type[Any]]
    facts: ClassVar[Facts] = Facts()

    @property
    def head_key(self) -> str:
        """Under which public key the network keeps its last layer."""
        return str(self.architecture.head_key)

    def __post_init__(self) -> None:
        if self.normalize is not None and not isinstance(self.normalize, Normalization):
            raise InputError(
                f"{type(self).__name__}.normalize must be a Normalization or None, got {self.normalize!r}; "
                "give mean and std, one number per channel each"
            )

    def build(
        self, *, image_shape: ImageShape, num_classes: int, seed: int | None, make_head: MakeHead = LinearHead
    ) -> Classifier:
        """The network with weights drawn from ``seed``."""
        with initialized_from(seed):
            return self.network(image_shape, num_classes, make_head)

    def network(self, image_shape: ImageShape, num_classes: int, make_head: MakeHead) -> Classifier:
        """The network with weights drawn from torch's global generator."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "init"}
        model: Classifier = self.architecture(
            image_shape=image_shape, num_classes=num_classes, make_head=make_head, **own
        )
        return model

    def smoke(self) -> Self:
        """The same architecture as small as it can be, for trying a whole table."""
        return self

    @classmethod
    def from_shapes(cls, shapes: Shapes) -> Self | None:
        """The configuration of the network that weights of these names and shapes belong to, if it is one of these."""
        del shapes
        return None


@dataclass(frozen=True, kw_only=True)
class InitializedConfig(ModelConfig):
    """Of a network without batch norm, where it matters how the first weights are drawn."""

    init: Init = None
    activation: Activation = added("relu")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_activation(type(self).__name__, self.activation)
        if self.init not in ("he", None):
            raise InputError(f"{type(self).__name__}.init must be 'he', or None for torch's own, got {self.init!r}")

    def network(self, image_shape: ImageShape, num_classes: int, make_head: MakeHead) -> Classifier:
        """The network with weights drawn from torch's global generator, a second time for ``he``."""
        model = super().network(image_shape, num_classes, make_head)
        if self.init == "he":
            for module in model.modules():
                if isinstance(module, nn.Linear | nn.Conv2d):
                    nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)
            for module in model.modules():
                if isinstance(module, AfterAverage):  # a head with unit rows
                    module.after_average()
        return model


def facts_of(config: ModelFactory) -> Facts:
    """What is known of its architecture; of one's own nothing, unless it says so."""
    facts = getattr(config, "facts", None)
    return facts if isinstance(facts, Facts) else Facts()


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
