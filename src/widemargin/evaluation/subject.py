"""Whatever can be judged: a run folder, a checkpoint of ours, public weights, or a model a function of yours makes.

No pickle is ever executed: ``.pt`` and ``.pth`` files are read as tensors alone.
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn

from widemargin.checkpoints import read_checksum
from widemargin.config import EvaluationConfig
from widemargin.data import ImageSet
from widemargin.errors import InputError
from widemargin.evaluation.notes import UNKNOWN
from widemargin.evaluation.report import Subject
from widemargin.evaluation.target import PICKLED, Target, load_target
from widemargin.files import check_file
from widemargin.heads import HypersphereHead
from widemargin.models import load_public_state_dict
from widemargin.models.budget import no_larger_than
from widemargin.models.guess import guess_model
from widemargin.models.normalize import normalization_of
from widemargin.models.public_file import read_tensors


@dataclass(frozen=True)
class Judgeable:
    """A model and what is known about it."""

    model: nn.Module
    subject: Subject
    plan: EvaluationConfig | None = None
    data: str | None = None
    target: Target | None = None
    """Where it comes from, if a run of ours made it."""

    def check_fits(self, data: ImageSet) -> None:
        """Refuse images that a run of ours was not trained on; others must find out by trying."""
        if self.target is not None:
            self.target.check_fits(data)


def load_judgeable(
    text: str,
    *,
    image_shape: tuple[int, int, int] | None,
    head_scale: float | None = None,
    normalize: str | None = None,
) -> Judgeable:
    """``image_shape`` is that of the data to judge on: public weights do not say what images they want.

    ``normalize`` is what they were trained behind, in words of the command line (``normalization_of``).
    """
    if ":" in text and not Path(text).exists():
        _refuse(head_scale, normalize, f"{text} makes its own head", f"{text} normalizes by itself")
        return _from_factory(text)
    path = Path(text)
    check_file(path)
    if path.is_file() and (path.suffix in PICKLED or not _is_ours(path)):
        return _from_public(path, image_shape, head_scale, normalize)
    target = load_target(path)
    _refuse(head_scale, normalize, *(f"{target.path} says which {part} it has" for part in ("head", "normalization")))
    config = target.description.run_config()
    return Judgeable(target.model, subject_of(target), config.evaluation, config.data.name, target)


def _refuse(head_scale: float | None, normalize: str | None, own_head: str, own_normalization: str) -> None:
    given = {"--head-scale": (head_scale, own_head), "--normalize": (normalize, own_normalization)}
    for option, (value, reason) in given.items():
        if value is not None:
            raise InputError(f"{option} is for public weights; {reason}; leave it out")


def subject_of(target: Target) -> Subject:
    """A run of ours, in words; the images are those of its own data."""
    description = target.description
    config = description.run_config()
    return Subject(
        target=str(target.path),
        name=config.name,
        weights=description.which,
        selection=description.selection,
        epoch=description.epoch,
        data=config.data.name,
        config=description.config,
        checkpoint=read_checksum(target.path),
    )


def _is_ours(path: Path) -> bool:
    try:
        with safe_open(path, framework="pt") as stream:
            return "widemargin" in (stream.metadata() or {})
    except (SafetensorError, OSError):
        return True  # let our reader say what is wrong with it


def _from_public(
    path: Path, image_shape: tuple[int, int, int] | None, head_scale: float | None, normalize: str | None
) -> Judgeable:
    weights = read_tensors(path)
    if image_shape is None:
        raise InputError(f"{path} does not say which images it wants; give --dataset")
    given = None if normalize is None else normalization_of(normalize, image_shape[0], owner="--normalize")
    guess = guess_model(weights, head_scale=head_scale, normalize=given)
    if guess.normalize is not None and normalize is not None:
        raise InputError(f"--normalize has no effect: {path} holds a normalization of its own; leave it out")
    with no_larger_than(weights, source=str(path)):
        model = guess.config.build(image_shape=image_shape, num_classes=guess.num_classes, seed=0, make_head=guess.head)
    load_public_state_dict(model, weights)
    for module in model.modules():
        if isinstance(module, HypersphereHead):  # files of several-GPU runs hold rows that left the sphere
            module.project()
    subject = Subject(
        target=str(path),
        name=path.stem,
        weights="public file",
        selection="unknown: the file does not say",
        head_scale=head_scale,
        normalize=UNKNOWN if guess.normalize is None and normalize is None else normalize,
    )
    return Judgeable(model.eval(), subject)


def _made(text: str, factory: Callable[..., Any]) -> object:
    """What it returns; an error inside it is shown as it is."""
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise InputError(f"{text} is called without arguments: {error}; give a function that takes none") from None
    except ValueError:  # one that does not say what it takes
        pass
    return factory()


def _from_factory(text: str) -> Judgeable:
    module, _, name = text.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        factory = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise InputError(f"{text!r} is neither a file nor a function: {error}; write package.module:function") from None
    model = _made(text, factory) if callable(factory) and not isinstance(factory, nn.Module) else factory
    if not isinstance(model, nn.Module):
        raise InputError(f"{text} must return a torch.nn.Module, got {type(model).__name__}")
    return Judgeable(model.eval(), Subject(target=text, name=text, weights="made by a function", selection="unknown"))
