"""DataLoaders of the user's own: resumed to the same bits, shared, measured; what cannot be right is refused. Hooks."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler, TensorDataset

from faults import interrupted
from widemargin import Splits, train
from widemargin.data import LoaderImages, load
from widemargin.data.batches import LoaderBatches
from widemargin.errors import InputError
from widemargin.training.run_folder import read_metrics

AT = 'objective={kind="adversarial", attack={kind="pgd", eps=0.02, step_size=0.01, steps=2, random_start="uniform"}}'
RUN = (AT, "epochs=2", "batch_size=40", "data.augmentation=crop-flip", "watch.margin_samples=50")
STEPS = 4


class Noisy(Dataset):
    """Digits with noise from every generator that people draw from."""

    def __init__(self, count: int = 150) -> None:
        data = load("mnist-embedded", "train", limit=count)
        self.images, self.labels = data.floats(), data.labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int):
        noise = 0.1 * torch.rand(()) + 0.1 * random.random() + 0.1 * np.random.rand()
        return (self.images[index] * (0.7 + noise)).float(), int(self.labels[index])


def loader(workers: int = 0, **options) -> DataLoader:
    return DataLoader(Noisy(), batch_size=40, shuffle=True, num_workers=workers, **options)


def given_generator() -> DataLoader:
    data = Noisy()
    sampler = RandomSampler(data, generator=torch.Generator().manual_seed(5))
    return DataLoader(data, batch_size=40, sampler=sampler, generator=torch.Generator())


def test_images():
    data = load("mnist-embedded", "test", limit=60)
    return DataLoader(TensorDataset(data.floats(), data.labels), batch_size=25)


test_images.__test__ = False


def splits(make=loader) -> Splits:
    return Splits.from_loaders(make(), test_images(), num_classes=10, validation=list(test_images()))


@pytest.mark.parametrize("make", [loader, given_generator, lambda: loader(workers=2)])
def test_a_resumed_run_ends_with_the_same_bits(make, tiny, tmp_path, left_in):
    config, before = tiny(*RUN), (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    train(config, out=tmp_path / "whole", splits=splits(make))
    torch.rand(7)  # what the program draws is nobody's business
    for step in (2, STEPS + 2):
        interrupted(config, tmp_path / "run", step=step, checkpoint_every=1, splits=splits(make))
        random.random()
    assert train(config, out=tmp_path / "run", splits=splits(make)).finished
    left_in(tmp_path / "run").assert_same(left_in(tmp_path / "whole"))
    line = read_metrics(tmp_path / "whole")[0]
    assert line["samples"] == 150
    assert {"validation_clean", "test_clean", "train_margin_mean", "test_margin_mean"} <= line.keys()
    assert before[1] != random.getstate()


def test_the_global_random_states_are_left_alone():
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    images = LoaderImages.of(loader(), num_classes=10)
    list(images.batches(0, "loader", 1))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())


def test_every_epoch_is_another_and_processes_take_their_rows():
    images = LoaderImages.of(loader(), num_classes=10)
    epochs = [list(LoaderBatches(data=images, seed=1).epoch(epoch)) for epoch in (0, 1, 0)]
    for batch, other, same in zip(*epochs, strict=True):
        assert not torch.equal(batch.images, other.images)
        assert torch.equal(batch.images, same.images)
    halves = [list(LoaderBatches(data=images, seed=1, rank=rank, processes=2).epoch(0)) for rank in (0, 1)]
    for batch, first, second in zip(epochs[0], *halves, strict=True):
        assert torch.equal(batch.images, torch.cat([first.images, second.images]))
        assert torch.equal(batch.labels, torch.cat([first.labels, second.labels]))
        assert batch.size == first.size == second.size
    replayed = list(LoaderBatches(data=images, seed=1, replays=2).epoch(0, 3))
    assert [batch.step for batch in replayed] == [3, 4, 5, 6, 7]
    assert torch.equal(replayed[0].images, epochs[0][1].images)


def test_batches_of_a_loader_without_randomness_are_those_of_memory(tiny, tmp_path, left_in):
    data = load("mnist-embedded", "test", limit=60)
    test = [(x, y) for x, y in zip(data.images.split(60), data.labels.split(60), strict=True)]
    config = tiny("epochs=1", "batch_size=60", "watch.margins=[]")
    train(config, out=tmp_path / "memory", splits=Splits(train=data, validation=None, test=data))
    mine = [{"img": x, "label": y.numpy()} for x, y in test]  # whole, so that the order does not matter
    train(config, out=tmp_path / "loader", splits=Splits.from_loaders(mine, test, num_classes=10))
    memory, loaded = (read_metrics(tmp_path / name)[0] for name in ("memory", "loader"))
    assert loaded["loss"] == pytest.approx(memory["loss"], rel=1e-5)
    assert loaded["test_clean"] == memory["test_clean"]


class Drifting(Noisy):
    """Draws from a generator of its own, which nobody seeds again."""

    draws = np.random.default_rng(0)

    def __getitem__(self, index: int):
        return self.images[index] * float(self.draws.uniform(0.5, 1)), int(self.labels[index])


class Endless(IterableDataset):
    def __iter__(self):
        return iter(Noisy())


class Lying(list):
    def __len__(self):
        return 3


X, Y = torch.rand(4, 1, 28, 28), torch.arange(4)
REFUSED = {
    "no length": (lambda: DataLoader(Endless(), batch_size=40), r"must know how many batches it has"),
    "a generator": (lambda: (pair for pair in [(X, Y)]), "must know how many batches it has, and a generator has no"),
    "no batch": (list, "gives no batch"),
    "too few": (lambda: Lying([(X, Y)]), "said that it has 3 batches, and gave 1 batches"),
    "too many": (lambda: Lying([(X, Y)] * 4), "said that it has 3 batches, and gave more"),
    "drifting": (lambda: DataLoader(Drifting(), batch_size=4), "gives two different first batches"),
    "persistent": (lambda: loader(workers=1, persistent_workers=True), "persistent_workers=True .* set it to False"),
    "order": (lambda: loader(workers=1, in_order=False), "in_order=False hands over batches as they come"),
    "distributed": (
        lambda: DataLoader(Noisy(), batch_size=40, sampler=DistributedSampler(Noisy(), num_replicas=2, rank=0)),
        "a DistributedSampler gives every process other images",
    ),
    "normalized": (lambda: [(X * 4 - 2, Y)], r"images must be in \[0, 1\]"),
    "flat": (lambda: [(X.flatten(1), Y)], r"images must be \(B, C, H, W\)"),
    "labels": (lambda: [(X, Y + 7)], r"labels must be in \[0, 10\) for num_classes=10, found 7 to 10"),
    "soft labels": (lambda: [(X, torch.rand(4, 10))], r"labels must be \(4,\) whole numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_loaders_that_cannot_be_right_are_refused(name):
    make, told = REFUSED[name]
    with pytest.raises(InputError, match=told) as caught:
        list(LoaderImages.of(make(), num_classes=10, name="training loader").batches(0, "loader", 0))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("training loader: ")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (("batch_size=32",), "batch_size is 32, and the first batch of the training loader has 40 images"),
        (("data.augmentation=random-resized-crop",), "'random-resized-crop' is for files"),
        (("data.extra=a.npz", "data.extra_share=0.5"), "data.extra is mixed into images in memory, and a loader's"),
    ],
)
def test_settings_that_a_loader_decides_are_refused(settings, told, tiny, tmp_path):
    with pytest.raises(InputError, match=told):
        train(tiny(*RUN, *settings), out=tmp_path, splits=splits())


# Hooks


def test_hooks_get_what_was_measured(tiny, tmp_path, left_in):
    steps, epochs = [], []
    config = tiny(AT, "epochs=2", "emr={kind='exact', weight=0.1, every=2}")
    train(config, out=tmp_path / "hooked", on_step=steps.append, on_epoch=epochs.append)
    assert [(report.epoch, report.step) for report in steps] == [(e, s) for e in (1, 2) for s in range(1, STEPS + 1)]
    assert epochs == read_metrics(tmp_path / "hooked")
    for line in epochs:
        own = [report.metrics for report in steps if report.epoch == line["epoch"]]
        weights = [part["samples"] for part in own]
        assert sum(weights) == line["samples"] == 150
        for name in ("loss", "total", "train_accuracy"):
            assert np.average([part[name] for part in own], weights=weights) == pytest.approx(line[name])
        assert ["emr" in part for part in own] == [True, False, True, False]
    assert steps[0].learning_rate == pytest.approx(0.1)
    train(config, out=tmp_path / "bare")
    left_in(tmp_path / "hooked").assert_same(left_in(tmp_path / "bare"))


def test_what_a_hook_raises_ends_the_run_which_goes_on(tiny, tmp_path, left_in):
    def refuse(line):
        raise ZeroDivisionError

    train(tiny(), out=tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        train(tiny(), out=tmp_path / "run", on_epoch=refuse)
    assert len(read_metrics(tmp_path / "run")) == 1
    train(tiny(), out=tmp_path / "run")
    left_in(tmp_path / "run").assert_same(left_in(tmp_path / "whole"))
