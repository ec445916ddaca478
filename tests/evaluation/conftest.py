"""A small model of random weights, a few digits, a tiny run to load, and attacks short enough for tests."""

import os
import tomllib

import official
import pytest
import torch

from widemargin.config.toml import from_dict, with_overrides
from widemargin.data import load
from widemargin.evaluation import evaluator, judge
from widemargin.models import MLPConfig
from widemargin.training import train

BASE = """
name = "tiny"
epochs = 2
batch_size = 20
data = { name = "mnist-embedded", train_limit = 100, test_limit = 20, held_out = 20 }
model = { kind = "mlp", hidden = [16] }
optimizer = { lr = 0.1 }
watch = { attack = { kind = "fgsm", eps = 0.1 }, margins = [] }
evaluation = { attacks = ["clean", "pgd3"], eps = "8/255", step_size = 0.02 }
"""


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run with a validation split, so with a best and a last checkpoint."""
    out = tmp_path_factory.mktemp("runs") / "with-best"
    train(from_dict(tomllib.loads(BASE)), out=out)
    return out


@pytest.fixture(scope="module")
def plain_folder(tmp_path_factory):
    """A run without one, so with a last checkpoint only."""
    out = tmp_path_factory.mktemp("runs") / "without-best"
    train(with_overrides(from_dict(tomllib.loads(BASE)), ["data.held_out=0", "epochs=1"]), out=out)
    return out


@pytest.fixture(scope="module")
def seed_1(tmp_path_factory):
    """The first run with another seed."""
    out = tmp_path_factory.mktemp("runs") / "seed-1"
    train(with_overrides(from_dict(tomllib.loads(BASE)), ["seed=1"]), out=out)
    return out


@pytest.fixture(scope="module")
def digits():
    return load("mnist-embedded", "test", limit=47)


@pytest.fixture
def model():
    """Trained a little by hand, so that some digits are right, some wrong and some attackable."""
    data = load("mnist-embedded", "train", limit=300)
    network = MLPConfig(hidden=(24,)).build(image_shape=(1, 28, 28), num_classes=10, seed=1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    for _ in range(12):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(data.floats()), data.labels).backward()
        optimizer.step()
    return network


@pytest.fixture(scope="module", autouse=True)
def _no_waiting_for_the_disk():
    """Processes die in these tests, machines do not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def tf32_here(monkeypatch):
    """As if this device had TF32; the switches are what tests then look at."""
    monkeypatch.setattr(evaluator, "has_tf32", lambda device: True)


@pytest.fixture
def short(monkeypatch):
    """AutoAttack with few iterations, as in ``officially(lengths=SHORT)``."""
    monkeypatch.setattr(judge, "make_reference", official.shortened(judge.make_reference, official.SHORT))


@pytest.fixture
def very_short(monkeypatch):
    """The same with hardly any."""
    monkeypatch.setattr(judge, "make_reference", official.shortened(judge.make_reference, official.VERY_SHORT))
