"""What is measured at the end of an epoch: accuracies, under attack too, and margins of correctly classified images."""

import math
from collections.abc import Iterator
from itertools import chain, count

import torch
from torch import Tensor, nn

from widemargin.config.checkpoint import AVERAGED as AVERAGED
from widemargin.config.run import RunConfig, WatchConfig
from widemargin.core import randomness
from widemargin.core.modes import copied_buffers, with_values
from widemargin.core.precision import full_float32
from widemargin.data.batch_augmentation import without_mixing
from widemargin.data.batches import Images, crop_of, in_order, read_in_order
from widemargin.data.decoding import CropDraws
from widemargin.data.image_set import as_floats
from widemargin.data.loader_images import LoaderImages
from widemargin.distributed.group import SINGLE_PROCESS, Processes
from widemargin.evaluation.accuracy import MeasuredMargins, measure_margins, percent, verdicts
from widemargin.models.classifier import Facts, facts_of
from widemargin.training.setup import Splits, make_augmentation
from widemargin.types import Nets

Metrics = dict[str, float]
MEASURED = ("validation_", "test_", "train_margin_")
"""What the names of measurements begin with."""


def watch(
    nets: Nets, config: RunConfig, splits: Splits, *, epoch: int, group: Processes = SINGLE_PROCESS, tf32: bool = False
) -> Metrics:
    """The measurements of ``nets.model`` that the configuration asks for after this many epochs.

    Several processes share the batches, and all of them get the result. With ``tf32`` the attack searches in TF32;
    what it finds is judged in float32.
    """
    model, size = nets.model, batch_size(config, splits.test)
    wanted: WatchConfig = config.watch
    metrics: Metrics = {}
    if splits.validation is not None:
        metrics |= _accuracies(model, splits.validation, config, "validation", group, tf32)
    if wanted.test:
        metrics |= _accuracies(model, splits.test, config, "test", group, tf32)
    if "train" in wanted.margins:
        points = training_points(nets, splits.train, config, epoch, group)
        metrics |= _margins(model, first_samples(points, wanted.margin_samples, size, group), "train", group)
    if "test" in wanted.margins:
        mine = in_order(splits.test, size, start=group.rank, every=group.count)
        metrics |= _margins(model, first_samples(mine, wanted.margin_samples, size, group), "test", group)
    return metrics


def batch_size(config: RunConfig, data: Images) -> int:
    """So many images are measured at once; of a loader, its batches."""
    if isinstance(data, LoaderImages):
        return data.batch_size
    facts = facts_of(config.model)
    return facts.measured_at_once if math.prod(data.image_shape) <= facts.small_image else Facts.measured_at_once


def _accuracies(model: nn.Module, data: Images, config: RunConfig, split: str, group: Processes, tf32: bool) -> Metrics:
    attack, size = config.watch.attack, batch_size(config, data)
    metrics = {f"{split}_clean": percent(verdicts(model, data, batch_size=size, group=group))}
    if attack is not None:
        found = verdicts(model, data, attack, batch_size=size, seed=config.seed, group=group, tf32=tf32)
        metrics[f"{split}_robust"] = percent(found)
    return metrics


def _margins(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], split: str, group: Processes) -> Metrics:
    """Of this process's batches and those of the others."""
    with group.sync_errors():
        numbered = dict(zip(count(group.rank, group.count), _by_batch(model, batches), strict=False))
    margins, correct = zip(*group.all_gather(numbered).values(), strict=True)
    summary = MeasuredMargins(torch.cat(margins), torch.cat(correct)).over_correct()
    named = {"mean": summary.mean, "std": summary.std}
    return {f"{split}_margin_{name}": value for name, value in named.items() if value is not None}


def _by_batch(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """(margins, correct) of each batch; a process may have none."""
    sizes: list[int] = []
    with full_float32():  # what is measured is made by an attack, which is not to depend on the switches either
        first = next(batches, None)
        if first is None:
            return []
        measured = measure_margins(model, chain([first], batches), advance=sizes.append)
    return list(zip(measured.margins.split(sizes), measured.correct.split(sizes), strict=True))


def first_samples(
    batches: Iterator[tuple[Tensor, Tensor]], samples: int | None, size: int, group: Processes = SINGLE_PROCESS
) -> Iterator[tuple[Tensor, Tensor]]:
    """This process's batches of that size until so many samples have come in all of them; every batch for None."""
    for number in count(group.rank, group.count):
        left = None if samples is None else samples - number * size
        if left is not None and left <= 0:
            return
        batch = next(batches, None)
        if batch is None:
            return
        yield batch[0][:left], batch[1][:left]


def training_points(
    nets: Nets, train: Images, config: RunConfig, epoch: int, group: Processes = SINGLE_PROCESS
) -> Iterator[tuple[Tensor, Tensor]]:
    """Training images as training sees them: augmented, and attacked where the objective attacks (the paper's x').

    Measuring leaves the statistics alone, whatever mode the attack runs in.
    """
    crop, augment = crop_of(without_mixing(make_augmentation(config.data)))
    draws = None if crop is None else CropDraws(crop, config.seed, "margin-crop", epoch)
    stored = read_in_order(train, batch_size(config, train), start=group.rank, every=group.count, draws=draws)
    for number, (images, y) in zip(count(group.rank, group.count), stored, strict=False):
        x = as_floats(augment(images, randomness.derived(config.seed, "margin-augment", epoch, number)))
        generator = randomness.derived(config.seed, "margin", epoch, number)
        with with_values(copied_buffers(nets.model)):
            x_adv = config.objective.perturb(nets, x, y, epoch=epoch - 1, generator=generator)
        yield (x if x_adv is None else x_adv), y
