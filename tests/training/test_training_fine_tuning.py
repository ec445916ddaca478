"""A run that begins with other weights: which it takes, what it refuses, and that it needs them once."""

import hashlib
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import nn

from faults import interrupted
from widemargin import InputError
from widemargin.config.checkpoint import TRAIN_PREFIX, load_checkpoint
from widemargin.models.classifier import build_model
from widemargin.training import train

VALIDATED = ("data.held_out=40", "watch.margins=[]")
AT = 'objective={kind="adversarial", attack={kind="pgd", eps=0.1, step_size=0.05, steps=2, random_start="uniform"}}'
SMALL = ('data={name="cifar10-embedded", train_limit=60, test_limit=20, held_out=20}', "batch_size=20")
RESNET = ('model={kind="resnet18", width=2}', *SMALL, "watch.margins=[]")
FROZEN = (*RESNET, "epochs=2", "freeze_batch_norm=true", "averaging={decay=0.9}", AT, "igr={weight=0.1}")


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    """Settings -> the folder of a run with them, each trained once."""
    done = {}

    def get(*settings):
        if settings not in done:
            done[settings] = tmp_path_factory.mktemp("trained") / "run"
            train(tiny("epochs=1", *settings), out=done[settings])
        return done[settings]

    return get


def begun(config, out):
    """The weights that the run begins with, and its record of them."""
    assert not train(config, out=out, max_seconds=0).finished
    checkpoint = load_checkpoint(out / "last.safetensors")
    assert (checkpoint.description.epoch, checkpoint.description.step) == (0, 0)
    return checkpoint.weights, checkpoint.description.versions["init_from"]


def weights_in(file):
    return {name: value for name, value in load_file(file).items() if not name.startswith(TRAIN_PREFIX)}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def digest(path):
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


@pytest.mark.parametrize("name", ["folder", "best.safetensors", "last.safetensors"])
def test_a_run_begins_with_the_weights_of_another(name, tiny, trained, tmp_path):
    source = trained(*VALIDATED)
    file = source / ("best.safetensors" if name == "folder" else name)
    given = source if name == "folder" else file
    weights, record = begun(tiny(f"init_from={given}", "averaging={decay=0.9}"), tmp_path / "run")
    assert_equal(weights, weights_in(file))
    stored = load_file(tmp_path / "run" / "last.safetensors")
    assert_equal({name: stored[f"{TRAIN_PREFIX}model/{name}"] for name in weights}, weights)  # beside the average
    assert re.fullmatch(rf"{file.name}, sha256:[0-9a-f]{{64}}", record)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_run_begins_with_a_public_file(suffix, tiny, trained, tmp_path):
    weights, path = weights_in(trained() / "last.safetensors"), tmp_path / f"public{suffix}"
    prefixed = {f"module.{name}": value for name, value in weights.items()}
    torch.save({"state_dict": prefixed}, path) if suffix == ".pt" else save_file(prefixed, path)
    found, record = begun(tiny(f"init_from={path}"), tmp_path / "run")
    assert_equal(found, weights)
    assert record == f"{path.name}, {digest(path)}"


HEADS = {  # the source's settings, the run's, and what is said of the last layer
    "classes": (("data.name=seven.npz",), (), "fcs.1.bias (7,), fcs.1.weight (7, 16) there, fcs.1.bias (10,), fcs.1"),
    "kind": ((), ('head={kind="hypersphere"}',), "fcs.1.bias (10,), fcs.1.weight (10, 16) there, fcs.1.weight (10, 1"),
    "the same": (('head={kind="large-margin"}',), ('head={kind="large-margin"}',), None),
    "another that fits": (('head={kind="large-margin"}',), ('head={kind="hypersphere"}',), None),
}


@pytest.mark.parametrize("case", HEADS)
def test_a_last_layer_that_does_not_fit_is_drawn_anew_and_said(case, tiny, tmp_path, monkeypatch):
    theirs, ours, said = HEADS[case]
    monkeypatch.chdir(tmp_path)
    digits = np.random.default_rng(0).integers(0, 256, (14, 28, 28), dtype=np.uint8)
    labels = np.arange(14) % 7
    np.savez("seven.npz", train_images=digits, train_labels=labels, test_images=digits, test_labels=labels)
    train(tiny("epochs=1", *theirs), out=tmp_path / "source")
    config = tiny("init_from=source", *ours)
    found, record = begun(config, tmp_path / "run")
    source = weights_in(tmp_path / "source" / "last.safetensors")
    assert torch.equal(found["fcs.0.weight"], source["fcs.0.weight"])
    if said is None:
        expected = source["fcs.1.weight"]
        expected = nn.functional.normalize(expected, dim=1) if "hypersphere" in ours[0] else expected
        torch.testing.assert_close(found["fcs.1.weight"], expected)
        assert found.get("fcs.1.steps", torch.tensor(0)) == 0  # its margin anneals anew
        assert "new last layer" not in record
    else:
        assert f", but a new last layer: {said}" in record
        fresh = build_model(config.model, image_shape=(1, 28, 28), num_classes=10, seed=0, make_head=config.head)
        torch.testing.assert_close(found["fcs.1.weight"], fresh.state_dict()["fcs.1.weight"])


