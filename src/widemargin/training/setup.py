"""From a configuration to what training works on: data splits, batches, networks and optimizer on the device."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from widemargin.config.run import DataConfig, RunConfig
from widemargin.core import randomness
from widemargin.data.augmentation import AUGMENTATIONS
from widemargin.data.batch_augmentation import Augmentation, Chain
from widemargin.data.batches import Batches, Images, LoaderBatches
from widemargin.data.datasets import open_images
from widemargin.data.extra import ExtraImages, open_extra
from widemargin.data.image_set import stratified_split
from widemargin.data.image_stream import StoredImages
from widemargin.data.loader_images import LoaderImages
from widemargin.distributed.group import Processes
from widemargin.distributed.sync_batch_norm import share_batch_norms
from widemargin.errors import InputError, WidemarginWarning
from widemargin.models.classifier import build_model
from widemargin.optimizers import make_optimizer
from widemargin.training.state import TrainState, has_statistics, make_average
from widemargin.types import HasMemory, Nets, Replays


@dataclass(frozen=True)
class Splits:
    """Training, validation (where held out) and test images, on the device; of a second source for training, files."""

    train: Images
    validation: Images | None
    test: Images
    extra: ExtraImages | None = None

    def __post_init__(self) -> None:
        for name, part in (("validation", self.validation), ("test", self.test)):
            if part is not None and _sizes(part) != _sizes(self.train):
                raise InputError(
                    f"{self.train.name}: the {name} images are {_sizes(part)}, the training images "
                    f"{_sizes(self.train)}; one network takes both, so make them alike"
                )

    @classmethod
    def from_loaders(
        cls,
        train: Iterable[object],
        test: Iterable[object],
        *,
        num_classes: int,
        validation: Iterable[object] | None = None,
    ) -> "Splits":
        """Of DataLoaders, or other iterables of batches that know their length; ``data/loader_images.py`` says how.

        A loader that shuffles or augments does so anew in every epoch of training, and always alike where it measures.
        """
        images = partial(LoaderImages.of, num_classes=num_classes)
        return cls(
            train=images(train, name="training loader"),
            validation=None if validation is None else images(validation, name="validation loader"),
            test=images(test, name="test loader"),
        )

    def to(self, device: torch.device) -> "Splits":
        """The same images on a device."""
        validation = None if self.validation is None else self.validation.to(device)
        return replace(self, train=self.train.to(device), validation=validation, test=self.test.to(device))


def _sizes(data: Images) -> str:
    return f"{tuple(data.image_shape)} in {data.num_classes} classes"


def load_splits(
    config: DataConfig, *, seed: int, data_dir: str | None, device: torch.device, workers: int | None = None
) -> Splits:
    """The data that the configuration names; what is streamed is decoded by so many ``workers``, None one per CPU."""
    train, validation, test = stored_images(config, seed=seed, data_dir=data_dir, workers=workers)
    extra = None if config.extra is None else open_extra(config.extra, data_dir=data_dir)
    return Splits(train=train, validation=validation, test=test, extra=extra).to(device)


def stored_images(
    config: DataConfig, *, seed: int, data_dir: str | None, workers: int | None = None
) -> tuple[StoredImages, StoredImages | None, StoredImages]:
    """(training, validation, test) images; validation is held out before any limit, so that a limit does not move it.

    On the CPU.
    """
    how: dict[str, Any] = {"data_dir": data_dir, "workers": workers, **config.reading()}
    train = open_images(config.name, "train", crops=config.crops_originals, **how)
    test = open_images(config.name, "test", limit=config.test_limit, num_classes=train.num_classes, **how)
    _note_unknown_classes(train, test)
    validation = None
    if config.held_out:
        kept, held = stratified_split(train.labels, held_out=config.held_out, seed=seed)
        train, validation = train.subset(kept), train.subset(held)
    if config.train_limit is not None:
        train = train.first(config.train_limit)
    return train, validation, test


def _note_unknown_classes(train: StoredImages, test: StoredImages) -> None:
    """Labels that were numbered otherwise for the two would make every test image wrong."""
    unknown = sorted(set(test.labels.unique().tolist()) - set(train.labels.unique().tolist()))
    if unknown:
        named = ", ".join(map(str, unknown[:5])) + (", ..." if len(unknown) > 5 else "")
        warnings.warn(
            f"{train.name}: test images have labels that no training image has ({named}); are the classes numbered "
            "alike in both?",
            WidemarginWarning,
            stacklevel=3,
        )


def held_out_images(
    config: RunConfig, *, data_dir: str | None, limit: int | None = None, workers: int | None = None
) -> StoredImages:
    """The images that a run did not train on and chose its best weights by; refused where it held out none."""
    _, validation, _ = stored_images(config.data, seed=config.seed, data_dir=data_dir, workers=workers)
    if validation is None:
        raise InputError("--split validation: this run held out no images (data.held_out is 0); use --split test")
    return validation if limit is None else validation.first(limit)


def make_augmentation(config: DataConfig) -> Augmentation:
    """The augmentation, or several in a chain."""
    made: list[Augmentation] = [
        AUGMENTATIONS[part]() if isinstance(part, str) else part for part in config.augmentations
    ]
    return made[0] if len(made) == 1 else Chain(tuple(made))


def make_batches(config: RunConfig, train: Images, extra: ExtraImages | None = None) -> Batches | LoaderBatches:
    """The training batches, with a share of a second source where the run has one."""
    objective, share = config.objective, config.data.extra_share
    replays = objective.replays if isinstance(objective, Replays) else 1
    if isinstance(train, LoaderImages):
        _check_loader(config, train)
        augmentation = make_augmentation(config.data)
        return LoaderBatches(data=train, seed=config.seed, augmentation=augmentation, replays=replays)
    if share is not None and extra is None:
        raise InputError(
            "data.extra_share has no effect on splits without a second source; give them one "
            "(Splits(..., extra=widemargin.data.open_extra(path))), or remove it"
        )
    return Batches(
        data=train,
        batch_size=config.batch_size,
        seed=config.seed,
        augmentation=make_augmentation(config.data),
        replays=replays,
        extra=extra if share is not None else None,
        extra_share=share or 0.0,
    )


def _check_loader(config: RunConfig, train: LoaderImages) -> None:
    """Whether the configuration says nothing that a loader decides."""
    if config.data.extra_share is not None:
        raise InputError("data.extra is mixed into images in memory, and a loader's are not; remove it")
    if config.data.crops_originals:
        raise InputError(
            "data.augmentation 'random-resized-crop' is for files; let the loader's data set crop, remove it"
        )
    if train.batch_size != config.batch_size and not (len(train) == 1 and train.batch_size < config.batch_size):
        raise InputError(
            f"batch_size is {config.batch_size}, and the first batch of the {train.name} has {train.batch_size} "
            "images; make them equal"
        )


def make_state(config: RunConfig, train: Images) -> TrainState:
    """A fresh model and optimizer on the data's device."""
    build = partial(build_model, image_shape=train.image_shape, num_classes=train.num_classes)
    model = build(config.model, seed=config.seed, make_head=config.head).to(train.device)
    teacher = None
    if config.teacher is not None:
        seed = randomness.derived_seed(config.seed, "teacher")
        teacher = build(config.teacher, seed=seed).to(train.device).train()
    memory = None
    if isinstance(config.objective, HasMemory):
        sizes = {"num_classes": train.num_classes, "batch_size": config.batch_size}
        memory = config.objective.make_memory(image_shape=train.image_shape, **sizes).to(train.device)
    nets = Nets(model=model.train(), teacher=teacher, memory=memory)
    if config.freeze_batch_norm:
        freeze_batch_norms(model)
    _check_storable(nets)
    averaging, optimizer = config.averaging, make_optimizer(nets.all().values(), config.optimizer)
    if averaging is None:
        return TrainState(nets=nets, optimizer=optimizer)
    if averaging.batch_norm == "copy" and not has_statistics(model):
        raise InputError(
            'averaging.batch_norm = "copy" has no effect on a model without running statistics of batch norm; remove it'
        )
    is_eval_model = not averaging.beside
    return TrainState(nets=nets, optimizer=optimizer, average=make_average(model), average_is_eval_model=is_eval_model)


