"""Runs on streamed images: the bits of memory where nothing is cropped, the same bits after a stop, watched as ever."""

import numpy as np
import pytest

from faults import interrupted
from image_files import image_folder, tar_shards
from widemargin.data import ImageStream
from widemargin.errors import InputError
from widemargin.training import replay, train
from widemargin.training.setup import held_out_images, load_splits

AT = 'objective={kind="adversarial", attack={kind="pgd", eps=0.02, step_size=0.01, steps=2, random_start="uniform"}}'
RUN = (
    AT,
    "batch_size=12",
    "epochs=2",
    "optimizer.lr=0.01",
    "model.hidden=[64]",
    "data.train_limit=none",
    "data.test_limit=none",
    "data.held_out=9",
)
CROPS = ("data.image_size=12", 'data.augmentation=["random-resized-crop", "cutmix"]', "watch.margin_samples=20")
STEPS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return image_folder(tmp_path_factory.mktemp("mixed"))


@pytest.fixture
def config(tiny, folder):
    return lambda *settings: tiny(*RUN, f"data.name={folder}", *settings)


def test_nothing_cropped_a_run_is_that_of_images_in_memory(tiny, tmp_path, left_in):
    folder = image_folder(tmp_path / "alike", mixed=False)
    for streaming in ("true", "false"):
        settings = (f"data.name={folder}", f"data.streaming={streaming}", "data.augmentation=crop-flip")
        train(tiny(*RUN, *settings), out=tmp_path / streaming, workers=0)
    left_in(tmp_path / "true").assert_same(left_in(tmp_path / "false"))


@pytest.mark.parametrize("step", [2, 4, 5])
def test_a_resumed_run_ends_with_the_same_bits_whoever_decodes(step, config, tmp_path, left_in):
    train(config(*CROPS), out=tmp_path / "whole", workers=0)
    interrupted(config(*CROPS), tmp_path / "run", step=step, checkpoint_every=1, workers=2)
    assert train(config(*CROPS), out=tmp_path / "run", workers=1).finished
    left_in(tmp_path / "run").assert_same(left_in(tmp_path / "whole"))
    line = left_in(tmp_path / "run").metrics[-1]
    assert {"validation_clean", "test_clean", "train_margin_mean", "test_margin_mean"} <= line.keys()


def test_a_run_on_tar_shards_is_that_on_the_folder(config, folder, tmp_path, left_in):
    shards = tar_shards(folder, tmp_path / "shards")
    train(config(*CROPS), out=tmp_path / "folder", workers=0)
    train(config(*CROPS, f"data.name={shards}"), out=tmp_path / "tar", workers=1)
    left_in(tmp_path / "tar").assert_same(left_in(tmp_path / "folder"))


def test_what_is_held_out_is_streamed_too(config):
    settings = config(*CROPS, "data.streaming=true")
    splits = load_splits(settings.data, seed=0, data_dir=None, device="cpu", workers=0)
    assert all(isinstance(part, ImageStream) for part in (splits.train, splits.validation, splits.test))
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (27, 9, 12)
    assert held_out_images(settings, data_dir=None).labels.equal(splits.validation.labels)
    assert not set(splits.train.rows.tolist()) & set(splits.validation.rows.tolist())


def test_a_damaged_file_ends_the_run_with_one_line(config, tmp_path):
    folder = image_folder(tmp_path / "data", train=12, test=3)
    (folder / "train" / "class2" / "005.jpg").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"^\S*class2/005.jpg: cannot be read as an image .*; replace or remove it$"):
        train(config(f"data.name={folder}", "data.held_out=0", *CROPS), out=tmp_path / "run", workers=1)


def test_a_step_that_is_not_finite_is_saved_with_its_images(config, tmp_path):
    with pytest.raises(InputError, match=r"became (nan|inf)"):
        train(config(*CROPS, "optimizer.lr=1e30"), out=tmp_path / "run", device="cpu", workers=1)
    assert replay(tmp_path / "run").at_fault


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (("data.streaming=false",), "random-resized-crop' is taken while images are decoded"),
        (('data.augmentation=["cutmix", "random-resized-crop"]',), "'random-resized-crop' first and once"),
        (("data.extra=EXTRA", "data.extra_share=0.5"), "data.extra is mixed into images in memory, and .* is streamed"),
        (("data.image_size=0",), "data.image_size must be a whole number of at least 1, got 0"),
    ],
)
def test_what_cannot_be_is_refused(settings, told, config, tmp_path):
    np.savez(tmp_path / "extra.npz", image=np.zeros((4, 12, 12, 3), np.uint8), label=np.arange(4) % 3)
    settings = [text.replace("EXTRA", str(tmp_path / "extra.npz")) for text in settings]
    with pytest.raises(InputError, match=told):
        train(config(*CROPS, *settings), out=tmp_path / "run")
