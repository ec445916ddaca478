"""Every mistake ends with exit code 2, one line that helps, no traceback, and nothing half-written."""

import gzip
import shutil

import numpy as np
import pooch
import pytest
import torch

from widemargin.config.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from widemargin.training import step as steps_module
from widemargin.training.step import train_step


@pytest.fixture
def no_network(monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("Network is unreachable")

    monkeypatch.setattr(pooch, "retrieve", offline)


@pytest.fixture
def own_npz(tmp_path, arrays):
    """Write the arrays with some of them changed."""

    def write(**changes):
        path = tmp_path / "own.npz"
        np.savez(path, **(arrays | changes))
        return path

    return write


WRONG_SETTINGS = {
    "unknown key": ("emr.wieght=1", "emr.wieght"),
    "unknown part": ("optimiser.lr=1", "did you mean 'optimizer'?"),
    "known key in the wrong place": ("lr=1", "unknown key 'lr'"),
    "no equals sign": ("epochs", "write path=value, for example emr.weight=0.3"),
    "no path": ("=3", "write path=value"),
    "a value used as a table": ("epochs.count=3", "'epochs' is a value, not a table"),
    "text for a number": ("optimizer.lr=fast", "optimizer.lr: 'fast' is not a number; write 0.031 or 8/255"),
    "a fraction of nothing": ("optimizer.lr=8/0", "'8/0' is not a number"),
    "text for a whole number": ("epochs=many", "epochs must be a whole number, got 'many'"),
    "a number for a whole number": ("epochs=1.5", "epochs must be a whole number, got 1.5"),
    "a number for a switch": ("watch.test=1", "watch.test must be true or false, got 1"),
    "a number for a list": ("model.hidden=16", "model.hidden must be a list, each element a whole number"),
    "a switch for a number": ("optimizer.lr=true", "optimizer.lr must be a number, got True"),
    "eps of 8": ("watch.attack.eps=8", "eps must be in (0, 1], got 8.0; images are in [0, 1], did you mean 8/255?"),
    "a negative rate": ("optimizer.lr=-1", "optimizer.lr"),
    "an infinite rate": ("optimizer.lr=inf", "optimizer.lr"),
    "no epochs": ("epochs=0", "epochs must be a whole number of at least 1, got 0"),
    "a missing value": ("data.name=none", "data.name is missing; add it: text"),
    "a missing part": ("optimizer=none", "optimizer is missing; add it: a table such as {lr = ...}"),
    "a missing model": ("model=none", "model is missing; add it: a table such as {kind = 'mlp'}"),
    "a missing attack": (
        "objective={kind = 'trades'}",
        "objective.attack is missing; add it: a table such as {kind = 'pgd', eps = ..., step_size = ..., steps = ...}",
    ),
    "a missing kind": (
        "emr={weight = 0.1}",
        "emr.kind is missing; add it: one of 'exact', 'approximate', 'stochastic'",
    ),
    "an unknown kind": ("model.kind=mpl", "model.kind must be one of"),
    "a kind in place of its part": ("model=mlp", "model must be a table, got 'mlp'; set its parts, first of all"),
    "a part without its kind": ('objective={attack={kind="fgsm", eps=0.1}}', "objective.kind must be one of"),
    "an unknown augmentation": ("data.augmentation=flop", "data.augmentation must be one of"),
    "an unknown attack": ('evaluation.attacks=["pgd"]', "unknown attack 'pgd'"),
    "an unknown data set": ("data.name=mnsit", "data set 'mnsit' is unknown"),
    "no images": ("data.train_limit=0", "data.train_limit must be at least 1, got 0"),
    "too much held out": ("data.held_out=12000", "data.held_out must leave images to train on"),
    "a temperature for exact EMR": ('emr={kind="exact", weight=1, temperature=2}', "no effect on exact EMR; remove it"),
    "EMR at images nobody attacks": (
        'emr={kind="exact", weight=1, at="adversarial"}',
        'use emr.at = "clean" or another objective',
    ),
    "a negative seed": ("seed=-1", "seed"),
}


@pytest.mark.parametrize("mistake", WRONG_SETTINGS)
def test_a_wrong_setting(refused, recipe, tmp_path, mistake):
    setting, says = WRONG_SETTINGS[mistake]
    line = refused("train", recipe, "--out", tmp_path / "run", "--set", setting)
    assert says in line
    assert not (tmp_path / "run").exists()


def test_an_unknown_recipe_names_the_nearest(refused, tmp_path):
    line = refused("train", "mnist-mlp/st-erm", "--out", tmp_path / "run")
    assert "unknown recipe 'mnist-mlp/st-erm'; did you mean 'mnist-mlp/st-emr'?" in line
    assert not (tmp_path / "run").exists()
    assert "unknown recipe" in refused("recipes", "show", "nonsense")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"epochs = ", "is not valid TOML"),
        (b"\xff\xfe", "is not valid TOML"),
        (b"epochs = 3\n", "name is missing; add it"),
        (b"name = 3\n", "name must be text, got 3"),
        (b"[[model]]\n", "model.kind must be one of"),
    ],
)
def test_a_bad_toml_file(refused, tmp_path, content, says):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    line = refused("train", path, "--out", tmp_path / "run")
    assert says in line
    assert str(path) in line
    assert [found.name for found in tmp_path.iterdir()] == ["bad.toml"]


