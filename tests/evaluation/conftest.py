"""A small model of random weights, a few digits, and a tiny run to load."""

import tomllib

import pytest
import torch

from widemargin.config.toml import from_dict, with_overrides
from widemargin.data import load
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
