"""For every test: one torch thread (networks are tiny, and bits depend on it), and ``oracles`` importable.

And the usual handlers of signals, which children inherit: a job in the background may be started with some ignored.
"""

import re
import signal
import sys
from pathlib import Path

import pytest
import torch

from widemargin.cli.main import CommandLine, run

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)


class Answer:
    """The exit code and what was printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def text(self) -> str:
        """Standard output as words, without the boxes of tables."""
        return " ".join(re.sub(r"[^\x20-\x7e±…]", " ", self.out).split())


@pytest.fixture
def command(capsys, monkeypatch):
    """command("train", "tiny.toml", ...) -> Answer, of ``widemargin`` or of the CommandLine that comes first."""
    monkeypatch.setenv("COLUMNS", "100")

    def give(*arguments) -> Answer:
        capsys.readouterr()
        line = [argument for argument in arguments if isinstance(argument, CommandLine)]
        code = run([str(argument) for argument in arguments[len(line) :]], *line)
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
