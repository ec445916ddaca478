"""The list of recipes: its columns on screens and in pipes, its filters, its JSON, and its estimate of hours."""

import io
import json

import pytest
from rich.console import Console

from widemargin.cli import recipes as module
from widemargin.cli.main import run
from widemargin.jobs import speed
from widemargin.jobs.speed import Speed
from widemargin.recipes import all_recipes

TYPES = {
    "name": str,
    "data": str,
    "extra": str | None,
    "model": str,
    "epochs": int,
    "batch_size": int,
    "weight_decay": float,
    "passes": dict,
    "hours": float | None,
    "hours_on": str | None,
    "published": dict | None,
    "averages_of": str | None,
    "starts_from": str | None,
    "note": str,
}


def listed(capsys, *options):
    assert run(["recipes", *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_has_every_recipe_and_what_is_published_for_it(capsys):
    entries = listed(capsys)
    assert [entry["name"] for entry in entries] == list(all_recipes())
    for entry in entries:
        assert set(entry) == set(TYPES)
        assert [name for name, kind in TYPES.items() if not isinstance(entry[name], kind)] == []
        recipe = all_recipes()[entry["name"]]
        assert entry["published"] is None or entry["published"]["results"] == recipe.published.results
        assert (entry["published"] is None) == (recipe.published is None)
        assert entry["hours"] is None


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--match", "awp"], {"at-awp", "at-awp-emr", "trades-awp", "trades-awp-emr"}),
        (["--match", "AWP", "--model", "wrn", "--match", "trades-awp"], {"trades-awp", "trades-awp-emr"}),
        (["--model", "preact"], {"fgsm-rs-short", "n-fgsm-short", "rodriguez-munoz-clean", "rodriguez-munoz"}),
        (["--data", "mnist-embedded"], {"plain", "emr"}),
    ],
)
def test_filters(options, names, capsys):
    assert {entry["name"].split("/")[1] for entry in listed(capsys, *options)} == names


MISTAKES = {
    "--data imagenet": "--data: no recipe has 'imagenet'; there are cifar10, mnist, mnist-embedded",
    "--model vit": "--model: no recipe has 'vit'; there are cnn, mlp, ",
    "--data mnist --model wrn": "--model: no recipe has 'wrn'; there are mlp",
    "--device cpu": "--device has no effect without --hours",
    "--hours show mnist-mlp/at-emr": "options of the list have no effect on it",
    "--hours --device nowhere": "--device 'nowhere' cannot be used here",
}


@pytest.mark.parametrize("given", MISTAKES)
def test_mistakes(given, refused):
    assert MISTAKES[given] in refused("recipes", *given.split())


def on_screen(monkeypatch, width, *options):
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(module, "console_for", lambda **_: console)
    assert run(["recipes", *options]) == 0
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_screen_shows_whole_rows_and_says_what_it_has_no_room_for(width, monkeypatch):
    lines = on_screen(monkeypatch, width)
    header = next(line for line in lines if line.split()[:1] == ["recipe"])
    rows = [line for line in lines if line.split()[:1] and line.split()[0] in all_recipes()]
    assert [line.split()[0] for line in rows] == list(all_recipes())
    assert {len(line) for line in (header, *rows)} == {len(header)}
    assert len(header) <= width
    columns = header.split()
    assert {"recipe", "data", "epochs", "passes", "robust"} <= set(columns)
    missing = [name for name in ("model", "clean", "under") if name not in columns]
    told = next((line for line in lines if line.startswith("too narrow for ")), "")
    assert all(name in told for name in missing)
    assert bool(told) == bool(missing)
    if width == 120:
        assert missing == []


def test_into_a_pipe_nothing_is_wrapped_cut_or_left_out(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    assert run(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line.split()[:1] and line.split()[0] in all_recipes()}
    assert list(rows) == list(all_recipes())
    assert rows["modern/at-awp"][1:] == ["cifar10", "wrn-34-10", "200", "5,200", "85.36", "53.97", "AutoAttack"]
    assert rows["mnist-mlp/st-emr"][1:] == ["mnist", "mlp", "50", "1,700", "97.50", "87.56", "PGD-20"]
    assert not [line for line in lines if line.startswith("too narrow")]


def test_hours_are_arithmetic_on_one_timing_of_each_network(monkeypatch, capsys):
    timed = []

    def measured(config, model, device):
        timed.append(type(model).__name__)
        return Speed(a_pass=0.001, an_update=0.01)

    monkeypatch.setattr(speed, "measured_speed", measured)
    entries = {entry["name"]: entry for entry in listed(capsys, "--match", "modern", "--hours", "--device", "cpu")}
    # images and steps of an epoch: 50,000 in 391 batches; 48,976 in 96, filled up from a second source to 512 each
    at = (5200 * 50_000 * 0.001 + 200 * 391 * 0.01) / 3600
    wang = (10_800 * 96 * 512 * 0.001 + 400 * 96 * 0.01) / 3600
    assert entries["modern/at-awp"]["hours"] == pytest.approx(at, rel=5e-3)
    assert entries["modern/wang2023-wrn28-10"]["hours"] == pytest.approx(wang, rel=5e-3)
    assert entries["modern/at-awp"]["hours_on"].startswith("cpu")
    assert len(timed) == 5  # one for each of five networks; what is subtracted from the pixels does not count
    assert run(["recipes", "--match", "modern/at-awp", "--hours"]) == 0
    said = capsys.readouterr()
    assert "hours: an estimate for cpu" in said.out
    assert f" {at:.0f} " in said.out
    assert "timing a step of" in said.err
