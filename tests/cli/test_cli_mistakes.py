"""Every mistake ends with exit code 2, one line that helps, no traceback, and nothing half-written.

What each part refuses, in which words, is tested beside that part: settings in tests/config, files in tests/data.
"""

import itertools
import re
import shlex
import shutil

import numpy as np
import pooch
import pytest
import torch

from faults import contents
from widemargin.config.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from widemargin.training import step as steps_module
from widemargin.training.step import train_step

REFUSED = {
    # settings
    "train RECIPE --out run --set emr.wieght=1": "emr.wieght",
    "train RECIPE --out run --set epochs": "--set 'epochs': write path=value, for example emr.weight=0.3",
    "train RECIPE --out run --set watch.attack.eps=8": "images are in [0, 1], did you mean 8/255?",
    "train RECIPE --out run --set data.held_out=12000": "data.held_out must leave images to train on",
    """train RECIPE --out run --set 'emr={kind="exact", weight=1, temperature=2}'""": "no effect on exact EMR; remove",
    "train demo/plain --out run --epochs 3": "Settings are changed with --set, such as --set optimizer.lr=0.05.",
    "train RECIPE --from nowhere --out run": "nowhere does not exist; give a run folder (what --out named)",
    "train RECIPE --set freeze_batch_norm=true --from RUN --out run": "no effect on MLP, which has no batch norm",
    # recipes
    "train mnist-mlp/st-erm --out run": "unknown recipe 'mnist-mlp/st-erm'; did you mean 'mnist-mlp/st-emr'?",
    "recipes show nonsense": "unknown recipe",
    "train none.toml --out run": "cannot read none.toml: No such file",
    # lines that do not parse
    "train": "See 'widemargin train --help'.",
    "train demo/plain": "See 'widemargin train --help'.",
    "train demo/plain --out": "See 'widemargin train --help'.",
    "train demo/plain --nonsense 1": "See 'widemargin train --help'.",
    "evaluate": "See 'widemargin evaluate --help'.",
    "margins a b": "See 'widemargin margins --help'.",
    "recipes show": "See 'widemargin recipes show --help'.",
    "demo --seed x": "See 'widemargin demo --help'.",
    "reprot": "widemargin: No such command 'reprot'. Did you mean 'report', 'reproduce', 'export'?",
    "--import '' recipes": "--import '' is no module's name",
    "--import ..x recipes": "--import '..x' is no module's name",
    "results runs": "in the repository run 'python -m paper collect'",
    "bench --json": "run 'python -m benchmarks step' (see '",
    # options
    "evaluate RUN --eps 8": "eps must be in (0, 1], got 8; images are in [0, 1], did you mean 8/255?",
    "evaluate RUN --eps big": "--eps: 'big' is not a number; write 0.031 or 8/255",
    "evaluate RUN --eps 0": "eps must be in (0, 1], got 0",
    "evaluate RUN --eps 0.1 --step-size 2": "did you mean 2/255?",
    "evaluate RUN --step-size x": "--step-size: 'x' is not a number",
    "evaluate RUN --attacks pgd0": "unknown attack 'pgd0'; known are clean, fgsm, pgdN",
    "evaluate RUN --attacks clean,autopgd": "unknown attack 'autopgd'",
    "evaluate RUN --attacks ,": "--attacks must name at least one",
    "evaluate RUN --norm l1": "--norm must be one of 'linf', 'l2', got 'l1'",
    "evaluate RUN --norm l2": "--eps is missing for pgd3",
    "evaluate RUN --limit 0": "limit must be a whole number of at least 1, got 0",
    "evaluate RUN --batch-size 0": "batch_size must be a whole number of at least 1, got 0",
    "evaluate RUN --batch-size HUGE": "batch_size must be a whole number below",
    "evaluate RUN --shard-size HUGE": "shard_size must be a whole number below 2^63",
    "evaluate RUN --dataset cifar": "data set 'cifar' is unknown",
    "evaluate no.module:x --split valid": "--split must be one of",
    "margins RUN --split held": "--split must be one of 'train', 'validation', 'test', got 'held'",
    "margins RUN --at noise": "--at must be one of 'clean', 'adversarial', got 'noise'",
    "margins RUN --norm l1": "--norm must be one of 'linf', 'l2', got 'l1'",
    "margins RUN --limit -1": "limit must be a whole number of at least 1, got -1",
    "margins . --picture a.jpg": "widemargin: --picture must name a .png file, got a.jpg",
    "evaluate RUN --split validation": "this run held out no images (data.held_out is 0); use --split test",
    "margins RUN --split validation": "this run held out no images (data.held_out is 0); use --split test",
    "evaluate RUN --split validation --dataset x": "--split validation is of the run's own data; leave out --dataset",
    "margins RUN --split validation --dataset x": "--split validation is of the run's own data; leave out --dataset",
    "train RECIPE --set seed=HUGEHUGE --out run": "seed must be a whole number",
    "demo --seed HUGEHUGE --out run": "seed must be in [0, 2^63)",
    "reproduce table1 --seeds ² --out run": "--seeds: '²' must",
    "reproduce table1 --seeds ENDLESS --out run": "--seeds: '999",
    # targets
    "evaluate nowhere": "does not exist; give a run folder",
    "margins nowhere": "does not exist; give a run folder",
    "evaluate .": "is it a run folder",
    "margins .": "is it a run folder",
    "evaluate no_such_module:make --dataset cifar10 --data-dir data": "no_such_module",
    "evaluate no/such/run --dataset cifar10 --data-dir data": "no/such/run",
    # names beyond what a file system takes
    "train RECIPE --out LONG": "File name too long",
    "train LONG.toml --out run": "File name too long",
    "evaluate LONG": "File name too long",
    "margins RUN --dataset LONG": "File name too long",
    "evaluate RUN --limit 5 --out LONG": "File name too long",
    "margins RUN --limit 5 --picture LONG.png": "File name too long",
    "report LONG": "File name too long",
    "report RUN --out LONG.html": "File name too long",
    # several processes
    "WORLD_SIZE=2 train RECIPE --out run": (
        "WORLD_SIZE is set, but not RANK, MASTER_ADDR, MASTER_PORT: start with torchrun, or unset WORLD_SIZE"
    ),
    "WORLD_SIZE=2 evaluate RUN --out o": "but not RANK",
    "WORLD_SIZE=x train RECIPE --out run": "WORLD_SIZE must be a",
    "WORLD_SIZE=0 evaluate RUN": "WORLD_SIZE must be a whole number of at least 1",
    "RANK=x evaluate RUN": "RANK must be a whole number of at least 0",
    "LOCAL_RANK=-1 train RECIPE --out run": (
        "LOCAL_RANK must be a whole number of at least 0, as torchrun sets it, got '-1'"
    ),
    "WORLD_SIZE=2 RANK=2 MASTER_ADDR=localhost MASTER_PORT=1 train RECIPE --out run": (
        "RANK must be below WORLD_SIZE, which is 2, got 2"
    ),
    "WORLD_SIZE=2 RANK=0 MASTER_ADDR=localhost MASTER_PORT=x train RECIPE --out run": (
        "the processes cannot find each other at localhost:x: "
    ),
    "WORLD_SIZE=2 sweep demo/plain --grid seed=0,1 --out o": (
        "sweep is for one process, and torchrun started 2 (WORLD_SIZE): start it without torchrun; to share it, start "
        "the same command several times"
    ),
    "WORLD_SIZE=2 reproduce table1 --out o": (
        "reproduce is for one process, and torchrun started 2 (WORLD_SIZE): start it without torchrun; --workers does"
    ),
    "WORLD_SIZE=8 demo --out o": (
        "demo is for one process, and torchrun started 8 (WORLD_SIZE): start it without torchrun; it takes about two"
    ),
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_mistake_is_refused_in_one_line_and_leaves_nothing(refused, recipe, trained, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    before = contents(trained)
    words = {"RECIPE": recipe, "RUN": trained, "LONG": "a" * 256, "HUGE": 10**20, "ENDLESS": "9" * 5000}
    arguments = [re.sub("|".join(words), lambda found: str(words[found[0]]), word) for word in shlex.split(line)]
    while re.match(r"[A-Z_]+=", arguments[0]):
        monkeypatch.setenv(*arguments.pop(0).split("="))
    assert REFUSED[line] in refused(*arguments)
    assert list(tmp_path.iterdir()) == []
    assert contents(trained) == before


@pytest.mark.parametrize("duration", ["soon", "25 minutes", "-5m", "0s", "5x", "1h30", "1..5m", "", "nan", "m"])
def test_a_bad_duration(refused, recipe, tmp_path, duration):
    line = refused("train", recipe, "--out", tmp_path / "run", "--max-time", duration)
    assert "--max-time" in line
    assert "write 90s, 25m or 1h30m" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "tpu", "", "meta"])
