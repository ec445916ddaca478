"""Every verb explains itself, and is loaded when it is called: what needs no torch does not wait for it."""

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import typer
from benchmarks.__main__ import BENCHMARKS
from paper.__main__ import PAPER

from widemargin.cli.main import VERBS, WIDEMARGIN

ROOT = Path(__file__).parents[2]
LIGHT = """
import sys
from widemargin.cli.main import run
code = run(sys.argv[1:])
heavy = [name for name in ("torch", "numpy", "matplotlib", "widemargin.config") if name in sys.modules]
loaded = [name for name in {modules!r} if name in sys.modules]
print("loaded:", *heavy, *loaded, file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("arguments", "code", "says", "loaded"),
    [
        ((), 0, "Train image classifiers", ""),
        (("--help",), 0, "Train image classifiers", ""),
        (("trian",), 2, "No such command 'trian'", ""),
        (("--nosuch",), 2, "No such option", ""),
        (("recipes", "--help"), 0, "List the recipes", "widemargin.cli.recipes"),
    ],
)
def test_help_and_mistakes_load_no_torch_and_a_command_itself_alone(arguments, code, says, loaded, tmp_path):
    modules = [verb.module for verb in VERBS.values()]
    script = LIGHT.format(modules=modules)
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == code
    assert says in (done.stdout if code == 0 else done.stderr)
    found = done.stderr.splitlines()[-1].removeprefix("loaded:").split()
    assert [name for name in found if name in modules] == loaded.split()
    assert loaded or not found


@pytest.mark.parametrize("package", ["paper", "benchmarks"])
@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("--help",), 0), (("--nosuch",), 2)])
def test_the_repositorys_own_commands_need_no_torch_for_help(package, arguments, code):
    line = [sys.executable, "-X", "importtime", "-m", package, *arguments]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert f"python -m {package}" in done.stdout + done.stderr
    assert {line.split("|")[-1].strip() for line in done.stderr.splitlines()} & {
        "torch",
        f"{package}.commands",
    } == set()


ALL = [(line, name) for line in (WIDEMARGIN, PAPER, BENCHMARKS) for name in line.verbs]


@pytest.mark.parametrize(("line", "name"), ALL, ids=[f"{line.name} {name}" for line, name in ALL])
def test_what_the_list_says_is_what_the_command_says(line, name):
    verb = line.verbs[name]
    found = getattr(import_module(verb.module), verb.name)
    own = str(found.info.help) if isinstance(found, typer.Typer) else inspect.getdoc(found)
    assert verb.help == " ".join(own.split("\n\n")[0].split())
    assert verb.load().help.startswith(verb.help.split(",")[0])


HELP = {
    "demo": ("--out", "--seed", "plain and with EMR"),
    "train": ("RECIPE", "--out", "--set", "--max-time", "--data-dir", "--device", "--checkpoint-every", "--no-sync-bn"),
    "evaluate": ("TARGET", "autoattack", "--attacks", "--eps", "--step-size", "--norm", "--limit", "--json", "8/255"),
    "check": ("TARGET", "--shape", "--dataset", "--json", "how to fix it"),
    "margins": ("TARGET", "timm:NAME", "--normalize", "--split", "--at", "--norm", "--picture", "--json", "histogram"),
    "recipes": ("show", "List"),
    "recipes show": ("Print a recipe as TOML",),
    "reproduce": ("table1", "--workers", "--max-time", "--judge-with", "autoattack-8-255", "--judge-rows", "best"),
    "sweep": ("--grid", "--storage", "--heartbeat"),
    "report": ("DIR", "--out", "--title"),
    "python -m paper collect": ("DIR", "--into", "weights"),
    "python -m benchmarks step": ("--model", "--objective", "--emr", "--engine", "--rounds", "--no-naive", "--json"),
}


@pytest.mark.parametrize("verb", HELP)
def test_every_verb_has_a_real_help(command, verb):
    line = next((line for line in (PAPER, BENCHMARKS) if verb.startswith(line.name)), WIDEMARGIN)
    answer = command(line, *verb.removeprefix(line.name).split(), "--help")
    assert answer.code == 0
    assert answer.err == ""
    assert [word for word in HELP[verb] if word not in answer.text] == []


@pytest.mark.parametrize("line", [WIDEMARGIN, PAPER, BENCHMARKS], ids=lambda line: line.name)
@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_a_command_alone_lists_its_verbs(command, line, arguments):
    answer = command(line, *arguments)
    assert answer.code == 0
    assert all(verb in answer.out for verb in line.verbs)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
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
