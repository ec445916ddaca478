"""Commands as a user gives them, on tiny runs."""

import re
import tomllib

import numpy as np
import pytest

from widemargin.cli.main import run
from widemargin.config.toml import from_dict, to_toml
from widemargin.data import load

RECIPE = """
name = "tiny"
epochs = 2
batch_size = 20
data = { name = "mnist-embedded", train_limit = 100, test_limit = 40 }
model = { kind = "mlp", hidden = [16] }
optimizer = { lr = 0.1 }
watch = { attack = { kind = "fgsm", eps = 0.1 }, margins = [] }
evaluation = { attacks = ["clean", "pgd3"], eps = 0.05, step_size = 0.02 }
"""


@pytest.fixture(autouse=True)
def _terminal_of_a_hundred_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")


class Answer:
    """The exit code and what was printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def text(self) -> str:
        """Standard output as words, without the boxes of tables."""
        return " ".join(re.sub(r"[^\x20-\x7e±…]", " ", self.out).split())


@pytest.fixture
def command(capsys):
    """command("train", "tiny.toml", ...) -> Answer; nothing runs in another process."""

    def give(*arguments) -> Answer:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Answer(code, out, err)

    return give


@pytest.fixture
def refused(command):
    """The one line on standard error with which a mistake ends."""

    def give(*arguments) -> str:
        answer = command(*arguments)
        assert answer.code == 2, answer.out + answer.err
        lines = [line for line in answer.err.splitlines() if line]
        assert len(lines) == 1, answer.err
        assert lines[0].startswith("widemargin: ")
        assert "Traceback" not in answer.err
        assert answer.out == ""
        return lines[0]

    return give


@pytest.fixture(scope="session")
def recipe(tmp_path_factory):
    """A .toml recipe that trains in a blink."""
    path = tmp_path_factory.mktemp("recipes") / "tiny.toml"
    path.write_text(to_toml(from_dict(tomllib.loads(RECIPE))))
    return path


@pytest.fixture(scope="session")
def trained(recipe, tmp_path_factory):
    """A finished run."""
    out = tmp_path_factory.mktemp("trained") / "run"
    assert run(["train", str(recipe), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="session")
def arrays():
    """The arrays of a user's own .npz: digits of three classes, cut to 14 x 14."""
    parts = {}
    for split, count in (("train", 90), ("test", 45)):
        data = load("mnist-embedded", split)
        rows = (data.labels < 3).nonzero()[:count, 0]
        parts[f"{split}_images"] = data.images[rows, 0, ::2, ::2].numpy()
        parts[f"{split}_labels"] = data.labels[rows].numpy().astype(np.int64)
    return parts