def test_a_toml_file_that_is_not_there(refused, tmp_path):
    line = refused("train", tmp_path / "none.toml", "--out", tmp_path / "run")
    assert "cannot read" in line
    assert "No such file" in line
    assert list(tmp_path.iterdir()) == []


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


@pytest.mark.parametrize(
    "arguments",
    [
        ("train",),
        ("train", "demo/plain"),
        ("train", "demo/plain", "--out"),
        ("train", "demo/plain", "--nonsense", "1"),
        ("evaluate",),
        ("margins", "a", "b"),
        ("recipes", "show"),
        ("nonsense",),
        ("demo", "--seed", "x"),
    ],
)
def test_a_command_that_does_not_parse(refused, arguments):
    command = {"recipes": "recipes show ", "nonsense": ""}.get(arguments[0], f"{arguments[0]} ")
    assert refused(*arguments).endswith(f". See 'widemargin {command}--help'.")


def test_what_the_parser_asks_ends_as_a_question(refused):
    assert refused("reprot") == (
        "widemargin: No such command 'reprot'. Did you mean 'report', 'reproduce'? See 'widemargin --help'."
    )


def test_a_setting_as_an_option_is_told_how_it_is_set(refused):
    line = refused("train", "demo/plain", "--epochs", "3")
    assert "Settings are changed with --set, such as --set optimizer.lr=0.05." in line


def test_a_picture_is_a_png(refused, tmp_path):
    assert refused("margins", tmp_path, "--picture", "a.jpg") == (
        "widemargin: --picture must name a .png file, got a.jpg"
    )


def test_no_data_and_no_network(refused, recipe, tmp_path, monkeypatch, no_network):
    monkeypatch.setenv("WIDEMARGIN_DATA", str(tmp_path / "data"))
    line = refused("train", recipe, "--out", tmp_path / "run", "--set", "data.name=mnist")
    assert "mnist: cannot download train-images-idx3-ubyte.gz" in line
    assert f"at {tmp_path / 'data' / 'mnist' / 'train-images-idx3-ubyte.gz'}" in line
    assert "'mnist-embedded', which needs no file" in line
    assert not (tmp_path / "run").exists()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_data_dir_says_where_files_should_be(refused, recipe, tmp_path, no_network):
    flags = ("--set", "data.name=cifar10", "--data-dir", tmp_path / "mine")
    line = refused("train", recipe, "--out", tmp_path / "run", *flags)
    assert f"at {tmp_path / 'mine' / 'cifar10' / 'cifar-10-binary.tar.gz'}" in line


IDX = bytes([0, 0, 8, 3, 0, 0, 0, 10, 0, 0, 0, 28, 0, 0, 0, 28])  # the header of ten digits


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "expected an idx header of 16 bytes, got 0"),
        (b"<html>not found</html>", "not an MNIST idx file"),
        (gzip.compress(IDX + np.random.default_rng(0).bytes(7840))[:4000], "cannot be read as an idx file"),
        (IDX + bytes(50), "fetch it again"),
        (IDX.replace(b"\n", b"\xff") + bytes(7840), "the header promises"),
    ],
)
def test_a_corrupt_data_file(refused, recipe, tmp_path, content, says):
    for name in (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ):
        (tmp_path / "mnist").mkdir(exist_ok=True)
        (tmp_path / "mnist" / name).write_bytes(content)
    flags = ("--set", "data.name=mnist", "--data-dir", tmp_path)
    line = refused("train", recipe, "--out", tmp_path / "run", *flags)
    assert says in line
    assert "train-images-idx3-ubyte" in line
    assert not (tmp_path / "run").exists()


