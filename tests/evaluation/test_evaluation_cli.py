"""``widemargin evaluate`` as a user gives it: the table, the JSON, a folder that goes on, and mistakes."""

import json
import re
import signal
import sys

import numpy as np
import pytest
import torch
from small_networks import pictures
from torch import nn

from widemargin.cli.main import MAY_STAND_ALONE, run
from widemargin.core.device import choose_device
from widemargin.evaluation.judged_shard import JudgedShard
from widemargin.evaluation.minimal_norm import METHODS
from widemargin.models import MLPConfig

KEYS = re.findall(
    r"\w+",
    """
    format target name weights selection epoch head_scale normalize config checkpoint data norm eps step_size
    seed shard_size batch_size attacks columns search accuracy intervals classes strongest curves margins
    margins_proven distance
    certified alarms notes versions device precision seconds
    """,
)


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def command(capsys):
    def give(*arguments):
        capsys.readouterr()
        code = run(["evaluate", *map(str, arguments)])
        return code, *capsys.readouterr()

    return give


@pytest.fixture
def answer(command):
    def give(*arguments):
        code, out, err = command(*arguments)
        assert code == 0, err
        return out

    return give


@pytest.fixture
def refused(command):
    def give(*arguments):
        code, out, err = command(*arguments)
        assert (code, out) == (2, ""), out + err
        (line,) = err.splitlines()
        assert line.startswith("widemargin: ")
        return line

    return give


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Digits of the user's own, four classes of 8 x 8, and weights that know them a little."""
    place = tmp_path_factory.mktemp("own")
    train_x, train_y = pictures(4, 80, seed=1)
    x, y = pictures(4, 12)
    as_bytes = [(part[:, 0] * 255).round().to(torch.uint8).numpy() for part in (train_x, x)]
    np.savez(
        place / "digits.npz",
        train_images=as_bytes[0],
        train_labels=train_y.numpy(),
        test_images=as_bytes[1],
        test_labels=y.numpy(),
    )
    model = MLPConfig(hidden=(12,)).build(image_shape=(1, 8, 8), num_classes=4, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(train_x), train_y).backward()
        optimizer.step()
    torch.save({"state_dict": {f"module.{key}": value for key, value in model.state_dict().items()}}, place / "net.pt")
    return place


def words(text):
    return " ".join(re.sub(r"[^\x20-\x7e±]", " ", text).split())


def test_the_table(answer, folder, very_short):
    text = words(
        answer(
            folder / "net.pt",
            *("--dataset", folder / "digits.npz", "--attacks", "clean,fgsm,pgd3,autoattack", "--eps", "8/255"),
            *("--distance", "--seed", "3"),
        )
    )
    assert re.search(r"; method full, found by (fab-t|apgd-t) \d+", text)
    assert f"{folder / 'net.pt'}: 12 test images of" in text
    assert "linf eps 8/255 = 0.0313725; step eps/4; seed 3" in text
    for name in ("clean", "fgsm", "pgd3", "after apgd-ce", "after apgd-t", "after fab-t", "after square", "autoattack"):
        assert re.search(rf" {name} \d+\.\d\d ", text), name
    assert re.search(r"effective margin \(linf\): \S+ ± \S+ if classified right", text)
    assert re.search(
        r"distance \(linf\) to the nearest adversarial image: median \S+; rank correlation with the margin", text
    )
    assert "weights: public file, unknown: the file does not say" in text
    assert "alarm" not in text


