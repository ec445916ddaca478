"""Every verb explains itself, and the command can be run as a module."""

import subprocess
import sys

import pytest

VERBS = {
    "demo": ("--out", "--seed", "plain and with EMR"),
    "train": (
        "RECIPE",
        "--out",
        "--set",
        "--max-time",
        "--data-dir",
        "--device",
        "run folder",
        "--checkpoint-every",
        "--no-sync-bn",
    ),
    "evaluate": ("TARGET", "autoattack", "--attacks", "--eps", "--step-size", "--norm", "--limit", "--json", "8/255"),
    "margins": ("RUN_OR_CHECKPOINT", "--split", "--at", "--norm", "--picture", "--json", "histogram"),
    "recipes": ("show", "List"),
    "reproduce": (
        "table1",
        "--workers",
        "--max-time",
        "--judge-with",
        "autoattack-8-255",
        "--judge-rows",
        "--quick",
        "best",
    ),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_a_real_help(command, verb):
    answer = command(verb, "--help")
    assert answer.code == 0
    assert answer.err == ""
    for word in VERBS[verb]:
        assert word in answer.text, word


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_the_command_alone_lists_its_verbs(command, arguments):
    answer = command(*arguments)
    assert answer.code == 0
    assert all(verb in answer.out for verb in VERBS)
    assert "Train image classifiers" in answer.out


def test_show_has_a_help(command):
    assert "Print a recipe as TOML" in command("recipes", "show", "--help").text


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--help",), 0, "evaluate"),
        (("recipes", "show", "mnist-mlp/st-emr"), 0, 'kind = "exact"'),
        (("train", "mnist-mlp/st-emr", "--set", "optimizer.lr=-1", "--out", "never"), 2, "optimizer.lr"),
    ],
)
def test_as_a_module_in_a_process_of_its_own(arguments, code, says, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "widemargin", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert says in (done.stdout if code == 0 else done.stderr)
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