def test_labels_out_of_range(refused, recipe, tmp_path, own_npz, arrays):
    path = own_npz(train_labels=arrays["train_labels"] + 1, test_labels=arrays["test_labels"] + 1, num_classes=3)
    line = refused("train", recipe, "--out", tmp_path / "run", "--set", f"data.name={path}")
    assert "labels must be in [0, 3) for 3 classes, found 1 to 3; they seem to count from 1: subtract 1" in line
    assert not (tmp_path / "run").exists()


def test_negative_labels(refused, recipe, tmp_path, own_npz, arrays):
    path = own_npz(train_labels=arrays["train_labels"] - 1)
    line = refused("train", recipe, "--out", tmp_path / "run", "--set", f"data.name={path}")
    assert "labels must be in [0, " in line
    assert "found -1 to 1" in line


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda images: images.astype("float32"), "found 0 to 255; they look like 0..255: divide by 255"),
        (lambda images: images.astype("float32") / 255 - 0.5, "they look normalized"),
        (lambda images: images.astype("float32") * np.nan, "found NaN or infinity"),
    ],
)
def test_images_outside_the_unit_interval(refused, recipe, tmp_path, own_npz, arrays, change, says):
    path = own_npz(train_images=change(arrays["train_images"]))
    line = refused("train", recipe, "--out", tmp_path / "run", "--set", f"data.name={path}")
    assert says in line
    assert not (tmp_path / "run").exists()


def test_a_truncated_npz(refused, recipe, tmp_path, own_npz):
    path = own_npz()
    path.write_bytes(path.read_bytes()[:2000])
    assert "own.npz" in refused("train", recipe, "--out", tmp_path / "run", "--set", f"data.name={path}")
    assert not (tmp_path / "run").exists()


def test_an_empty_folder_of_images(refused, recipe, tmp_path):
    (tmp_path / "images").mkdir()
    flags = ("--set", f"data.name={tmp_path / 'images'}")
    line = refused("train", recipe, "--out", tmp_path / "run", *flags)
    assert "expected one sub-folder per class" in line