def test_the_json_is_the_librarys(answer, folder, very_short):
    options = ("--dataset", folder / "digits.npz", "--attacks", "clean,pgd3,autoattack", "--eps", "2/255,0.1")
    more = ("--norm", "l2", "--step-size", "0.05", "--seed", 7, "--shard-size", 5, "--batch-size", 3, "--limit", 9)
    record = json.loads(answer(folder / "net.pt", *options, *more, "--distance", "--json"))
    assert list(record) == KEYS
    assert record["format"] == "widemargin-evaluation-1"
    assert record["target"] == str(folder / "net.pt")
    assert record["data"] == {
        "name": "digits.npz",
        "split": "test",
        "count": 9,
        "source": str(folder / "digits.npz"),  # what --dataset was, for who gives the command again
        "whole": 12,
    }
    assert record["norm"] == "l2"
    assert record["eps"] == [{"written": "2/255", "value": 2 / 255}, {"written": "0.1", "value": 0.1}]
    assert (record["step_size"], record["seed"]) == (0.05, 7)
    assert (record["shard_size"], record["batch_size"]) == (5, 3)
    assert record["attacks"] == ["clean", "pgd3", "autoattack"]
    parts = ("apgd-ce", "apgd-t", "fab-t", "square")
    names = ("pgd3", *(f"autoattack/{part}" for part in parts), "autoattack")
    assert list(record["accuracy"]) == ["clean", *(f"{name}@{eps}" for eps in ("2/255", "0.1") for name in names)]
    assert [point["written"] for point in record["curves"]["pgd3"]] == ["2/255", "0.1"]
    assert record["margins"]["all"]["count"] == 9
    assert record["distance"].keys() == {"method", "count", "median", "rank_correlation", "found_by"}
    assert {"widemargin", "torch", "python"} <= record["versions"].keys()
    assert set(record["seconds"]) == {"clean", "margin", "distance"} | (
        set(record["accuracy"]) - {"clean", "autoattack@2/255", "autoattack@0.1"}
    )
    assert record["device"]


