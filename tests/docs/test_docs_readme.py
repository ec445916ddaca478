"""The README's Python runs as it stands; its commands exist."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from benchmarks.__main__ import BENCHMARKS
from paper.__main__ import PAPER
from torch import nn

import widemargin
from widemargin.cli.main import WIDEMARGIN
from widemargin.recipes import all_recipes

TEXT = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
ROOT = Path(__file__).parents[2]
COMMANDS = [
    found
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for found in re.findall(
        r"^(?:widemargin|python -m (?:paper|benchmarks)) .*$", page.read_text("utf-8"), re.MULTILINE
    )
]
LINES = {line.name: line for line in (WIDEMARGIN, PAPER, BENCHMARKS)}


def test_the_python_runs_in_order():
    torch.manual_seed(0)
    names = {"widemargin": widemargin, "F": F, "model": nn.Sequential(nn.Flatten(), nn.Linear(12, 3))}
    names |= {"x": torch.rand(4, 3, 2, 2), "y": torch.tensor([0, 1, 2, 0])}
    assert len(PYTHON) == 2
    for block in PYTHON:
        exec(block, names)
    names["loss"].backward()
    assert all(parameter.grad is not None for parameter in names["model"].parameters())


USERS_FILE = """
import torch
import torch.nn.functional as F
import widemargin

model, x, y = torch.nn.Linear(12, 3), torch.rand(4, 12), torch.tensor([0, 1, 2, 0])
{}
margins: torch.Tensor = widemargin.effective_margin(model, x, y)
number: int = emr(model, x)  # no: a tensor
number = emr.value(model, x)  # no: a tensor
number = widemargin.ExactEMR()(model, x)  # no: a tensor
number = widemargin.StochasticEMR().value(model, x)  # no: a tensor
number = widemargin.effective_margin(model, x, y)  # no: a tensor
emr(model)  # no: images are missing
widemargin.effective_margin(model, x, y, norm="l3")  # no: not a norm
widemargin.Aproximate  # no: a typo
"""


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_type_checkers_know_what_it_shows(checker, tmp_path):
    program = shutil.which(checker, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if program is None:
        pytest.skip(f"{checker} is not installed")
    sources, users = str(Path(widemargin.__file__).parents[1]), tmp_path / "users.py"
    users.write_text(USERS_FILE.format("".join(PYTHON)), encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [sources]}), encoding="utf-8")
    options = {
        "mypy": ["--strict", "--config-file=", "--follow-imports=silent"],
        "pyright": ["--pythonpath", sys.executable],
    }
    done = subprocess.run(
        [program, *options[checker], "users.py"],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": sources},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = users.read_text(encoding="utf-8").splitlines()
    wrong = [number for number, line in enumerate(lines, start=1) if "# no: " in line]
    found = re.findall(r"users\.py:(\d+):.*error", done.stdout)
    assert sorted(set(map(int, found))) == wrong, done.stdout + done.stderr


@pytest.mark.parametrize("written", COMMANDS)
def test_the_commands_name_verbs_options_and_recipes_that_exist(written, command):
    words = shlex.split(written.removesuffix("&"), comments=True)
    start = 3 if words[0] == "python" else 1
    line, words = LINES[" ".join(words[:start])], words[start:]
    words = words[2:] if words[0] == "--import" else words
    assert words[0] in line.verbs
    if words[0] in ("train", "sweep"):
        assert words[1] in all_recipes()
    shown = command(line, words[0], "--help")
    assert shown.code == 0
    assert all(word in shown.out for word in words if word.startswith("--"))


def test_every_command_line_is_shown():
    assert {" ".join(words.split()[: 3 if words[0] == "p" else 1]) for words in COMMANDS} == LINES.keys()
