"""Shell completion: what a shell asks for and gets, without torch; and the file it comes from is up to date."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from widemargin.cli import completion
from widemargin.cli.main import VERBS, run
from widemargin.recipes import all_recipes

ROOT = Path(__file__).parents[2]
TORCH = "import sys; from widemargin.__main__ import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"


def asked(line: str, shell: str = "bash") -> dict[str, str]:
    """What the shell sets when the last word of the line, which may be empty, is to be completed."""
    place = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_TYPER_COMPLETE_ARGS": line}
    place |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    return place | {"_WIDEMARGIN_COMPLETE": f"complete_{shell}"}


@pytest.fixture
def completed(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def give(line: str, shell: str = "bash") -> list[str]:
        for name, value in asked(line, shell).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit):
            run([])
        out, err = capsys.readouterr()
        assert err == ""
        return out.split("\n")[:-1]

    return give


def test_the_file_is_up_to_date():
    script = "import completions; print(completions.snapshot(), end='')"
    made = subprocess.run([sys.executable, "-c", script], cwd=ROOT / "scripts", capture_output=True, check=True)
    assert completion.FILE.read_text() == made.stdout.decode(), "python scripts/completions.py writes it anew"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("widemargin ", list(VERBS)),
        ("widemargin re", ["reproduce", "report", "recipes"]),
        ("widemargin --import m rep", ["reproduce", "report"]),
        ("widemargin train demo/", ["demo/plain", "demo/emr"]),
        ("widemargin train my", ["my.toml"]),
        ("widemargin train demo/emr --ma", ["--max-time"]),
        ("widemargin train demo/emr --json --max", ["--max-time"]),
        ("widemargin train demo/emr --engine ", ["auto", "eager", "fast"]),
        ("widemargin train demo/emr --set optimizer.l", ["optimizer.lr"]),
        ("widemargin train demo/emr --out ", [""]),  # the shell's own: files and folders
        ("widemargin evaluate run --attacks clean,apgd-", ["clean,apgd-ce", "clean,apgd-t"]),
        ("widemargin reproduce table1,table", ["table1,table2", "table1,table3", "table1,table4"]),
        ("widemargin recipes s", ["show"]),
        ("widemargin recipes show demo/e", ["demo/emr"]),
    ],
)
def test_what_is_offered(completed, line, offered):
    Path("my.toml").touch()
    assert completed(line) == offered


def test_completing_does_not_wait_for_torch():
    environment = os.environ | asked("widemargin train demo/emr --set optimizer.") | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", TORCH], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert "optimizer.lr" in done.stdout.split()


def test_help_is_beside_what_other_shells_offer(completed):
    (found,) = completed("widemargin exp", "fish")
    name, told = found.split("\t")
    assert name == "export"
    assert VERBS["export"].help.startswith(told.rstrip("."))
    (found,) = completed("widemargin evaluate run --limi", "zsh")
    assert "--limit" in found
    assert "Use only the first N images." in found


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_with_the_script_that_is_shown(tmp_path):
    launcher = tmp_path / "widemargin"
    launcher.write_text(f'#!/bin/sh\nexec {sys.executable} -m widemargin "$@"\n')
    launcher.chmod(0o755)
    script = """
    eval "$(widemargin --show-completion bash)"
    COMP_WORDS=(widemargin train demo/e) COMP_CWORD=2
    $(complete -p widemargin | sed 's/.*-F \\([^ ]*\\).*/\\1/') widemargin
    echo "${COMPREPLY[@]}"
    """
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    environment |= {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("demo/emr\n", "")


def test_recipes_that_are_offered_are_there():
    assert set(completion._known()["recipes"]) == set(all_recipes())