def freeze_batch_norms(model: nn.Module) -> None:
    """Put the batch norms of a model that trains in evaluation mode: they use their running statistics and keep them.

    Scales and shifts are trained on.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.running_mean is not None]
    if not norms:
        raise InputError(
            f"freeze_batch_norm has no effect on {type(model).__name__}, which has no batch norm with running "
            "statistics; remove it"
        )
    for norm in norms:
        norm.eval()


def _check_storable(nets: Nets) -> None:
    """Checkpoints hold tensors, and other extra state of a module would be lost: refused before anything is trained."""
    for name, net in nets.all().items():
        for key, value in net.state_dict().items():
            if not isinstance(value, torch.Tensor):
                raise InputError(
                    f"{name}: {key} must be a tensor, which checkpoints can hold, got {type(value).__name__}; let "
                    "get_extra_state() return one, or keep it in a buffer"
                )


def synchronize_batch_norms(nets: Nets, group: Processes, *, sync_bn: bool | None) -> None:
    """Let batch norm take its statistics over all processes, unless told not to."""
    if group.count == 1:
        if sync_bn is not None:
            option = "--sync-bn" if sync_bn else "--no-sync-bn"
            raise InputError(f"{option} has no effect in a process alone; remove it, or start several with torchrun")
    elif sync_bn is not False:
        for net in nets.all().values():
            share_batch_norms(net)
