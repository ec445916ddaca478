"""The README's Python runs as it stands; its commands exist."""

import re
import shlex
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import widemargin
from widemargin.cli.main import app, run
from widemargin.recipes import all_recipes

TEXT = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = re.findall(r"^widemargin .*$", TEXT, re.MULTILINE)


def test_the_python_runs_in_order():
    torch.manual_seed(0)
    names = {"widemargin": widemargin, "F": F, "model": nn.Sequential(nn.Flatten(), nn.Linear(12, 3))}
    names |= {"x": torch.rand(4, 3, 2, 2), "y": torch.tensor([0, 1, 2, 0])}
    assert len(PYTHON) == 2
    for block in PYTHON:
        exec(block, names)
    names["loss"].backward()
    assert all(parameter.grad is not None for parameter in names["model"].parameters())


def test_the_commands_name_verbs_and_recipes_that_exist(capsys):
    verbs = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    assert len(COMMANDS) >= 6
    for command in COMMANDS:
        words = shlex.split(command, comments=True)
        assert words[1] in verbs
        if words[1] in ("train", "sweep"):
            assert words[2] in all_recipes()
        options = [word for word in words if word.startswith("--")]
        assert run([words[1], "--help"]) == 0
        shown = capsys.readouterr().out
        assert all(option in shown for option in options), command
