"""On a GPU: runs side by side in one process, each with its stream and its CUDA graphs, are the runs alone."""

import warnings
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from widemargin.config_files import with_overrides
from widemargin.data import ImageSet
from widemargin.errors import WidemarginWarning
from widemargin.experiments.lanes import side_by_side
from widemargin.recipes import find_recipe
from widemargin.training import Splits, train
from widemargin.training.log import read_metrics

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

RECIPES = [
    f"mnist-mlp/{name}"
    for name in ("st-emr", "at-wd0.001", "at-wd0.01", "st-lsoftmax-wd0.01", "at-approximate-emr", "at-emr")
]
"""The networks keep their size: small products need no workspace, and one that graphs share would not be seen."""
SHORTER = ["epochs=3", "optimizer.schedule={kind = 'constant'}", "watch.margin_samples=200"]


COMPILED = [f"cifar-cnn/{name}" for name in ("st-emr", "at-wd0.001", "at-approximate-emr", "at-lsoftmax-wd0.001")]


def images(count: int, shape: tuple[int, int, int]) -> ImageSet:
    generator = torch.Generator().manual_seed(count)
    pixels = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    return ImageSet(images=pixels, labels=pixels.flatten(1)[:, :9].argmax(1), num_classes=10, name="noise")


def run(out, name, console=None, stop=None):
    shape = (1, 28, 28) if name.startswith("mnist") else (3, 32, 32)
    splits = Splits(train=images(5050, shape), validation=None, test=images(300, shape))
    config = with_overrides(find_recipe(name).config, SHORTER)
    train(config, out=out / name, device="cuda", console=console, splits=splits, stop=stop)


def run_both_ways(names, tmp_path, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error", WidemarginWarning)  # a step that cannot be captured or compiled, say
        side_by_side(names, partial(run, tmp_path / "together"), torch.device("cuda"))
        for name in names:
            run(tmp_path / "alone", name)
    assert "Traceback" not in capfd.readouterr().err


def test_the_same_weights_and_measurements_as_alone(tmp_path, capfd):
    run_both_ways(RECIPES, tmp_path, capfd)
    for name in RECIPES:
        together, alone = (load_file(tmp_path / kind / name / "last.safetensors") for kind in ("together", "alone"))
        assert together.keys() == alone.keys()
        for key, value in alone.items():
            torch.testing.assert_close(together[key], value, rtol=1e-6, atol=1e-8, msg=f"{name}: {key}")


def test_compiled_networks_take_turns_and_learn_as_alone(tmp_path, capfd):
    """cuDNN may choose other kernels beside other runs, so bfloat16 gives other roundings."""
    run_both_ways(COMPILED, tmp_path, capfd)
    for name in COMPILED:
        together, alone = (read_metrics(tmp_path / kind / name) for kind in ("together", "alone"))
        for mine, its in zip(together, alone, strict=True):
            assert mine["loss"] == pytest.approx(its["loss"], rel=0.03), name
            assert mine.keys() == its.keys()
