"""Networks of timm, Hugging Face transformers and torchvision, by name: ``timm:convnext_tiny``, ``hf:vit``.

Each library is an optional extra, imported when a network of it is built. A network is built for the data at hand
(classes, channels and, where the architecture needs to know, image size), with random weights; ``pretrained`` loads the
library's, through its own hub, all but a last layer of another size. Images are normalized inside as the library says
(timm and torchvision know for every name), or as ``normalize`` does.

A checkpoint of such a network is read without the library's weights: its own take their place.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor, nn

from widemargin.core.checks import logits_of
from widemargin.core.randomness import initialized_from
from widemargin.errors import InputError
from widemargin.heads.linear import LinearHead
from widemargin.models.classifier import Facts, ImageShape, Normalization, Normalize
from widemargin.types import MakeHead

USUAL_SHAPE: ImageShape = (3, 224, 224)


class LibraryNetwork(nn.Module):
    """Images in [0, 1] to the logits of somebody else's network."""

    def __init__(self, model: nn.Module, normalize: Normalization | None) -> None:
        super().__init__()
        self.normalize = nn.Identity() if normalize is None else Normalize(normalize.mean, normalize.std)
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The logits (B, K)."""
        logits: Tensor = logits_of(self.model(self.normalize(x)))
        return logits


@dataclass(frozen=True, kw_only=True)
class LibraryConfig:
    """What the configurations of all libraries share."""

    name: str
    pretrained: bool = False
    normalize: Normalization | None = None
    facts: ClassVar[Facts] = Facts()
    library: ClassVar[str]
    """What is imported."""
    prefix: ClassVar[str]

    def build(
        self, *, image_shape: ImageShape, num_classes: int, seed: int | None, make_head: MakeHead = LinearHead
    ) -> nn.Module:
        """The network with weights drawn from ``seed``; it makes its own last layer."""
        del make_head
        return self.make(image_shape=image_shape, num_classes=num_classes, seed=seed)

    def make(self, *, image_shape: ImageShape, num_classes: int | None, seed: int | None) -> LibraryNetwork:
        """The same; without a number of classes as many as the library's own weights are for."""
        library = self._imported()
        with initialized_from(seed):
            model = self._network(library, image_shape, num_classes)
        normalize = self.normalize or self._normalization(library)
        return LibraryNetwork(model, None if normalize is None else _for_channels(normalize, image_shape[0]))

    def without_weights(self) -> "LibraryConfig":
        """The same architecture, for weights from elsewhere."""
        return replace(self, pretrained=False)

    def usual_shape(self) -> ImageShape:
        """Of images, as far as the library says."""
        return USUAL_SHAPE

    def _imported(self) -> Any:
        try:
            return importlib.import_module(self.library)
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in ("", self.library):
                raise InputError(
                    f"{self.prefix}:{self.name} needs {self.library}, which does not import here: {error}"
                ) from None
            raise InputError(
                f"{self.prefix}:{self.name} needs {self.library}, which is not installed: "
                f"pip install 'widemargin[{self.prefix}]'"
            ) from None

    def _network(self, library: Any, image_shape: ImageShape, num_classes: int | None) -> nn.Module:
        raise NotImplementedError

    def _normalization(self, library: Any) -> Normalization | None:
        """How the library's own weights want images."""
        del library
        return None

    def _refused(self, error: Exception, *, hub: bool) -> InputError:
        """In one line: the name may be wrong, or weights are asked for and there is no network."""
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        told = f"{self.prefix}:{self.name} cannot be built: {reason}"
        if hub:
            told += f"; what it is or weighs comes from the hub of {self.library}: a network or its cache is needed"
        return InputError(told)


@dataclass(frozen=True, kw_only=True)
class TimmConfig(LibraryConfig):
    """A network of timm, such as `convnext_tiny` or `vit_tiny_patch16_224`, which is told the size of the images."""

    library = "timm"
    prefix = "timm"

    def _network(self, library: Any, image_shape: ImageShape, num_classes: int | None) -> nn.Module:
        options: dict[str, Any] = {"in_chans": image_shape[0]}
        options |= {} if num_classes is None else {"num_classes": num_classes}
        if not library.is_model(self.name.partition(".")[0]):
            near = ", ".join(library.list_models(f"{self.name[:6]}*")[:5])
            raise InputError(f"timm:{self.name}: timm has no model of that name{f'; it has {near}' if near else ''}")
        known = library.get_pretrained_cfg(self.name)
        if known is not None and known.fixed_input_size:
            options["img_size"] = image_shape[1:]
        try:
            model: nn.Module = library.create_model(self.name, pretrained=self.pretrained, **options)
        except Exception as error:  # whatever its hub and its layers make of it
            raise self._refused(error, hub=self.pretrained) from None
        return model

    def usual_shape(self) -> ImageShape:
        """That of the weights of this name."""
        known = self._imported().get_pretrained_cfg(self.name)
        return USUAL_SHAPE if known is None else tuple(known.input_size)

    def _normalization(self, library: Any) -> Normalization | None:
        known = library.get_pretrained_cfg(self.name)
        return None if known is None else _normalization(known.mean, known.std)


