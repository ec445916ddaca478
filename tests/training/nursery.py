"""A warm process that forks a child for every run it is asked for, and may signal or kill it at chosen points.

Importing torch costs seconds, forking milliseconds. The nursery has one thread when it forks, and looks that it is so.
A request is a line of JSON: a script for the child, the configuration's TOML, the folder, and the points, each a kind,
a number and a signal. The points are made here, by wrapping what a run calls; the package knows nothing of them.
"""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

PIECE = 2000  # bytes: a checkpoint of these tiny models is written in dozens of pieces
WARM_UP = """
name = "warm-up"
epochs = 1
batch_size = 40
data = { name = "mnist-embedded", train_limit = 40, test_limit = 10, held_out = 10 }
model = { kind = "mlp", hidden = [4] }
objective = { kind = "adversarial", attack = { kind = "fgsm", eps = 0.1 } }
emr = { kind = "exact", weight = 0.1 }
optimizer = { lr = 0.1 }
"""
CALLS = ("open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir", "os.truncate")
TRAIN = "train(config, out=out)"
Point = tuple[str, int, int]


class Nursery:
    """The nursery as tests see it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._asked = folder, 0
        pipe = subprocess.PIPE
        alone = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._process = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True, env=alone)

    def run(self, config: str, out: Path, *points: Point, script: str = TRAIN) -> "Child":
        """Run the script in a child, with these points, and wait for its end."""
        self._asked += 1
        left = self._folder / str(self._asked)
        request = {"config": config, "out": str(out), "points": points, "script": script, "left": str(left)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Child(int(self._process.stdout.readline()), left)

    def end(self) -> None:
        self._process.stdin.close()
        assert self._process.wait() == 0


class Child:
    """How a child ended: its exit code (below zero: the signal that killed it), its words, the points it passed."""

    def __init__(self, code: int, left: Path) -> None:
        self.code, self.err = code, left.with_suffix(".err").read_text()
        self.passed = json.loads(left.read_text()) if left.exists() else {}


class Points:
    """Counts the points of each kind as they pass, and sends itself a signal at the chosen ones."""

    def __init__(self, chosen: Sequence[Point]) -> None:
        self.passed: Counter[str] = Counter()
        self._chosen = {(kind, number): signal for kind, number, signal in chosen}

    def at(self, kind: str) -> None:
        self.passed[kind] += 1
        signal = self._chosen.get((kind, self.passed[kind]))
        if signal is not None:
            os.kill(os.getpid(), signal)


def around(points: Points, kind: str, owner: object, name: str) -> None:
    """A point before every call of ``owner.name``, and one after it."""
    real = getattr(owner, name)

    def watched(*args, **options):
        points.at(kind)
        result = real(*args, **options)
        points.at(kind)
        return result

    setattr(owner, name, watched)


def place_points(points: Points, folder: Path) -> None:
    import torch

    from widemargin.config import checkpoint as checkpoint_file
    from widemargin.core import files
    from widemargin.evaluation import accuracy
    from widemargin.evaluation import accuracy as evaluation_margins
    from widemargin.training import run_folder, step, trainer

    for kind, owner, name in (
        ("step", step, "train_step"),
        ("step", torch.optim.SGD, "step"),
        ("step", torch.Tensor, "backward"),
        ("step", trainer, "update_average"),
        ("watch", accuracy, "classified"),
        ("watch", evaluation_margins, "classified"),
        ("between", trainer, "append_line"),
        ("between", run_folder, "save_checkpoint"),
        ("between", run_folder, "keep_until"),
        ("file", os, "fsync"),
        ("file", files, "drop_cached"),
    ):
        around(points, kind, owner, name)
    seal = checkpoint_file.seal

    def in_pieces(content):
        for part in seal(content):
            for start in range(0, len(part), PIECE):
                yield part[start : start + PIECE]
                points.at("write")

    def called(event, args):
        if event in CALLS and str(args[0]).startswith(str(folder)):
            points.at("file")

    checkpoint_file.seal = in_pieces
    sys.addaudithook(called)


def child(request: dict) -> int:
    """Run the script; it may set ``code``."""
    from widemargin.config.toml import from_dict
    from widemargin.training import train

    errors = os.open(request["left"] + ".err", os.O_WRONLY | os.O_CREAT)
    os.dup2(errors, 2)
    out = Path(request["out"])
    points = Points(request["points"])
    place_points(points, out)
    names = {"config": from_dict(tomllib.loads(request["config"])), "out": out, "train": train, "code": 0}
    exec(request["script"], names)
    Path(request["left"]).write_text(json.dumps(points.passed))
    return names["code"]


def serve() -> None:
    import torch

    from widemargin.cli.train import train as command
    from widemargin.config.toml import from_dict
    from widemargin.training import train

    assert callable(command)  # the command line is warm, too
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:  # nor does a child have to import what runs import late
        train(from_dict(tomllib.loads(WARM_UP)), out=Path(folder) / "run")
    for line in sys.stdin:
        assert len(list(Path("/proc/self/task").iterdir())) == 1
        process = os.fork()
        if process == 0:
            try:
                code = child(json.loads(line))
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
                os._exit(1)
            os._exit(code)
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
