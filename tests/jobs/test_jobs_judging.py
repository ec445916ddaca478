"""Which rows are best, what they are judged with later, and which jobs take longest."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from widemargin.cli.main import run
from widemargin.data.datasets import open_images
from widemargin.errors import InputError
from widemargin.evaluation.shards import Store
from widemargin.jobs import judging
from widemargin.jobs.job import best_rows, choose_rows, jobs, method_of
from widemargin.jobs.judging import JUDGMENTS, judgment_of, piece_size, search_for
from widemargin.jobs.pool import order
from widemargin.models import CNNConfig, MLPConfig, ResNet18Config, WideResNetConfig
from widemargin.recipes import all_recipes
from widemargin.recipes.tables import all_tables, find_table
from widemargin.training import setup


def test_blocks_are_the_methods_on_one_network():
    blocks = {name: list(dict.fromkeys(map(method_of, table.rows))) for name, table in all_tables().items()}
    methods = ("ST", "ST+LSoftmax", "ST+EMR", "AT", "AT+LSoftmax", "AT+EMR")
    assert blocks["table1"] == [("mnist-mlp", method) for method in methods]
    assert blocks["baselines"] == [("mnist-mlp", "ST"), ("cifar-cnn", "ST"), ("cifar-cnn", "AT")]
    assert len(blocks["approximation"]) == 8


def write_accuracies(work, accuracy):
    """Results with the accuracies that the function gives for a job, if any."""
    for job in work:
        found = accuracy(job)
        if found is not None:
            job.folder.mkdir(parents=True)
            (job.folder / "result.json").write_text(json.dumps({"quick": False, "accuracy": found}))


def test_the_best_row_of_a_method_has_the_highest_mean_under_its_pgd(tmp_path):
    table = find_table("table2")
    work = jobs(table, table.rows, [0, 1], tmp_path, is_quick=False)
    scores = {"at-wd0.01": (50, 52), "at-wd0.001": (54, None), "at-wd0.0001": (90, 10), "at-emr": (20, 30)}

    def accuracy(job):
        score = scores.get(job.row.recipe.name.split("/")[1], (None, None))[job.seed]
        return None if score is None else {"fgsm": 99.0, "pgd10": score, "clean": 90.0}

    write_accuracies(work, accuracy)
    assert [row.recipe.name for row in best_rows(table.rows, work)] == ["cifar-cnn/at-wd0.001", "cifar-cnn/at-emr"]
    assert best_rows(table.rows[:1], work) == []


@pytest.mark.parametrize(
    ("name", "rows", "first", "second", "best"),
    [
        (  # the strongest PGD decides
            "resnet18-emr",
            ["at-wd0.0005", "at-wd0.0005-averaged"],
            {"pgd10": 60.0, "pgd100": 40.0},
            {"pgd10": 50.0, "pgd100": 45.0},
            1,
        ),
        ("table2", ["at-wd0.01", "at-wd0.001"], {"pgd10": 50.0}, {"pgd10": 50.0}, 0),  # of equals the first is best
    ],
)
def test_the_better_of_two_rows(name, rows, first, second, best, tmp_path):
    table = find_table(name)
    rows = choose_rows(table, rows)
    work = jobs(table, rows, [0], tmp_path, is_quick=False)
    write_accuracies(work, lambda job: first if job.row is rows[0] else second)
    assert best_rows(rows, work) == [rows[best]]


@pytest.mark.parametrize(
    ("longer", "shorter"),
    [
        ("mnist-mlp/at-wd0.01", "mnist-mlp/st-wd0.01"),
        ("mnist-mlp/at-emr", "mnist-mlp/at-approximate-emr"),
        ("mnist-mlp/st-emr", "mnist-mlp/st-approximate-emr"),
        ("mnist-mlp/st-approximate-emr", "mnist-mlp/st-wd0.01"),
        ("cifar-cnn/st-wd0.01", "mnist-mlp/at-emr"),
        ("cifar-wrn/trades-emr", "cifar-resnet18/trades-emr"),
        ("cifar-resnet18/trades", "cifar-resnet18/at"),
        ("cifar-resnet18/at-igr", "cifar-resnet18/at"),
        ("cifar-wrn/at-mail-emr", "cifar-wrn/at-mail"),
    ],
)
def test_what_takes_longer_costs_more(longer, shorter):
    assert order(all_recipes()[longer].config) > order(all_recipes()[shorter].config)


def test_the_best_rows_are_judged_later_once_the_table_is_done(tmp_path, capsys):
    command = ["reproduce", "table1", "--quick", "--device", "cpu", "--rows", "st-wd0.01,at-wd0.01", "--out"]
    command += [str(tmp_path), "--judge-with", "autoattack,certified"]
    assert run([*command, "--max-time", "0.001s"]) == 0
    assert "time is out: 0 of 2 done" in capsys.readouterr().err
    assert run(command) == 0
    said = capsys.readouterr()
    assert "3/4 mnist-mlp/st-wd0.01, seed 0, certified" in said.err
    head, _, *rows, empty, first, second = (tmp_path / "table1.md").read_text().splitlines()[-7:]
    assert head.endswith("| autoattack |")
    assert not any(row.endswith("| - / - |") for row in rows)
    assert empty == ""
    assert first.startswith("- mnist-mlp/st-wd0.01, seed 0, certified: median distance ")
    assert second.startswith("- mnist-mlp/at-wd0.01, seed 0, certified: median distance ")
    assert "median certified radius 0." in first
    assert first.removeprefix("- ") in said.out
    for folder in ("mnist-mlp-st-wd0.01", "mnist-mlp-at-wd0.01"):
        autoattack, certified = reports_of(tmp_path / folder / "seed-0", "autoattack", "certified")
        assert autoattack["eps"] == [{"written": "0.1", "value": 0.1}]
        assert certified["norm"] == "l2"
        assert certified["distance"]["count"] > 0
        assert certified["certified"]["count"] == 40
        assert certified["certified"]["median"] <= certified["distance"]["median"]
    assert run(command) == 0
    assert capsys.readouterr().err.count("done before") == 6


def reports_of(folder, *names):
    return [json.loads((folder / name / "report.json").read_text()) for name in names]


def test_a_table_that_has_autoattack_is_judged_over_eps_and_at_8_255(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(judging, "FIRST", 12)
    command = ["reproduce", "resnet18", "--quick", "--device", "cpu", "--rows", "at", "--out", str(tmp_path)]
    command += ["--judge-with", "eps,autoattack-8-255"]
    assert run(command) == 0
    assert "1/2 cifar-resnet18/at, seed 0, eps" in capsys.readouterr().err
    folder = tmp_path / "cifar-resnet18-at" / "seed-0"
    over_eps, autoattack = reports_of(folder, "eps", "autoattack-8-255")
    sizes = [f"{number}/255" for number in (2, 4, 6, 8, 10, 12, 16)]
    assert [eps["written"] for eps in over_eps["eps"]] == sizes
    assert over_eps["step_size"] is None  # eps/4 of each eps, not the recipe's one
    assert over_eps["accuracy"].keys() == {"clean", *(f"pgd100@{size}" for size in sizes)}
    assert over_eps["data"]["count"] == autoattack["data"]["count"] == 12  # of 40
    assert autoattack["eps"] == [{"written": "8/255", "value": 8 / 255}]
    assert autoattack["attacks"] == ["clean", "autoattack"]
    assert "autoattack/square" in autoattack["accuracy"]
    *above, eps_line, aa_line = (tmp_path / "resnet18.md").read_text().splitlines()
    assert "\n".join(above).count("autoattack") == 1  # the table's own column is as it was
    points = ", ".join(f"{over_eps['accuracy'][f'pgd100@{size}']:.2f} at {size}" for size in sizes)
    assert eps_line == f"- cifar-resnet18/at, seed 0, eps: pgd100 {points}; 12 images"
    found = autoattack["accuracy"]
    numbers = f"clean {found['clean']:.2f}, autoattack {found['autoattack']:.2f}"
    assert aa_line == f"- cifar-resnet18/at, seed 0, autoattack-8-255: {numbers} at eps 8/255; 12 images"
    assert run(command) == 0
    assert capsys.readouterr().err.count("done before") == 3


def test_an_interrupted_judgment_over_eps_goes_on(tmp_path, monkeypatch, capsys):
    command = ["reproduce", "table1", "--quick", "--device", "cpu", "--rows", "st-emr", "--out", str(tmp_path)]
    assert run(command) == 0
    written, real = [], Store.write_part

    def interrupted(store, shard, name, piece):
        if name == "pgd100@0.1" and not interruptions:
            interruptions.append(name)
            raise KeyboardInterrupt
        written.append(name)
        real(store, shard, name, piece)

    interruptions = []
    monkeypatch.setattr(Store, "write_part", interrupted)
    assert run([*command, "--judge-with", "eps"]) == 130
    assert written == ["clean", "pgd100@0.02", "pgd100@0.05"]
    assert run([*command, "--judge-with", "eps"]) == 0
    assert written[3:] == ["pgd100@0.1", "pgd100@0.15", "pgd100@0.2", "pgd100@0.3", "margin"]
    capsys.readouterr()


def test_what_each_judgment_is():
    mnist, cifar = (all_recipes()[name].config for name in ("mnist-mlp/at-emr", "cifar-wrn/trades-emr"))
    asked = {name: judgment_of(cifar, name) for name in JUDGMENTS}
    assert {name: found.limit for name, found in asked.items()} == {
        "autoattack": None,
        "strongest": None,
        "autoattack-1000": 1000,
        "distance": 1000,
        "certified": 100,
        "eps": 1000,
        "autoattack-8-255": 1000,
    }
    assert {name: found.eps for name, found in asked.items() if "autoattack" in name} == {
        "autoattack": 0.031,
        "autoattack-1000": 0.031,
        "autoattack-8-255": "8/255",
    }
    assert (asked["distance"].norm, asked["distance"].distance) == ("l2", True)
    assert judgment_of(mnist, "eps").eps == ("0.02", "0.05", "0.1", "0.15", "0.2", "0.3")
    stepped = {name for name, found in asked.items() if found.step_size is not None}  # the others eps/4 of each eps
    assert stepped == {"strongest", "autoattack-1000"}
    assert (asked["certified"].certify, asked["certified"].distance) == (True, True)


def test_the_strongest_pgd_has_the_steps_of_the_tables_own():
    mnist, wide = (all_recipes()[name].config for name in ("mnist-mlp/at-emr", "cifar-wrn/trades-emr"))
    strongest, autoattack = (judgment_of(mnist, name) for name in ("strongest", "autoattack-1000"))
    assert strongest.attacks == ("clean", "pgd20", "pgd20-strongest")
    assert autoattack == replace(strongest, attacks=(*strongest.attacks, "autoattack"), limit=1000)
    assert (strongest.eps, strongest.step_size) == (0.1, 0.01)
    assert judgment_of(wide, "strongest").attacks == ("clean", "pgd100", "pgd100-strongest")
    clean = replace(mnist, evaluation=replace(mnist.evaluation, attacks=("clean",)))
    assert judgment_of(clean, "strongest").attacks == strongest.attacks


@pytest.mark.parametrize("change", [{"eps": 0.0314}, {"norm": "l2", "eps": 0.031}])
@pytest.mark.parametrize("name", ["eps", "autoattack-8-255"])
def test_other_sizes_and_norms_are_refused(name, change):
    config = all_recipes()["cifar-cnn/at-emr"].config
    other = replace(config, evaluation=replace(config.evaluation, **change))
    with pytest.raises(InputError, match=f"--judge-with {name} is for rows .* linf 0.031.* but cifar-cnn/at-emr is on"):
        judgment_of(other, name)
    with pytest.raises(InputError, match="has no evaluation plan"):
        judgment_of(replace(config, evaluation=None), name)


def test_each_data_set_is_read_once_and_only_what_is_needed(tmp_path, monkeypatch, capsys):
    read = []

    def counted(name, split, **options):
        read.append(split)
        return open_images(name, split, **options)

    monkeypatch.setattr(setup, "open_images", counted)
    monkeypatch.setattr(judging, "open_images", counted)
    command = ["reproduce", "table1", "--quick", "--device", "cpu", "--rows", "st-emr", "--out", str(tmp_path)]
    assert run(command) == 0
    assert sorted(read) == ["test", "train"]
    read.clear()
    assert run([*command, "--judge-with", "distance"]) == 0
    assert read == ["test"]
    folder = tmp_path / "mnist-mlp-st-emr" / "seed-0"
    evaluation, distance = reports_of(folder, "evaluation", "distance")
    assert distance["data"] == evaluation["data"] | {"count": 40}
    assert json.loads((folder / "result.json").read_text())["margin_train"]["count"] > 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("recipe", "attacks", "search"),
    [
        ("mnist-mlp/st-emr", ("clean", "autoattack"), "float32"),
        ("cifar-cnn/st-emr", ("clean", "pgd10"), "float32"),
        ("cifar-cnn/st-emr", ("clean", "autoattack"), "tf32"),
        ("cifar-resnet18/at", ("clean", "pgd100"), "tf32"),
        ("cifar-wrn/at", ("clean", "fgsm", "autoattack"), "tf32"),
    ],
)
def test_what_is_searched_with_tf32_on_a_gpu(recipe, attacks, search):
    assert search_for(all_recipes()[recipe].config, attacks) == search


@pytest.mark.parametrize("quick", [False, True])
def test_a_tables_margins_are_of_all_images_as_the_last_epoch_saw_them(tmp_path, monkeypatch, quick):
    table = find_table("table1")
    (job,) = jobs(table, choose_rows(table, ["st-emr"]), [0], tmp_path, is_quick=quick)
    asked = []
    monkeypatch.setattr(judging, "training_points", lambda nets, train, config, epoch: asked.append(epoch))
    monkeypatch.setattr(judging, "first_samples", lambda points, samples, size: asked.append(samples))
    for name in ("measure_margins", "in_order", "batch_size"):
        monkeypatch.setattr(judging, name, lambda *_: None)
    judging._margins(job, torch.nn.Linear(1, 1), SimpleNamespace(train=None, test=None))
    assert asked == [job.config.epochs, 16 if quick else None]


@pytest.mark.parametrize(("steps", "before"), [(10, 3), (3, 10), (10, 10)])
def test_each_epoch_counts_with_its_own_attack(steps, before):
    config = all_recipes()["cifar-wrn/at-mail"].config
    attacks = {
        "attack": replace(config.objective.attack, steps=steps),
        "burn_in_attack": replace(config.objective.burn_in_attack, steps=before),
    }
    passes = 74 * (3 + 2 * before) + 26 * (3 + 2 * steps)
    assert order(replace(config, objective=replace(config.objective, **attacks))) == (4, passes)


@pytest.mark.parametrize(
    ("network", "gib", "size"),
    [
        (MLPConfig, 8, 10_000),
        (CNNConfig, 140, 10_000),
        (CNNConfig, 12, 5000),
        (ResNet18Config, 140, 2500),
        (ResNet18Config, 80, 2500),
        (ResNet18Config, 24, 1250),
        (ResNet18Config, 8, 312),
        (WideResNetConfig, 140, None),
    ],
)
def test_a_smaller_gpu_judges_fewer_images_at_once(network, gib, size, monkeypatch):
    memory = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: memory)
    assert piece_size(network, torch.device("cuda")) == size