LONG = "a" * 256
HUGE = 10**20
SURROUNDINGS = {
    "a long name of a run": (("train", "RECIPE", "--out", LONG), {}, "File name too long"),
    "a long name of a recipe": (("train", f"{LONG}.toml", "--out", "run"), {}, "File name too long"),
    "a long name of a target": (("evaluate", LONG), {}, "File name too long"),
    "a long name of a data set": (("margins", "RUN", "--dataset", LONG), {}, "File name too long"),
    "a long name of records": (("evaluate", "RUN", "--limit", 5, "--out", LONG), {}, "File name too long"),
    "a long name of a picture": (("margins", "RUN", "--limit", 5, "--picture", f"{LONG}.png"), {}, "name too long"),
    "a long name of what is reported": (("report", LONG), {}, "File name too long"),
    "a long name of a report": (("report", "RUN", "--out", f"{LONG}.html"), {}, "File name too long"),
    "a huge batch to judge": (("evaluate", "RUN", "--batch-size", HUGE), {}, "batch_size must be a whole number below"),
    "a huge shard": (("evaluate", "RUN", "--shard-size", HUGE), {}, "shard_size must be a whole number below 2^63"),
    "the verb before python -m paper": (("results", "runs"), {}, "in the repository run 'python -m paper collect'"),
    "the verb before python -m benchmarks": (("bench", "--json"), {}, "run 'python -m benchmarks step' (see '"),
    "a huge seed": (("train", "RECIPE", "--set", f"seed={10**30}", "--out", "run"), {}, "seed must be a whole number"),
    "a huge seed of the demo": (("demo", "--seed", 10**30, "--out", "run"), {}, "seed must be in [0, 2^63)"),
    "a seed that is a digit to nobody": (
        ("reproduce", "table1", "--seeds", "²", "--out", "run"),
        {},
        "--seeds: '²' must",
    ),
    "seeds beyond numbers": (("reproduce", "table1", "--seeds", "9" * 5000, "--out", "run"), {}, "--seeds: '999"),
    "an import of nothing": (("--import", "", "recipes"), {}, "--import '' is no module's name"),
    "an import from nowhere": (("--import", "..x", "recipes"), {}, "--import '..x' is no module's name"),
    "a world without a rank": (
        ("train", "RECIPE", "--out", "run"),
        {"WORLD_SIZE": "2"},
        "WORLD_SIZE is set, but not RANK, MASTER_ADDR, MASTER_PORT: start with torchrun, or unset WORLD_SIZE",
    ),
    "a world without a rank to judge": (("evaluate", "RUN", "--out", "o"), {"WORLD_SIZE": "2"}, "but not RANK"),
    "a world that is no number": (("train", "RECIPE", "--out", "run"), {"WORLD_SIZE": "x"}, "WORLD_SIZE must be a"),
    "a world of nobody": (("evaluate", "RUN"), {"WORLD_SIZE": "0"}, "WORLD_SIZE must be a whole number of at least 1"),
    "a rank that is no number": (("evaluate", "RUN"), {"RANK": "x"}, "RANK must be a whole number of at least 0"),
    "a local rank that is no number": (
        ("train", "RECIPE", "--out", "run"),
        {"LOCAL_RANK": "-1"},
        "LOCAL_RANK must be a whole number of at least 0, as torchrun sets it, got '-1'",
    ),
    "a rank beyond the world": (
        ("train", "RECIPE", "--out", "run"),
        {"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
        "RANK must be below WORLD_SIZE, which is 2, got 2",
    ),
    "a sweep by torchrun": (
        ("sweep", "demo/plain", "--grid", "seed=0,1", "--out", "o"),
        {"WORLD_SIZE": "2"},
        "sweep is for one process, and torchrun started 2 (WORLD_SIZE): start it without torchrun; to share it, start "
        "the same command several times",
    ),
    "tables by torchrun": (
        ("reproduce", "table1", "--out", "o"),
        {"WORLD_SIZE": "2"},
        "reproduce is for one process, and torchrun started 2 (WORLD_SIZE): start it without torchrun; --workers does",
    ),
    "a demo by torchrun": (
        ("demo", "--out", "o"),
        {"WORLD_SIZE": "8"},
        "demo is for one process, and torchrun started 8 (WORLD_SIZE): start it without torchrun; it takes about two",
    ),
    "a port that is none": (
        ("train", "RECIPE", "--out", "run"),
        {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "x"},
        "the processes cannot find each other at localhost:x: ",
    ),
}


@pytest.mark.parametrize("mistake", SURROUNDINGS)
def test_what_the_system_or_the_machine_refuses(refused, recipe, trained, tmp_path, monkeypatch, mistake):
    arguments, environment, says = SURROUNDINGS[mistake]
    monkeypatch.chdir(tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    line = refused(*({"RECIPE": recipe, "RUN": trained}.get(argument, argument) for argument in arguments))
    assert says in line
    assert list(tmp_path.iterdir()) == []


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


def test_an_unwritable_out(refused, recipe, tmp_path):
    (tmp_path / "file").write_text("a file")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        line = refused("train", recipe, "--out", out)
        assert f"cannot write to the folder {out}" in line
        assert "choose another folder (--out" in line
    assert (tmp_path / "file").read_text() == "a file"


def test_a_folder_of_another_run(refused, recipe, trained):
    before = {path.name: path.read_bytes() for path in trained.iterdir()}
    line = refused("train", recipe, "--out", trained, "--set", "optimizer.lr=0.5")
    assert "holds another run (optimizer.lr: 0.5 here, 0.1 there); choose another --out" in line
    assert {path.name: path.read_bytes() for path in trained.iterdir()} == before


def test_a_folder_of_something_else(refused, recipe, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    assert "choose an empty folder for --out" in refused("train", recipe, "--out", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("verb", ["evaluate", "margins"])
def test_a_target_that_is_not_there(refused, tmp_path, verb):
    assert "does not exist; give a run folder" in refused(verb, tmp_path / "nowhere")
    assert "is it a run folder" in refused(verb, tmp_path)
    (tmp_path / "notes.safetensors").write_text("not a checkpoint")
    assert "is not a readable checkpoint" in refused(verb, tmp_path / "notes.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.safetensors"]


def test_weights_from_elsewhere(refused, tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    (tmp_path / "junk.pt").write_bytes(b"junk")
    assert "is no checkpoint of a run" in refused("margins", tmp_path / "module.pt")
    for name in ("module.pt", "junk.pt"):
        line = refused("evaluate", tmp_path / name, "--dataset", "mnist-embedded", "--eps", "0.1")
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
    assert [found.name for found in tmp_path.iterdir()] == ["wrong.safetensors"]


def test_resuming_from_a_checkpoint_of_another_model(refused, command, recipe, trained, tmp_path):
    assert command("train", recipe, "--out", tmp_path, "--set", "model.hidden=[8]").code == 0
    (tmp_path / "last.safetensors").write_bytes((trained / "last.safetensors").read_bytes())
    assert "is of another run than the config.toml of its folder (model.hidden: [16] here, [8] there)" in refused(
        "train", recipe, "--out", tmp_path, "--set", "model.hidden=[8]"
    )


@pytest.mark.filterwarnings("default::widemargin.errors.WidemarginWarning")
def test_resuming_from_truncated_checkpoints(refused, command, recipe, tmp_path):
    assert command("train", recipe, "--out", tmp_path).code == 0
    path = tmp_path / "last.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:500])
    answer = command("train", recipe, "--out", tmp_path)
    assert answer.code == 0
    assert "warning: " in answer.err
    assert "last.safetensors is damaged (it claims a header of" in answer.err
    assert "previous.safetensors, epoch 1 and step 0; what was trained after it is trained again" in answer.err
    assert path.read_bytes() == whole
    for name in ("last.safetensors", "previous.safetensors"):
        (tmp_path / name).write_bytes(whole[:500])
    line = refused("train", recipe, "--out", tmp_path)
    assert "put back a copy of one, or remove both to begin anew" in line


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--eps", "8"), "eps must be in (0, 1], got 8; images are in [0, 1], did you mean 8/255?"),
        (("--eps", "big"), "--eps: 'big' is not a number; write 0.031 or 8/255"),
        (("--eps", "0"), "eps must be in (0, 1], got 0"),
        (("--eps", "0.1", "--step-size", "2"), "did you mean 2/255?"),
        (("--step-size", "x"), "--step-size: 'x' is not a number"),
        (("--attacks", "pgd0"), "unknown attack 'pgd0'; known are clean, fgsm, pgdN"),
        (("--attacks", "clean,autopgd"), "unknown attack 'autopgd'"),
        (("--attacks", ","), "--attacks must name at least one"),
        (("--norm", "l1"), "--norm must be one of 'linf', 'l2', got 'l1'"),
        (("--norm", "l2"), "--eps is missing for pgd3"),
        (("--limit", "0"), "limit must be a whole number of at least 1, got 0"),
        (("--batch-size", "0"), "batch_size must be a whole number of at least 1, got 0"),
        (("--dataset", "cifar"), "data set 'cifar' is unknown"),
    ],
)
def test_a_wrong_option_of_evaluate(refused, trained, options, says):
    assert says in refused("evaluate", trained, *options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--split", "held"), "--split must be one of 'train', 'validation', 'test', got 'held'"),
        (("--at", "noise"), "--at must be one of 'clean', 'adversarial', got 'noise'"),
        (("--norm", "l1"), "--norm must be one of 'linf', 'l2', got 'l1'"),
        (("--limit", "-1"), "limit must be a whole number of at least 1, got -1"),
    ],
)
def test_a_wrong_option_of_margins(refused, trained, options, says):
    before = sorted(trained.iterdir())
    assert says in refused("margins", trained, *options)
    assert sorted(trained.iterdir()) == before


@pytest.mark.parametrize("verb", ["evaluate", "margins"])
def test_data_of_another_kind(refused, trained, own_npz, verb):
    assert "holds images (1, 14, 14) of 3 classes" in refused(verb, trained, "--dataset", own_npz())


def test_margins_at_attacked_images_of_a_run_without_an_attack(refused, command, recipe, tmp_path):
    flags = ("--set", "watch.attack=none", "--set", "epochs=1", "--set", "evaluation=none")
    assert command("train", recipe, "--out", tmp_path, *flags).code == 0
    assert "this run has no attack of its own" in refused("margins", tmp_path, "--at", "adversarial")


@pytest.mark.parametrize("place", ["file/picture.png", "file/below/picture.png"])
def test_a_picture_that_cannot_be_written(refused, trained, tmp_path, place):
    (tmp_path / "file").write_text("a file")
    assert "cannot write" in refused("margins", trained, "--limit", 5, "--picture", tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_diverging_run_ends_with_a_clear_last_line(command, recipe, tmp_path):
    answer = command("train", recipe, "--out", tmp_path, "--set", "optimizer={lr=1e6, weight_decay=1.0}")
    assert answer.code == 2
    assert answer.err.splitlines()[-1].startswith("widemargin: tiny: the loss became ")
    assert "lower optimizer.lr" in answer.err
    assert "Traceback" not in answer.err
