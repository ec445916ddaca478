"""What happens around a captured step, on the CPU: a graph that runs its step again in place of one that replays it.

And what such a step reads is the batch: filled in, gathered, augmented.
"""

import numpy as np
import pytest
import torch

from widemargin.config.toml import with_overrides
from widemargin.core.batch_share import BatchShare
from widemargin.data import (
    AutoAugment,
    Batch,
    Batches,
    Chain,
    CropFlip,
    CutMix,
    Cutout,
    ImageSet,
    NoAugmentation,
    RandomErasing,
    open_extra,
)
from widemargin.engine import Plan
from widemargin.recipes import find_recipe
from widemargin.training import StepContext, graphed_step
from widemargin.training.graphed_step import CopyInputs, GatherInputs, GraphedSteps, batch_key, inputs_for
from widemargin.training.setup import make_batches, make_state
from widemargin.training.step import EagerSteps, set_learning_rate

RANDOM = 'objective={kind="adversarial", attack={kind="pgd", eps=0.1, step_size=0.05, steps=2, random_start="uniform"}}'
FALLING = 'schedule={kind="steps", milestones=[1, 2], factor=0.1}'
METHODS = {
    "nothing is drawn": ((), set()),
    "an attack draws": ((RANDOM,), {"attack"}),
    "classes are remembered": (
        (
            'objective={kind="ikl", ramp=3, attack={kind="pgd", eps=0.1, step_size=0.05, steps=2, '
            'random_start="gaussian"}}',
        ),
        {"attack"},
    ),
    "a perturbation is kept": (("objective={kind='free', eps=0.1, replays=2}", "awp={gamma=0.05, start=1}"), set()),
    "AWP begins after an epoch": ((RANDOM, "awp={gamma=0.05, start=1}"), {"attack"}),
    "a penalty draws, every second step, and its weight falls": (
        (RANDOM, f'emr={{kind="stochastic", weight=0.1, every=2, {FALLING}}}'),
        {"attack"},
    ),
}


class Again:
    """In place of a CUDA graph."""

    def __init__(self, step):
        self.replay = step


class Repeated(GraphedSteps):
    """Steps without CUDA: what a capture would keep is run again."""

    def _on_side_stream(self, run):
        run()

    def _capture(self, kind):
        kind.graph = Again(lambda: self._step(kind))


@pytest.fixture(autouse=True)
def _offsets(monkeypatch):
    """A generator on a CPU has no offset; its state changes with the first draw."""

    def has_drawn(generator):
        fresh = torch.Generator().manual_seed(generator.initial_seed())
        return not torch.equal(generator.get_state(), fresh.get_state())

    monkeypatch.setattr(graphed_step, "has_drawn", has_drawn)


def noise(count):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 1, 28, 28), dtype=torch.uint8, generator=generator)
    return ImageSet(images, torch.arange(count) % 10, num_classes=10, name="noise")


def small(*settings):
    shorter = ("model.hidden=[8]", "optimizer.schedule={kind='constant'}")
    return with_overrides(find_recipe("mnist-mlp/st-wd0.001").config, [*shorter, *settings])


MIXES = Chain((CropFlip(padding=2), CutMix()))
CASES = [
    *((method, CropFlip(padding=2)) for method in METHODS),
    ("an attack draws", MIXES),
    ("nothing is drawn", MIXES),
]


@pytest.mark.parametrize(("method", "augmentation"), CASES, ids=str)
def test_repeated_steps_are_the_plain_ones(method, augmentation):
    settings, drawn = METHODS[method]
    config, data = small(*settings), noise(45)
    replays = make_batches(config, data).replays
    batches = Batches(
        data=data, batch_size=8, seed=3, augmentation=augmentation, replays=replays
    )  # the last is smaller
    states = [make_state(config, data) for _ in range(2)]
    steps = Repeated(states[0], states[0].nets, config, Plan()), EagerSteps(states[1], states[1].nets, config)
    for epoch in range(6):
        for batch in batches.epoch(epoch):
            context = StepContext(seed=0, epoch=epoch, step=batch.step, steps_per_epoch=batches.steps_per_epoch)
            for state, step in zip(states, steps, strict=True):
                set_learning_rate(state.optimizer, 0.1 / (1 + epoch))
                step(batch, context)
        for state in states if epoch < 5 else ():
            state.end_epoch()
    ours, plain = (list(state.nets.model.parameters()) for state in states)
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert float(states[0].sums["loss"]) == pytest.approx(float(states[1].sums["loss"]), rel=1e-5)
    kinds = steps[0]._kinds.values()
    assert {kind.graph is not None for kind in kinds if kind.runs > graphed_step.WARM_UP} == {True}
    assert all(kind.drawn == drawn | {penalty.name for penalty in kind.penalties} for kind in kinds)