def test_it_is_said_once_on_the_screen(tiny, trained, tmp_path, capsys):
    config = tiny(f"init_from={trained()}", 'head={kind="hypersphere"}', "epochs=1")
    for _ in range(2):
        train(config, out=tmp_path / "run", console=Console(width=10_000))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("begins with the weights of")]
    assert "last.safetensors, sha256:" in line
    assert line.endswith(
        "but a new last layer: fcs.1.bias (10,), fcs.1.weight (10, 16) there, fcs.1.weight (10, 16) here"
    )


@pytest.mark.parametrize("settings", [(), FROZEN], ids=["", "frozen batch norms"])
def test_a_resumed_run_has_the_same_bits_and_needs_the_file_no_more(settings, tiny, trained, tmp_path, left_in):
    source = shutil.copytree(trained(*RESNET) if settings else trained(), tmp_path / "source")
    config = tiny(*settings, f"init_from={source}")
    train(config, out=tmp_path / "whole")
    for step in (1, 2, 3, 5):  # before and after there is an epoch to go on from
        interrupted(config, tmp_path / f"cut {step}", step=step)
    shutil.rmtree(source)
    for step in (1, 2, 3, 5):
        assert train(config, out=tmp_path / f"cut {step}").finished
        left_in(tmp_path / f"cut {step}").assert_same(left_in(tmp_path / "whole"))
    records = {load_checkpoint(path).description.versions["init_from"] for path in tmp_path.glob("*/last.safetensors")}
    assert len(records) == 1


def test_a_run_that_began_with_other_weights_is_another_run(tiny, trained, tmp_path):
    train(tiny(f"init_from={trained()}"), out=tmp_path, max_seconds=0)
    for settings in ((), ("init_from=elsewhere",)):
        with pytest.raises(InputError, match="holds another run"):
            train(tiny(*settings), out=tmp_path)


REFUSED = {
    "no such file": (("init_from=nowhere",), "nowhere does not exist; give a run folder"),
    "an empty name": (('init_from=" "',), "init_from is empty; give a run folder or a file of weights"),
    "another architecture": (
        ('model={kind="cnn"}', "init_from=SOURCE"),
        r"init_from: .*last.safetensors: the weights do not fit this CNN; missing: conv1.weight.* look like "
        r"MLP\(hidden=\(16,\), num_classes=10\)",
    ),
    "another width": (
        ("model.hidden=[8]", "init_from=SOURCE"),
        r"wrong shape: fcs.0.weight \(expected \(8, 784\), got \(16, 784\)\).* look like MLP\(hidden=\(16,\)",
    ),
    "another normalization": (
        ("model.normalize={mean=[0.5], std=[0.5]}", "init_from=SOURCE"),
        r"was trained behind another normalization than model.normalize .*: --set 'model.normalize=none'",
    ),
    "statistics of no image": ((*RESNET, "freeze_batch_norm=true"), r"say where from \(--from WEIGHTS, or init_from"),
    "no statistics": (("freeze_batch_norm=true", "init_from=SOURCE"), "no effect on MLP, which has no batch norm"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_begun_is_refused_in_one_line_and_leaves_nothing(case, tiny, trained, tmp_path):
    settings, told = REFUSED[case]
    with pytest.raises(InputError, match=told) as caught:
        train(tiny(*(text.replace("SOURCE", str(trained())) for text in settings)), out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", ["eager", "fast"])
def test_frozen_batch_norms_keep_their_statistics_and_train_their_scales(engine, tiny, trained, tmp_path):
    source = weights_in(trained(*RESNET) / "best.safetensors")
    config = replace(tiny(*FROZEN, "epochs=1", f"init_from={trained(*RESNET)}"), averaging=None)
    train(config, out=tmp_path, engine=engine)
    found = weights_in(tmp_path / "last.safetensors")
    changed = {name.rpartition(".")[2] for name in found if not torch.equal(found[name], source[name])}
    assert changed == {"weight", "bias"}
    scales = [name.replace("running_mean", "weight") for name in found if name.endswith("running_mean")]
    assert [name for name in scales if torch.equal(found[name], source[name])] == []
