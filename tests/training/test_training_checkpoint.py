"""Checkpoints: complete, readable by anyone, whole or not there, and free of pickle."""

import ast
import json
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import widemargin
from widemargin import InputError, load
from widemargin.config.checkpoint import Checkpoint, Description, load_checkpoint, restore_model, save_checkpoint
from widemargin.config.toml import from_dict
from widemargin.core.files import write_atomic, write_text_atomic
from widemargin.models import MODELS
from widemargin.training import train

SOURCE = Path(widemargin.__file__).parent


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    config = tiny("epochs=2", "data.held_out=20", 'watch.attack={kind="fgsm", eps="8/255"}', "seed=5")
    return config, out, train(config, out=out)


def header_of(path):
    """The JSON header by the format's own definition: eight bytes of length, then the header."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length])


@pytest.mark.parametrize("name", ["last", "best"])
def test_the_description_inside_the_file_is_complete(run, name):
    config, out, result = run
    table = json.loads(header_of(out / f"{name}.safetensors")["__metadata__"]["widemargin"])
    assert table["format"] == "widemargin-checkpoint-1"
    assert table["which"] == name
    assert from_dict(table["config"]) == config
    assert table["image_shape"] == [1, 28, 28]
    assert table["num_classes"] == 10
    assert table["step"] == 0
    assert table["versions"].keys() == {"widemargin", "torch", "python", "engine"}
    assert table["versions"]["engine"] == "eager, float32"
    assert table["versions"]["torch"] == torch.__version__
    line = result.metrics[table["epoch"] - 1]
    for key in ("validation_robust", "validation_clean", "test_clean", "test_robust"):
        assert table["scores"][key] == line[key]


def test_the_description_says_how_the_weights_were_chosen(run):
    config, out, _ = run
    last, best = (load_checkpoint(out / f"{name}.safetensors").description for name in ("last", "best"))
    assert last.selection == "the last step trained"
    assert last.epoch == 2
    assert last.run_config() == config
    assert "20 held-out training images" in best.selection
    assert "FGSM(eps=8/255" in best.selection


def test_weights_have_their_public_names_and_are_restored_in_evaluation_mode(run):
    _, out, _ = run
    stored = load_file(out / "last.safetensors")
    public = {"fcs.0.weight", "fcs.0.bias", "fcs.1.weight", "fcs.1.bias"}
    assert {key for key in stored if not key.startswith("train/")} == public
    assert load_file(out / "best.safetensors").keys() == public
    model = restore_model(load_checkpoint(out / "last.safetensors"), source=out)
    assert not model.training
    assert all(value.equal(stored[key]) for key, value in model.state_dict().items())


def describe(config, shape=(3, 32, 32)):
    table = {
        "name": "a",
        "epochs": 1,
        "batch_size": 1,
        "data": {"name": "cifar10"},
        "model": config,
        "optimizer": {"lr": 0.1},
    }
    return Description(
        which="last", selection="by hand", config=table, image_shape=shape, num_classes=10, epoch=1, step=2, scores={}
    )


class Copies(TorchDispatchMode):
    """Counts what is copied."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func._schema.name in ("aten::clone", "aten::_to_copy", "aten::copy_")
        return func(*args, **(kwargs or {}))


def test_tensors_are_copied_once_whatever_their_form(tmp_path):
    grid = torch.arange(24.0).reshape(1, 2, 3, 4)
    weights = {
        "plain": grid,
        "a view of it": grid[0],
        "transposed": grid.transpose(2, 3),
        "channels last": grid.to(memory_format=torch.channels_last),
        "expanded": torch.ones(1).expand(5),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    path = tmp_path / "a.safetensors"
    with Copies() as copies:
        save_checkpoint(path, Checkpoint(weights, {}, describe({"kind": "mlp"})))
    assert copies.count == len(weights)
    loaded = load_checkpoint(path).weights
    assert all(loaded[name].equal(value) for name, value in weights.items())


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_whatever_stops_a_write_no_part_of_a_file_is_left(tmp_path, error):
    write_text_atomic(tmp_path / "a.txt", "old")

    def interrupted(partial):
        partial.write_text("ne")
        raise error

    with pytest.raises(error):
        write_atomic(tmp_path / "a.txt", interrupted)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_checkpoints_can_be_read_by_whom_the_umask_allows(run):
    _, out, _ = run
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()}
    assert modes["last.safetensors"] == modes["best.safetensors"] == modes["config.toml"]


def imported_modules(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_nothing_but_the_cifar_reader_knows_pickle():
    sources = sorted(SOURCE.rglob("*.py"))
    assert len(sources) > 50
    for path in sources:
        if path.name == "cifar.py":
            continue
        assert not {"pickle", "dill", "cloudpickle", "joblib"} & set(imported_modules(path)), path
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
                assert node.attr != "save", path
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                assert "weights_only=True" in ast.unparse(node), path


@pytest.mark.parametrize("kept", [torch.tensor([3.0]), {"calls": 3}])
def test_extra_state_of_a_module_is_kept_if_it_is_a_tensor_and_refused_before_training_if_not(
    tiny, tmp_path, monkeypatch, kept
):
    class Keeping(nn.Linear):
        def get_extra_state(self):
            return kept

        def set_extra_state(self, state):
            self.found = state

    @dataclass(frozen=True, kw_only=True)
    class KeepingConfig:
        def build(self, *, image_shape, num_classes, seed, make_head=None):
            return nn.Sequential(nn.Flatten(), Keeping(784, num_classes))

    monkeypatch.setitem(MODELS, "keeping", KeepingConfig)
    config = tiny("epochs=1", 'model={kind="keeping"}')
    if isinstance(kept, dict):
        with pytest.raises(InputError, match=r"model: 1\._extra_state must be a tensor, .*, got dict"):
            train(config, out=tmp_path)
        return
    train(config, out=tmp_path)
    assert torch.equal(load(tmp_path)[1].found, kept)
