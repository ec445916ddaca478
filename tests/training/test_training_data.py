"""What a run does with its data settings: a second source, augmentations; resumed, limited, held out, replayed."""

import tomllib

import numpy as np
import pytest
import torch

from faults import interrupted
from widemargin.config.toml import differences, from_dict, to_toml
from widemargin.data import Chain, CropFlip, CutMix, ImageSet
from widemargin.errors import InputError
from widemargin.training import replay, train
from widemargin.training.run_folder import read_metrics
from widemargin.training.setup import Splits, held_out_images, load_splits, make_batches, make_state
from widemargin.training.watch import training_points

AT = 'objective={kind="adversarial", attack={kind="pgd", eps=0.1, step_size=0.05, steps=2, random_start="uniform"}}'
MIXED = (AT, "data.augmentation=['crop-flip', 'cutmix']", 'watch.margins=["train"]', "watch.margin_samples=40")
STEPS = 3


@pytest.fixture
def mixed(tiny, tmp_path):
    """mixed(...): the configuration with a second source, images held out, and a limit."""
    images = np.random.default_rng(0).integers(0, 256, (70, 28, 28, 1), dtype=np.uint8)[..., 0]
    np.savez(tmp_path / "extra.npz", image=images, label=np.arange(70) % 10)
    source = (f"data.extra={tmp_path / 'extra.npz'}", "data.extra_share=0.7", "data.held_out=30")
    return lambda *settings: tiny(*MIXED, *source, "data.train_limit=110", "batch_size=40", "epochs=2", *settings)


@pytest.mark.parametrize("step", [2, 3, 5])
def test_a_resumed_run_sees_the_same_images(step, mixed, tmp_path, left_in):
    train(mixed(), out=tmp_path / "whole")
    interrupted(mixed(), tmp_path / "run", step=step, checkpoint_every=1)
    train(mixed(), out=tmp_path / "run")
    left_in(tmp_path / "run").assert_same(left_in(tmp_path / "whole"))
    samples = [line["samples"] for line in read_metrics(tmp_path / "whole")]
    assert samples == [STEPS * 40, STEPS * 40]  # ceil(110 / 40) batches, all whole


def test_the_settings_survive_the_file(mixed):
    settings = ("data.augmentation=['crop-flip', {kind='cutmix', parts=4}, {kind='cutout', size=16}]",)
    config = mixed(*settings)
    assert config.data.augmentation == ("crop-flip", CutMix(parts=4), "cutout")
    again = from_dict(tomllib.loads(to_toml(config)))
    assert again == config
    assert differences(config, again) == []
    assert mixed("data.augmentation=['cutmix']").data.augmentation == "cutmix"


def test_what_is_held_out_needs_no_second_source(mixed, tmp_path):
    expected = held_out_images(mixed(), data_dir=None)
    (tmp_path / "extra.npz").unlink()
    assert torch.equal(held_out_images(mixed(), data_dir=None).images, expected.images)
    with pytest.raises(InputError, match=r"data.extra: there is no file .*extra.npz"):
        train(mixed(), out=tmp_path / "run")


def test_splits_of_ones_own_bring_their_own_source(mixed, tmp_path):
    splits = load_splits(mixed().data, seed=0, data_dir=None, device=torch.device("cpu"))
    assert len(splits.extra) == 70
    assert make_batches(mixed(), splits.train, splits.extra).extra is splits.extra
    without = Splits(train=splits.train, validation=None, test=splits.test)
    with pytest.raises(InputError, match=r"data.extra_share has no effect on splits without a second source"):
        train(mixed("data.held_out=0"), out=tmp_path / "run", splits=without)


def test_margins_of_training_images_are_of_images_with_one_label(mixed):
    splits = load_splits(mixed().data, seed=0, data_dir=None, device=torch.device("cpu"))
    grey = ImageSet(torch.full_like(splits.train.images, 7), splits.train.labels, 10, "grey")
    grey.images[::2] = 200
    standard = mixed("objective={kind='standard'}", "data.augmentation=['cutmix', {kind='crop-flip', padding=0}]")
    points = list(training_points(make_state(standard, grey).nets, grey, standard, epoch=1))
    assert all(y.dim() == 1 for _, y in points)
    assert all(((x == x[:, :, :1, :1]).flatten(1).all(1)).all() for x, _ in points)  # no image has a box of another


def test_a_step_with_mixed_labels_is_replayed(mixed, tmp_path):
    with pytest.raises(InputError, match=r"became (nan|inf)"):
        train(mixed("optimizer.lr=1e30"), out=tmp_path / "run", device="cpu")
    found = replay(tmp_path / "run")
    assert found.at_fault
    assert max(found.indices) >= 110  # some are of the second source


def test_chains_are_made_of_the_list(mixed):
    config = mixed()
    splits = load_splits(config.data, seed=0, data_dir=None, device=torch.device("cpu"))
    assert make_batches(config, splits.train, splits.extra).augmentation == Chain((CropFlip(), CutMix()))
