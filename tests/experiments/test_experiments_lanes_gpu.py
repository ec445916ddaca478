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

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

RECIPES = [
    f"mnist-mlp/{name}"
    for name in ("st-emr", "at-wd0.001", "at-wd0.01", "st-lsoftmax-wd0.01", "at-approximate-emr", "at-emr")
]
"""The networks keep their size: small products need no workspace, and one that graphs share would not be seen."""
SHORTER = ["epochs=3", "optimizer.schedule={kind = 'constant'}", "watch.margin_samples=200"]


def images(count: int) -> ImageSet:
    generator = torch.Generator().manual_seed(count)
    pixels = torch.randint(0, 256, (count, 1, 28, 28), dtype=torch.uint8, generator=generator)
    return ImageSet(images=pixels, labels=pixels.flatten(1)[:, :9].argmax(1), num_classes=10, name="noise")


def run(out, name, console=None, stop=None):
    splits = Splits(train=images(5050), validation=None, test=images(300))
    config = with_overrides(find_recipe(name).config, SHORTER)
    train(config, out=out / name, device="cuda", console=console, splits=splits, stop=stop)


def test_the_same_weights_and_measurements_as_alone(tmp_path, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error", WidemarginWarning)  # a step that cannot be captured, say
        side_by_side(RECIPES, partial(run, tmp_path / "together"), torch.device("cuda"))
        for name in RECIPES:
            run(tmp_path / "alone", name)
    assert "Traceback" not in capfd.readouterr().err
    for name in RECIPES:
        together, alone = (load_file(tmp_path / kind / name / "last.safetensors") for kind in ("together", "alone"))
        assert together.keys() == alone.keys()
        for key, value in alone.items():
            torch.testing.assert_close(together[key], value, rtol=1e-6, atol=1e-8, msg=f"{name}: {key}")
