"""A user's file under mypy --strict, and pyright where it is installed: our names have types, typos are errors."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
README_LINES = re.search(
    r"## Two lines for your own.*?```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL
)
USER = """\
import torch.nn.functional as F
from torch import Tensor, nn

import widemargin


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
{lines}
    return loss


def measured(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    attack = widemargin.PGD(eps=8 / 255, step_size=2 / 255, steps=10)
    margins: Tensor = widemargin.effective_margin(model, attack(model, x, y), y)
    print(widemargin.summarize(margins).mean, widemargin.ExactEMR().value(model, x).mean())
    return widemargin.evaluate(model, (x, y), ["clean", attack], eps="8/255").accuracy
"""
TYPO = "import widemargin\n\nemr = widemargin.AproximateEMR()\nwidemargin.ExactEMR(projections=2)\n"


@pytest.fixture
def files(tmp_path):
    """The README's lines in a function of a user's, and what a checker must not let pass."""
    lines = "".join(f"    {line}\n" for line in README_LINES[1].splitlines()).rstrip()
    user, typo = tmp_path / "user_file.py", tmp_path / "typo_file.py"
    user.write_text(USER.format(lines=lines), encoding="utf-8")
    typo.write_text(TYPO, encoding="utf-8")
    return [*EXAMPLES, user, typo]


def errors(command, line):
    """Where the checker found errors, as "file:line"."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = re.findall(line, done.stdout, re.MULTILINE)
    assert done.returncode == 1, done.stdout + done.stderr  # the typos
    return {f"{Path(name).name}:{number}" for name, number in found}, done.stdout


def test_mypy_strict(files):
    command = [sys.executable, "-m", "mypy", "--strict", *map(str, files)]
    found, text = errors(command, r"^([^:\n]+):(\d+): error:")
    assert found == {"typo_file.py:3", "typo_file.py:4"}, text
    assert 'no attribute "AproximateEMR"' in text


@pytest.mark.skipif(find_spec("pyright") is None, reason="pyright is not in the dev extra: it downloads a node program")
def test_pyright(files):
    missing = [path for path in files if "lightning" in path.name and find_spec("lightning") is None]
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
    found, text = errors(
        [*command, *(str(path) for path in files if path not in missing)], r"([^ \n]+):(\d+):\d+ - error:"
    )
    assert found == {"typo_file.py:3", "typo_file.py:4"}, text