def test_alarms_are_printed(answer, folder, monkeypatch, tmp_path):
    (tmp_path / "soft_nets.py").write_text(
        "from torch import nn\n"
        "def factory():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Softmax(1))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    text = words(answer("soft_nets:factory", "--dataset", folder / "digits.npz"))
    assert "soft_nets:factory: 12 test images" in text  # and not a picture of a factory
    assert "alarm probability-outputs: the outputs look like probabilities" in text
    sys.modules.pop("soft_nets")


def test_notes_are_printed(answer, monkeypatch, tmp_path, very_short):
    x, y = pictures(3, 6)
    images = (x * 255).round().to(torch.uint8).numpy()
    np.savez(tmp_path / "three.npz", test_images=images, test_labels=y.numpy())
    (tmp_path / "three_nets.py").write_text(
        "from torch import nn\ndef factory():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    options = ("three_nets:factory", "--dataset", "three.npz", "--eps", "0.1")
    text = words(answer(*options, "--attacks", "clean,autoattack"))
    assert "note: AutoAttack ran without its part apgd-t, whose loss needs 4 classes; this model has 3." in text
    assert "note:" not in answer(*options, "--attacks", "clean,fgsm")
    sys.modules.pop("three_nets")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("out", [True, False])
def test_an_interrupt_says_how_the_evaluation_goes_on(answer, folder, tmp_path, monkeypatch, capsys, out, number):
    options = [str(folder / "net.pt"), "--dataset", str(folder / "digits.npz"), "--attacks", "clean,fgsm"]
    options += ["--eps", "0.1", "--shard-size", "4", *(["--out", str(tmp_path / "out")] if out else [])]
    lines = JudgedShard.lines

    def interrupted(shard):
        if shard.first == 4:
            signal.raise_signal(number)
        return lines(shard)

    monkeypatch.setattr(JudgedShard, "lines", interrupted)
    before = signal.getsignal(number)
    assert run(["evaluate", *options]) == 128 + number
    assert signal.getsignal(number) is before
    *_, progress, said = capsys.readouterr().err.splitlines()
    assert progress.startswith("shard 2 of 3: ")
    if not out:
        assert said.startswith("widemargin: interrupted; nothing of this evaluation was kept: with --out FOLDER the")
        return
    assert said == (
        f"widemargin: interrupted; what this evaluation finished is in {tmp_path / 'out'}: the same command goes on "
        "from there"
    )
    before = (tmp_path / "out" / "shards" / "00000.jsonl").stat().st_mtime_ns
    monkeypatch.setattr(JudgedShard, "lines", lines)
    answer(*options)
    assert (tmp_path / "out" / "report.json").exists()
    assert (tmp_path / "out" / "shards" / "00000.jsonl").stat().st_mtime_ns == before


def test_paths_with_brackets_are_printed_as_they_are(answer, folder, tmp_path):
    strange = tmp_path / "[best] [" / "b]"
    strange.mkdir(parents=True)
    (strange / "net.pt").write_bytes((folder / "net.pt").read_bytes())
    text = words(answer(strange / "net.pt", "--dataset", folder / "digits.npz", "--out", strange / "out"))
    assert f"{strange / 'net.pt'}: 12 test images" in text
    assert f"records: {strange / 'out'}" in text


def test_a_folder_is_gone_on_with(answer, refused, folder, tmp_path, very_short):
    options = ("--dataset", folder / "digits.npz", "--attacks", "clean,pgd3,autoattack", "--eps", "0.1")
    out = ("--shard-size", 4, "--out", tmp_path / "records")
    first = json.loads(answer(folder / "net.pt", *options, *out, "--json"))
    assert {"report.json", "examples.jsonl", "settings.json", "shards"} <= {
        path.name for path in (tmp_path / "records").iterdir()
    }
    (tmp_path / "records" / "shards" / "00001.jsonl").unlink()
    (tmp_path / "records" / "report.json").unlink()
    times = [(tmp_path / "records" / "shards" / f"0000{n}.jsonl").stat().st_mtime_ns for n in (0, 2)]
    again = json.loads(answer(folder / "net.pt", *options, *out, "--json"))
    assert times == [(tmp_path / "records" / "shards" / f"0000{n}.jsonl").stat().st_mtime_ns for n in (0, 2)]
    for record in (first, again):
        record.pop("seconds")
    assert again == first
    stored = json.loads((tmp_path / "records" / "report.json").read_text())
    assert {key: value for key, value in stored.items() if key in first} == first
    assert "records:" in answer(folder / "net.pt", *options, *out)
    line = refused(folder / "net.pt", *options, *out, "--seed", 1)
    assert "holds another evaluation (seed: 1 here, 0 there); choose another --out" in line


def test_of_several_processes_one_speaks(answer, folder, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert answer(folder / "net.pt", "--dataset", folder / "digits.npz", "--json") == ""


@pytest.mark.parametrize(("local", "expected"), [(None, "cuda"), (1, "cuda:1"), (5, "cuda:1")])
def test_each_process_has_a_gpu_of_its_own(monkeypatch, local, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto", local_rank=local) == torch.device(expected)
    assert choose_device("cpu", local_rank=local) == torch.device("cpu")


@pytest.mark.parametrize(("given", "told"), [((), True), (("--normalize", "none"), False), (("--json",), False)])
def test_what_the_file_does_not_say_is_told_before_the_work(folder, capsys, given, told):
    command = ["evaluate", folder / "net.pt", "--dataset", folder / "digits.npz", "--limit", "2", *given]
    assert run([str(word) for word in command]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("note: Nothing in the file of the weights says how images are normalized") == told
    assert ("how images are normalized" in said.out) == (given != ("--normalize", "none"))


DIGITS = ("--dataset", "digits.npz")
NET = ("net.pt", *DIGITS)
MISTAKES = {
    "no data set": (("net.pt",), "does not say which images it wants; give --dataset"),
    "no eps": ((*NET, "--attacks", "pgd3"), "--eps is missing for pgd3"),
    "the same eps twice": (
        (*NET, "--attacks=pgd3", "--eps=0.5,1/2"),
        "eps must be one radius or several different ones",
    ),
    "an unknown attack": (
        (*NET, "--attacks=squares", "--eps=0.1"),
        "unknown attack 'squares'; known are clean, fgsm, pgdN",
    ),
    "no such file": (("absent.pt", *DIGITS), "absent.pt does not exist; give a run folder"),
    "no such function": (("absent_nets:factory", *DIGITS), "is neither a file nor a function"),
    "a function, no data set": (("own_nets:factory",), "--dataset is missing: this target does not say"),
    "images of another shape": (
        ("net.pt", "--dataset", "mnist-embedded"),
        "the weights do not fit this MLP; wrong shape: fcs.0.weight (expected (12, 784), got (12, 64))",
    ),
    "images the function does not take": (
        ("own_nets:factory", "--dataset", "mnist-embedded", "--limit", "3"),
        "the model does not take images of shape (1, 28, 28)",
    ),
    "labels the function does not know": (
        ("own_nets:two_classes", *DIGITS),
        "labels must be in 0..1, got 0..3; the model has 2 outputs",
    ),
    "TF32 where there is none": (
        (*NET, "--attacks=fgsm", "--eps=0.1", "--search=tf32", "--device=cpu"),
        "evaluate.search must be 'float32' on a device without TF32, got 'tf32' on cpu; leave --search out, or use",
    ),
    "the scale of a head that has none": (
        (*NET, "--head-scale", "10"),
        "--head-scale has no effect: these weights have a last layer with a bias, so their head is linear; leave it",
    ),
    "the normalization of a function": (
        ("own_nets:factory", *DIGITS, "--normalize", "mnist"),
        "--normalize is for public weights; own_nets:factory normalizes by itself; leave it out",
    ),
    "a normalization of three channels": (
        (*NET, "--normalize", "cifar10"),
        "--normalize must be none, cifar10, cifar100, svhn, tiny-imagenet, mnist, or MEAN,STD (2 numbers, or 2 for "
        "images of 1 channels: the means",
    ),
    "the scale of a function's head": (
        ("own_nets:factory", *DIGITS, "--head-scale", "10"),
        "--head-scale is for public weights; own_nets:factory makes its own head; leave it out",
    ),
    "no shards": ((*NET, "--shard-size", "0"), "shard_size must be a whole number"),
    "malice": (("malice.pt", *DIGITS), "cannot be read as tensors alone, and nothing else is ever"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_end_with_one_line(refused, folder, tmp_path, monkeypatch, mistake):
    for name in ("net.pt", "digits.npz"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    (tmp_path / "own_nets.py").write_text(
        "from torch import nn\n"
        "def factory():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))\n"
        "def two_classes():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))\n"
    )
    (tmp_path / "malice.pt").write_bytes(b"\x80\x04c__builtin__\neval\n(V1/0\ntR.")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    arguments, says = MISTAKES[mistake]
    assert says in refused(*arguments)
    sys.modules.pop("own_nets", None)


@pytest.mark.parametrize(
    ("words_of_it", "method"),
    [
        (("--distance", "--json"), "full"),
        (("--json", "--distance"), "full"),
        (("--distance", "full", "--json"), "full"),
        (("--distance", "quick", "--json"), "quick"),
        (("--distance=fab-t", "--json"), "fab-t"),
    ],
)
def test_distance_takes_a_value_or_none(answer, folder, very_short, words_of_it, method):
    options = ("--dataset", folder / "digits.npz", "--attacks", "clean", "--norm", "l2", "--limit", 3)
    assert json.loads(answer(folder / "net.pt", *options, *words_of_it))["distance"]["method"] == method


def test_distance_before_the_target_takes_it_for_no_value(answer, folder, very_short):
    options = ("--dataset", folder / "digits.npz", "--attacks", "clean", "--limit", 3, "--json")
    assert json.loads(answer("--distance", folder / "net.pt", *options))["distance"]["method"] == "full"


def test_the_values_of_distance_are_the_methods_there_are():
    assert MAY_STAND_ALONE["evaluate"]["--distance"] == METHODS
