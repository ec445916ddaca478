"""Compiled networks side by side in one process, on the CPU: a graph that runs its step again in place of a CUDA graph.

Without turns, what one lane traces is changed by the networks that others call.
"""

from functools import partial

import pytest
import torch

from widemargin.config_files import with_overrides
from widemargin.data import ImageSet
from widemargin.engine import Plan
from widemargin.engine.turns import calling_networks
from widemargin.experiments.lanes import side_by_side
from widemargin.recipes import find_recipe
from widemargin.training import Splits, begin, graphed, steps, train
from widemargin.training.log import read_metrics

RECIPES = [f"cifar-cnn/{name}" for name in ("st-emr", "at-wd0.001", "at-approximate-emr", "at-lsoftmax-wd0.001")]
SHORTER = ["epochs=2", "optimizer.schedule.kind=constant", "watch.margin_samples=8", "watch.every=1", "batch_size=4"]
COMPILED = Plan(engine="fast", channels_last=True, compiler="aot_eager", graphs=True)


class Again:
    """Unlike a CUDA graph it calls the networks."""

    def __init__(self, step):
        self._step = step

    def replay(self):
        with calling_networks():
            self._step()


class Repeated(graphed.GraphedSteps):
    """Steps without CUDA."""

    def _on_the_side(self, run):
        run()

    def _capture(self, kind):
        kind.graph = Again(lambda: self._step(kind))


def has_drawn(generator):
    fresh = torch.Generator().manual_seed(generator.initial_seed())
    return not torch.equal(generator.get_state(), fresh.get_state())


def images(count):
    generator = torch.Generator().manual_seed(count)
    pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return ImageSet(images=pixels, labels=pixels.flatten(1)[:, :9].argmax(1), num_classes=10, name="noise")


def run(out, name, console=None, stop=None):
    splits = Splits(train=images(24), validation=None, test=images(8))
    config = with_overrides(find_recipe(name).config, SHORTER)
    train(config, out=out / name, device="cpu", console=console, splits=splits, stop=stop)


@pytest.mark.long
def test_they_learn_as_alone(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(graphed, "has_drawn", has_drawn)
    monkeypatch.setattr(steps, "GraphedSteps", Repeated)
    monkeypatch.setattr(begin, "make_plan", lambda *_: COMPILED)
    assert side_by_side(RECIPES, partial(run, tmp_path / "together"), torch.device("cpu"), 3) == 0
    assert "Traceback" not in capfd.readouterr().err
    for name in RECIPES:
        run(tmp_path / "alone", name)
        together, alone = (read_metrics(tmp_path / kind / name) for kind in ("together", "alone"))
        for mine, its in zip(together, alone, strict=True):
            assert mine["loss"] == pytest.approx(its["loss"], rel=1e-6)
            assert mine["test_margin_mean"] == pytest.approx(its["test_margin_mean"], rel=1e-4)