def test_batches_that_were_made_and_batches_that_were_picked_have_graphs_of_their_own():
    config, data = small(), noise(8)
    state = make_state(config, data)
    steps = Repeated(state, state.nets, config, Plan())
    (picked,) = Batches(data=data, batch_size=8, seed=0).epoch(0)
    for number in range(10):
        batch = picked if number % 2 else Batch(0, picked.indices, picked.images, picked.labels)
        steps(batch, StepContext(seed=0, epoch=0, step=number, steps_per_epoch=10))
    assert [kind.runs for kind in steps._kinds.values()] == [5, 5]


def test_a_learning_rate_in_a_tensor_is_the_last_that_was_set():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=torch.tensor(0.5), fused=True)
    (group,) = optimizer.param_groups
    for rate in (0.1, 0.1, 0.2, 0.1):
        set_learning_rate(optimizer, rate)
        assert float(group["lr"]) == pytest.approx(rate)
    kept, group["lr"] = group["lr"], torch.tensor(0.5)  # as a state that becomes capturable does
    set_learning_rate(optimizer, 0.1)
    assert float(group["lr"]) == float(kept)


class Inverting:
    """An augmentation that draws as it goes."""

    def __call__(self, images, generator):
        return torch.where(torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5, 255 - images, images)


class InvertingToo(CropFlip):
    """One that does more than it draws."""

    def __call__(self, images, generator):
        return 255 - super().__call__(images, generator)


def batches_of(augmentation, **others):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (11, 3, 6, 6), dtype=torch.uint8, generator=generator)
    data = ImageSet(images, torch.arange(11) % 4, num_classes=4, name="toy")
    return list(Batches(data=data, batch_size=4, seed=7, augmentation=augmentation, **others).epoch(2))


CHAIN = Chain((CropFlip(padding=2), RandomErasing(), CutMix(parts=2)))
GATHERED = [NoAugmentation(), CropFlip(padding=2), AutoAugment(), CutMix(), Cutout(size=2), CHAIN]
COPIED = [Inverting(), InvertingToo(), Chain((InvertingToo(), CutMix()))]


@pytest.fixture
def extra(tmp_path):
    """Twenty images besides."""
    images = np.random.default_rng(0).integers(0, 256, (20, 6, 6, 3), dtype=np.uint8)
    np.savez(tmp_path / "extra.npz", image=images, label=np.arange(20) % 4)
    return open_extra(str(tmp_path / "extra.npz"))


@pytest.mark.parametrize("augmentation", [*GATHERED, *COPIED])
def test_what_is_read_is_the_batch_that_was_filled_in(augmentation):
    found, again = batches_of(augmentation), batches_of(augmentation)
    held = inputs_for(found[0])
    assert isinstance(held, GatherInputs if augmentation in GATHERED else CopyInputs)
    assert batch_key(found[0]) != batch_key(found[-1])  # three images: another graph
    for batch, expected in zip(found[:-1], again[:-1], strict=True):
        assert batch_key(batch) == batch_key(found[0])
        held.fill(batch)
        images, labels = held.read()
        assert torch.equal(images, expected.images)
        assert torch.equal(labels, expected.labels)


@pytest.mark.parametrize("augmentation", [*GATHERED, *COPIED])
def test_a_second_source_is_filled_in_too(augmentation, extra):
    mixed = {"extra": extra, "extra_share": 0.5}
    found, again = batches_of(augmentation, **mixed), batches_of(augmentation, **mixed)
    held = inputs_for(found[0])
    assert isinstance(held, GatherInputs if augmentation in GATHERED else CopyInputs)
    assert len({batch_key(batch) for batch in found}) == 1  # the last batch is whole
    for batch, expected in zip(found, again, strict=True):
        held.fill(batch)
        images, labels = held.read()
        assert torch.equal(images, expected.images)
        assert torch.equal(labels, expected.labels)


def test_a_batch_that_is_made_or_shared_is_copied():
    picked = batches_of(CropFlip())[0]
    made = Batch(0, picked.indices, picked.images, picked.labels)
    assert isinstance(inputs_for(made), CopyInputs)
    share = next(batch for batch in batches_of(CropFlip(), rank=1, processes=2))
    assert isinstance(share.share, BatchShare)
    assert isinstance(inputs_for(share), CopyInputs)
    with pytest.raises(TypeError, match="these inputs hold a LazyBatch, got a Batch"):
        inputs_for(picked).fill(made)


def test_nothing_is_made_until_somebody_looks():
    picked = batches_of(NoAugmentation())[0]
    inputs_for(picked).fill(picked)
    assert picked.size == 4
    assert not {"images", "labels"} & set(vars(picked))
    assert picked.images is picked.images
