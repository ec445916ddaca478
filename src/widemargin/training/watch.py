"""What is measured at the end of an epoch: accuracies, under attack too, and margins of correctly classified images."""

from collections.abc import Iterator
from itertools import islice

from torch import Tensor, nn

from widemargin import randomness
from widemargin.config import RunConfig, WatchConfig
from widemargin.data import ImageSet, as_floats, in_order
from widemargin.evaluation.accuracy import percent, verdicts
from widemargin.evaluation.margins import measure_margins
from widemargin.training.setup import Splits, make_augmentation
from widemargin.types import Nets

Metrics = dict[str, float]
BATCH = 500


def watch(nets: Nets, config: RunConfig, splits: Splits, *, epoch: int) -> Metrics:
    """The measurements of ``nets.model`` that the configuration asks for after this many epochs."""
    model = nets.model
    wanted: WatchConfig = config.watch
    metrics: Metrics = {}
    if splits.validation is not None:
        metrics |= _accuracies(model, splits.validation, config, "validation")
    if wanted.test:
        metrics |= _accuracies(model, splits.test, config, "test")
    if "train" in wanted.margins:
        metrics |= _margins(model, training_points(nets, splits.train, config, epoch), wanted, "train")
    if "test" in wanted.margins:
        metrics |= _margins(model, in_order(splits.test, BATCH), wanted, "test")
    return metrics


def _accuracies(model: nn.Module, data: ImageSet, config: RunConfig, split: str) -> Metrics:
    metrics = {f"{split}_clean": percent(verdicts(model, data, batch_size=BATCH))}
    attack = config.watch.attack
    if attack is not None:
        metrics[f"{split}_robust"] = percent(verdicts(model, data, attack, batch_size=BATCH, seed=config.seed))
    return metrics


def _margins(model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], wanted: WatchConfig, split: str) -> Metrics:
    summary = measure_margins(model, first_samples(batches, wanted.margin_samples)).over_correct()
    named = {"mean": summary.mean, "std": summary.std}
    return {f"{split}_margin_{name}": value for name, value in named.items() if value is not None}


def first_samples(batches: Iterator[tuple[Tensor, Tensor]], samples: int | None) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches until so many samples have come; all of them for None."""
    if samples is None:
        yield from batches
        return
    for x, y in islice(batches, -(-samples // BATCH)):
        yield x[:samples], y[:samples]
        samples -= len(y)


def training_points(nets: Nets, train: ImageSet, config: RunConfig, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Training images as training sees them: augmented, and attacked where the objective attacks (the paper's x')."""
    augment = make_augmentation(config.data)
    for number, start in enumerate(range(0, len(train), BATCH)):
        part = slice(start, start + BATCH)
        x = as_floats(augment(train.images[part], randomness.derived(config.seed, "margin-augment", epoch, number)))
        y = train.labels[part]
        generator = randomness.derived(config.seed, "margin", epoch, number)
        x_adv = config.objective.perturb(nets, x, y, epoch=epoch - 1, generator=generator)
        yield (x if x_adv is None else x_adv), y
