"""What can be judged: a run folder, a checkpoint of ours, public weights, or a model that a function of yours makes.

No pickle is ever executed: ``.pt`` and ``.pth`` files are read as tensors alone.
"""

import importlib
import inspect
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import nn

from widemargin.config.checkpoint import (
    AVERAGED,
    BEST,
    CONFIG,
    LAST,
    PREVIOUS,
    Description,
    check_run,
    load_checkpoint,
    read_checksum,
    restore_model,
)
from widemargin.config.run import EvaluationConfig, RunConfig
from widemargin.config.toml import read_toml
from widemargin.core.files import check_file
from widemargin.data.image_stream import StoredImages
from widemargin.errors import InputError, WidemarginWarning
from widemargin.evaluation.folder import UNKNOWN, ModelInfo
from widemargin.heads.hypersphere import HypersphereHead
from widemargin.integrations import missing
from widemargin.models.classifier import normalization_of
from widemargin.models.libraries import LibraryConfig, library_model
from widemargin.models.public_weights import infer_architecture, load_public_state_dict, no_larger_than, read_tensors

HUB = "hf://"
"""What an address on Hugging Face's hub begins with."""
PICKLED = (".pt", ".pth", ".ckpt")
"""Files of torch, which hold weights from elsewhere."""


@dataclass(frozen=True)
class Target:
    """A model ready to be judged, and where it comes from."""

    model: nn.Module
    path: Path
    description: Description

    def test_limit(self, limit: int | None) -> int | None:
        """So many test images at most: the run's own limit (``data.test_limit``), or a smaller one asked for."""
        own = self.description.run_config().data.test_limit
        return min((most for most in (own, limit) if most is not None), default=None)

    def check_fits(self, data: StoredImages) -> None:
        """Refuse images of another shape, or of classes the model has no output for."""
        shape, classes = self.description.image_shape, self.description.num_classes
        if data.image_shape != shape or int(data.labels.max()) >= classes:
            raise InputError(
                f"{data.name} holds images {data.image_shape} of {data.num_classes} classes, but {self.path} was "
                f"trained on images {shape} of {classes} classes; choose the data set it was trained on"
            )


def load(path: str | Path) -> nn.Module:
    """The network of a run folder or a checkpoint, in evaluation mode: the run's best weights, else its last.

    Or that of a repository on Hugging Face's hub, ``hf://owner/name``, to which ``widemargin push`` put it.
    """
    return load_target(_fetched(str(path)) if str(path).startswith(HUB) else Path(path)).model.eval()


def _fetched(address: str) -> Path:
    try:
        from widemargin.integrations.hub import fetch
    except ImportError as error:
        raise missing(address, "hub", error) from None
    return fetch(address)


def load_target(path: Path) -> Target:
    """The best weights of a run folder (else its last), or the weights of a checkpoint file."""
    file = _checkpoint_file(path)
    checkpoint = load_checkpoint(file)
    description = checkpoint.description
    if file.name == PREVIOUS:
        description = replace(description, selection="the checkpoint before the last one")
    if path.is_dir():
        _check_folder(path, file, description)
        if file.name == LAST and _has_chosen(description.run_config(), description.epoch):
            warnings.warn(
                f"{path / BEST} is missing; these are the run's last weights", WidemarginWarning, stacklevel=2
            )
            lost = f"; {BEST}, chosen on held-out images, is missing"
            description = replace(description, selection=description.selection + lost)
    return Target(model=restore_model(checkpoint, source=file), path=file, description=description)


def _check_folder(folder: Path, file: Path, description: Description) -> None:
    """Refuse weights that are not of the run whose folder this is."""
    beside = folder.name == AVERAGED and not (folder / CONFIG).is_file()
    config = (folder.parent if beside else folder) / CONFIG
    if not config.is_file():
        return
    run = read_toml(config)
    if beside and run.averaging is not None:
        run = replace(run, averaging=replace(run.averaging, beside=False))
    check_run(file, description, run)


def _has_chosen(config: RunConfig, epoch: int) -> bool:
    """Whether the run has chosen best weights by then."""
    return config.data.held_out > 0 and epoch >= min(config.watch.every, config.epochs)


def _checkpoint_file(path: Path) -> Path:
    check_file(path)
    if path.is_file():
        if path.suffix in PICKLED:
            raise InputError(
                f"{path} is no checkpoint of a run; weights from elsewhere are for evaluate, margins and check"
            )
        return path
    for name in (BEST, LAST):
        check_file(path / name)
        if (path / name).is_file():
            return path / name
    if (path / PREVIOUS).is_file():
        raise InputError(
            f"the folder {path} holds no {LAST}; train goes on from its {PREVIOUS}, which can be given here by name"
        )
    if path.is_dir():
        raise InputError(f"the folder {path} holds no {BEST} or {LAST}; is it a run folder, and has an epoch finished?")
    if ":" in path.name:
        raise InputError(f"{path} looks like a factory of yours; those are for widemargin evaluate, margins and check")
    raise InputError(f"{path} does not exist; give a run folder (what --out named) or a checkpoint file")


@dataclass(frozen=True)
class LoadedModel:
    """A model and what is known about it."""

    model: nn.Module
    subject: ModelInfo
    plan: EvaluationConfig | None = None
    data: str | None = None
    target: Target | None = None
    """Where it comes from, if a run of ours made it."""
    image_shape: tuple[int, int, int] | None = None
    """Of the images it was made for, if that is known."""

    def check_fits(self, data: StoredImages) -> None:
        """Refuse images that a run of ours was not trained on; others must find out by trying."""
        if self.target is not None:
            self.target.check_fits(data)