@dataclass(frozen=True, kw_only=True)
class HuggingFaceConfig(LibraryConfig):
    """An image classifier of transformers: a name on the hub or a local folder, or a type such as `vit`, built anew.

    What is on the hub says how images are normalized in a file of its own, so with `pretrained` give `normalize`: the
    `image_mean` and `image_std` of its `preprocessor_config.json`.
    """

    library = "transformers"
    prefix = "hf"

    def __post_init__(self) -> None:
        if self.pretrained and self.normalize is None:
            raise InputError(
                f"hf:{self.name}: the hub's weights need a normalization, the image_mean and image_std of its "
                "preprocessor_config.json: give --normalize MEAN,STD, or in a run model.normalize with mean and std"
            )

    def _network(self, library: Any, image_shape: ImageShape, num_classes: int | None) -> nn.Module:
        options: dict[str, Any] = {} if num_classes is None else {"num_labels": num_classes}
        try:
            if self.name in library.CONFIG_MAPPING:
                config = library.AutoConfig.for_model(self.name, **options)
            else:
                config = library.AutoConfig.from_pretrained(self.name, **options)
            if not self.pretrained:
                for key, value in (("num_channels", image_shape[0]), ("image_size", image_shape[1])):
                    if hasattr(config, key):
                        setattr(config, key, value)
                built: nn.Module = library.AutoModelForImageClassification.from_config(config)
                return built
            loaded: nn.Module = library.AutoModelForImageClassification.from_pretrained(
                self.name, config=config, ignore_mismatched_sizes=True
            )
            return loaded
        except Exception as error:  # whatever its hub and its layers make of it
            raise self._refused(error, hub=self.name not in library.CONFIG_MAPPING) from None


@dataclass(frozen=True, kw_only=True)
class TorchvisionConfig(LibraryConfig):
    """A classifier of torchvision, such as `resnet50`; images of three channels."""

    library = "torchvision"
    prefix = "torchvision"

    def _network(self, library: Any, image_shape: ImageShape, num_classes: int | None) -> nn.Module:
        if image_shape[0] != 3:
            raise InputError(f"torchvision:{self.name} takes images of 3 channels, got {image_shape}; use timm's")
        models = library.models
        try:
            if self.pretrained:
                model: nn.Module = models.get_model(self.name, weights="DEFAULT")
                return model if num_classes is None else _with_classes(model, num_classes)
            options = {} if num_classes is None else {"num_classes": num_classes}
            options |= {"image_size": image_shape[1]} if self.name.startswith("vit_") else {}
            new: nn.Module = models.get_model(self.name, weights=None, **options)
            return new
        except Exception as error:  # whatever its hub and its layers make of it
            raise self._refused(error, hub=self.pretrained) from None

    def _normalization(self, library: Any) -> Normalization | None:
        preset = library.models.get_model_weights(self.name).DEFAULT.transforms()
        return _normalization(preset.mean, preset.std)


def _with_classes(model: nn.Module, num_classes: int) -> nn.Module:
    """With a new last linear layer, if the number of classes is another one."""
    name, last = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.Linear)][-1]
    if last.out_features != num_classes:
        owner, _, attribute = name.rpartition(".")
        new = nn.Linear(last.in_features, num_classes, bias=last.bias is not None)
        setattr(model.get_submodule(owner), attribute, new)
    return model


def _for_channels(normalize: Normalization, channels: int) -> Normalization | None:
    """Of gray images by the mean over the colors; of other numbers of channels nothing is known."""
    if channels == len(normalize.mean):
        return normalize
    if channels != 1:
        return None
    return _normalization([sum(normalize.mean) / len(normalize.mean)], [sum(normalize.std) / len(normalize.std)])


def _normalization(mean: Any, std: Any) -> Normalization:
    return Normalization(mean=tuple(map(float, mean)), std=tuple(map(float, std)))


LIBRARIES: Mapping[str, type[LibraryConfig]] = {
    config.prefix: config for config in (TimmConfig, HuggingFaceConfig, TorchvisionConfig)
}


def library_model(text: str, **settings: Any) -> LibraryConfig | None:
    """The configuration of "timm:NAME", "hf:NAME" or "torchvision:NAME"; None for any other text."""
    prefix, colon, name = text.partition(":")
    if not colon or prefix not in LIBRARIES:
        return None
    if not name:
        raise InputError(f"{text!r} names no model of {prefix}; write {prefix}:NAME")
    return LIBRARIES[prefix](name=name, **settings)
