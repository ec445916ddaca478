"""Tiny runs: a one-layer MLP on a few embedded digits, a fraction of a second each."""

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from faults import Nursery
from widemargin.config import RunConfig
from widemargin.config.toml import from_dict, with_overrides
from widemargin.training.run_folder import read_metrics

BASE = """
name = "tiny"
epochs = 3
batch_size = 40
data = { name = "mnist-embedded", train_limit = 150, test_limit = 60 }
model = { kind = "mlp", hidden = [16] }
optimizer = { lr = 0.1, momentum = 0.9, weight_decay = 1e-3, schedule = { kind = "steps", milestones = [2] } }
"""

MakeConfig = Callable[..., RunConfig]


@pytest.fixture(scope="session")
def tiny() -> MakeConfig:
    """tiny("seed=1", "emr.kind=exact", ...): the base configuration with what a user would --set."""

    def make(*settings: str) -> RunConfig:
        return with_overrides(from_dict(tomllib.loads(BASE)), settings)

    return make


@pytest.fixture(scope="session")
def nursery(tmp_path_factory) -> Iterator[Nursery]:
    """Runs in processes of their own that start in milliseconds; see faults.py."""
    warm = Nursery(tmp_path_factory.mktemp("nursery"))
    yield warm
    warm.end()


class Left:
    """What a run left in its folder, without the times."""

    def __init__(self, folder: Path) -> None:
        weights = ("last.safetensors", "best.safetensors")
        names = [name for name in (*weights, *(f"averaged/{name}" for name in weights)) if (folder / name).exists()]
        self.files = sorted(path.name for path in folder.iterdir())
        self.tensors: dict[str, dict[str, Tensor]] = {name: load_file(folder / name) for name in names}
        self.metrics = [
            {key: value for key, value in line.items() if key not in ("seconds", "watch_seconds")}
            for line in read_metrics(folder)
        ]

    def assert_same(self, other: "Left") -> None:
        assert self.files == other.files
        assert self.metrics == other.metrics
        for name, tensors in self.tensors.items():
            assert tensors.keys() == other.tensors[name].keys()
            assert all(tensor.equal(other.tensors[name][key]) for key, tensor in tensors.items()), name


@pytest.fixture(scope="session")
def left_in() -> Callable[[Path], Left]:
    return Left
