"""Commands as a user gives them, on tiny runs."""

import tomllib

import numpy as np
import pytest

from widemargin.cli.main import run
from widemargin.config.toml import from_dict, to_toml
from widemargin.data import load

RECIPE = """
name = "tiny"
epochs = 2
batch_size = 20
data = { name = "mnist-embedded", train_limit = 100, test_limit = 40 }
model = { kind = "mlp", hidden = [16] }
optimizer = { lr = 0.1 }
watch = { attack = { kind = "fgsm", eps = 0.1 }, margins = [] }
evaluation = { attacks = ["clean", "pgd3"], eps = 0.05, step_size = 0.02 }
"""


@pytest.fixture(scope="session")
def recipe(tmp_path_factory):
    """A .toml recipe that trains in a blink."""
    path = tmp_path_factory.mktemp("recipes") / "tiny.toml"
    path.write_text(to_toml(from_dict(tomllib.loads(RECIPE))))
    return path


@pytest.fixture(scope="session")
def trained(recipe, tmp_path_factory):
    """A finished run."""
    out = tmp_path_factory.mktemp("trained") / "run"
    assert run(["train", str(recipe), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="session")
def arrays():
    """The arrays of a user's own .npz: digits of three classes, cut to 14 x 14."""
    parts = {}
    for split, count in (("train", 90), ("test", 45)):
        data = load("mnist-embedded", split)
        rows = (data.labels < 3).nonzero()[:count, 0]
        parts[f"{split}_images"] = data.images[rows, 0, ::2, ::2].numpy()
        parts[f"{split}_labels"] = data.labels[rows].numpy().astype(np.int64)
    return parts