def load_model(
    text: str,
    *,
    image_shape: tuple[int, int, int] | None,
    head_scale: float | None = None,
    normalize: str | None = None,
    pretrained: bool = True,
) -> LoadedModel:
    """``image_shape`` is that of the data to judge on: public weights do not say what images they want.

    ``normalize`` is what they were trained behind, in words of the command line (``normalization_of``). ``pretrained``:
    a model of a library comes with the library's weights.
    """
    if text.startswith(HUB):
        fetched = load_model(str(_fetched(text)), image_shape=None, head_scale=head_scale, normalize=normalize)
        return replace(fetched, subject=replace(fetched.subject, target=text))
    library = None if Path(text).exists() else library_model(text)
    if library is not None:
        _refuse_options(head_scale, None, f"{text} has a head of its own", "")
        return _from_library(library, text, image_shape, normalize, pretrained=pretrained)
    if ":" in text and not Path(text).exists():
        _refuse_options(head_scale, normalize, f"{text} makes its own head", f"{text} normalizes by itself")
        return _from_factory(text)
    path = Path(text)
    check_file(path)
    if is_public(path):
        return _from_public(path, image_shape, head_scale, normalize)
    target = load_target(path)
    _refuse_options(
        head_scale, normalize, *(f"{target.path} says which {part} it has" for part in ("head", "normalization"))
    )
    config = target.description.run_config()
    return LoadedModel(target.model, model_info(target), config.evaluation, config.data.name, target)


def _refuse_options(head_scale: float | None, normalize: str | None, own_head: str, own_normalization: str) -> None:
    given = {"--head-scale": (head_scale, own_head), "--normalize": (normalize, own_normalization)}
    for option, (value, reason) in given.items():
        if value is not None:
            raise InputError(f"{option} is for public weights; {reason}; leave it out")


def model_info(target: Target) -> ModelInfo:
    """A run of ours, in words; the images are those of its own data."""
    description = target.description
    config = description.run_config()
    return ModelInfo(
        target=str(target.path),
        name=config.name,
        weights=description.which,
        selection=description.selection,
        epoch=description.epoch,
        data=config.data.name,
        config=description.config,
        checkpoint=read_checksum(target.path),
    )


def is_public(path: Path) -> bool:
    """Whether this is a file of weights from elsewhere."""
    if not path.is_file() or path.suffix in PICKLED:
        return path.is_file()
    try:
        with safe_open(path, framework="pt") as stream:
            return "widemargin" not in (stream.metadata() or {})
    except (SafetensorError, OSError):
        return False  # let our reader say what is wrong with it


def _from_public(
    path: Path, image_shape: tuple[int, int, int] | None, head_scale: float | None, normalize: str | None
) -> LoadedModel:
    weights = read_tensors(path)
    if image_shape is None:
        raise InputError(f"{path} does not say which images it wants; give --dataset")
    given = None if normalize is None else normalization_of(normalize, image_shape[0], owner="--normalize")
    found = infer_architecture(weights, head_scale=head_scale, normalize=given)
    if found.normalize is not None and normalize is not None:
        raise InputError(f"--normalize has no effect: {path} holds a normalization of its own; leave it out")
    with no_larger_than(weights, source=str(path)):
        model = found.config.build(image_shape=image_shape, num_classes=found.num_classes, seed=0, make_head=found.head)
    load_public_state_dict(model, weights)
    for module in model.modules():
        if isinstance(module, HypersphereHead):  # files of several-GPU runs hold rows that left the sphere
            module.project()
    subject = ModelInfo(
        target=str(path),
        name=path.stem,
        weights="public file",
        selection="unknown: the file does not say",
        head_scale=head_scale,
        normalize=UNKNOWN if found.normalize is None and normalize is None else normalize,
    )
    return LoadedModel(model.eval(), subject)


def _from_library(
    config: LibraryConfig,
    text: str,
    image_shape: tuple[int, int, int] | None,
    normalize: str | None,
    *,
    pretrained: bool,
) -> LoadedModel:
    shape = image_shape or config.usual_shape()
    given = None if normalize is None else normalization_of(normalize, shape[0], owner="--normalize")
    config = replace(config, pretrained=pretrained, normalize=given)
    model = config.make(image_shape=shape, num_classes=None, seed=0)
    weights = f"those of {config.library}" if pretrained else "random"
    subject = ModelInfo(target=text, name=config.name, weights=weights, selection="unknown", normalize=normalize)
    return LoadedModel(model.eval(), subject, image_shape=shape)


def _from_factory(text: str) -> LoadedModel:
    module, _, name = text.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InputError(f"{text!r} is neither a file nor a function: {error}; write package.module:function") from None
    model = factory
    if callable(factory) and not isinstance(factory, nn.Module):
        try:
            inspect.signature(factory).bind()
        except TypeError as error:
            raise InputError(f"{text} is called without arguments: {error}; give a function that takes none") from None
        except ValueError:  # one that does not say what it takes
            pass
        model = factory()  # an error inside it is shown as it is
    if not isinstance(model, nn.Module):
        raise InputError(f"{text} must return a torch.nn.Module, got {type(model).__name__}")
    return LoadedModel(
        model.eval(), ModelInfo(target=text, name=text, weights="made by a function", selection="unknown")
    )