def test_a_bad_device(refused, recipe, trained, tmp_path, device):
    for arguments in (("train", recipe, "--out", tmp_path / "run"), ("evaluate", trained), ("margins", trained)):
        line = refused(*arguments, "--device", device)
        assert f"--device {device!r} cannot be used here" in line
        assert "use auto or cpu" in line
    assert not (tmp_path / "run").exists()


# Data


@pytest.fixture
def own_npz(tmp_path, arrays):
    """Write the arrays with some of them changed."""

    def write(**changes):
        path = tmp_path / "own.npz"
        np.savez(path, **(arrays | changes))
        return path

    return write


def test_no_data_and_no_network(refused, recipe, tmp_path, monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("Network is unreachable")

    monkeypatch.setattr(pooch, "retrieve", offline)
    monkeypatch.setenv("WIDEMARGIN_DATA", str(tmp_path / "data"))
    line = refused("train", recipe, "--out", tmp_path / "run", "--set", "data.name=mnist")
    assert "mnist: cannot download train-images-idx3-ubyte.gz" in line
    assert f"at {tmp_path / 'data' / 'mnist' / 'train-images-idx3-ubyte.gz'}" in line
    assert "'mnist-embedded', which needs no file" in line
    flags = ("--set", "data.name=cifar10", "--data-dir", tmp_path / "mine")
    line = refused("train", recipe, "--out", tmp_path / "run", *flags)
    assert f"at {tmp_path / 'mine' / 'cifar10' / 'cifar-10-binary.tar.gz'}" in line
    assert not (tmp_path / "run").exists()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_labels_out_of_range(refused, recipe, tmp_path, own_npz, arrays):
    path = own_npz(train_labels=arrays["train_labels"] + 1, test_labels=arrays["test_labels"] + 1, num_classes=3)
    line = refused("train", recipe, "--out", tmp_path / "run", "--set", f"data.name={path}")
    assert "labels must be in [0, 3) for 3 classes, found 1 to 3; they seem to count from 1: subtract 1" in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("verb", ["evaluate", "margins"])
def test_data_of_another_kind(refused, trained, own_npz, verb):
    assert "holds images (1, 14, 14) of 3 classes" in refused(verb, trained, "--dataset", own_npz())


# Folders and files


def test_a_folder_that_is_removed_under_the_run(refused, recipe, tmp_path, monkeypatch):
    def removing(*arguments, **options):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return train_step(*arguments, **options)

    monkeypatch.setattr(steps_module, "train_step", removing)
    assert str(tmp_path / "run") in refused("train", recipe, "--out", tmp_path / "run")


def test_a_current_folder_that_is_removed(refused, trained, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "No such file or directory" in refused("train", "demo/plain", "--out", "run")
    assert "No such file or directory" in refused("evaluate", trained, "--limit", 5, "--out", "records")


@pytest.mark.parametrize("below", ["", "below", "below/more"])
def test_an_unwritable_out(refused, recipe, trained, tmp_path, below):
    (tmp_path / "file").write_text("a file")
    out = tmp_path / "file" / below
    line = refused("train", recipe, "--out", out)
    assert f"cannot write to the folder {out}" in line
    assert "choose another folder (--out" in line
    assert "cannot write" in refused("margins", trained, "--limit", 5, "--picture", tmp_path / "file" / below / "a.png")
    assert contents(tmp_path) == {"file": b"a file"}


def test_a_folder_of_another_run_or_of_something_else(refused, recipe, trained, tmp_path):
    before = contents(trained)
    line = refused("train", recipe, "--out", trained, "--set", "optimizer.lr=0.5")
    assert "holds another run (optimizer.lr: 0.5 here, 0.1 there); choose another --out" in line
    line = refused("train", recipe, "--out", trained, "--set", 'emr={kind="exact", weight=0.1}')
    assert "emr.kind: 'exact' here, None there" in line
    assert contents(trained) == before
    (tmp_path / "thesis.txt").write_text("years of work")
    line = refused("train", recipe, "--out", tmp_path)
    assert "is not empty and holds no config.toml; choose an empty folder for --out" in line
    assert contents(tmp_path) == {"thesis.txt": b"years of work"}


def test_files_that_are_no_checkpoint(refused, tmp_path):
    (tmp_path / "notes.safetensors").write_text("not a checkpoint")
    for verb in ("evaluate", "margins"):
        assert "is not a readable checkpoint" in refused(verb, tmp_path / "notes.safetensors")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    (tmp_path / "junk.pt").write_bytes(b"junk")
    for name, verb in itertools.product(("module.pt", "junk.pt"), ("evaluate", "margins")):
        line = refused(verb, tmp_path / name, "--dataset", "mnist-embedded")
        assert "that torch wrote; save model.state_dict()" in line
        assert "\x1b" not in line


def test_the_checkpoint_before_the_last(refused, command, trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    answer = command("evaluate", run / "previous.safetensors", "--limit", 20)
    assert "the checkpoint before the last one (epoch 1)" in answer.text
    (run / "last.safetensors").unlink()
    assert "train goes on from its previous.safetensors" in refused("evaluate", run)


@pytest.mark.parametrize("verb", ["evaluate", "margins"])
def test_a_checkpoint_of_another_model(refused, trained, tmp_path, verb):
    checkpoint = load_checkpoint(trained / "last.safetensors")
    wrong = {key: value[:8] if key == "fcs.0.weight" else value for key, value in checkpoint.weights.items()}
    path = tmp_path / "wrong.safetensors"
    save_checkpoint(path, Checkpoint(wrong, {}, checkpoint.description))
    line = refused(verb, path)
    assert "does not fit a MLP: fcs.0.weight is (8, 784) in the file and (16, 784) in the model" in line
    assert "another model?" in line


def test_a_diverging_run_ends_with_a_clear_last_line(command, recipe, tmp_path):
    answer = command("train", recipe, "--out", tmp_path, "--set", "optimizer={lr=1e6, weight_decay=1.0}")
    assert answer.code == 2
    assert answer.err.splitlines()[-1].startswith("widemargin: tiny: the loss became ")
    assert "lower optimizer.lr" in answer.err
    assert "Traceback" not in answer.err
