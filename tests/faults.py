"""Faults for tests: kills and signals at chosen points, disks that break, steps that are interrupted or not finite.

In a test: ``Nursery`` (a run in a process of its own, signaled or killed at a point), ``killed_after``, ``full_disk``
and others (system calls that fail), ``contents`` (what must not have changed), ``interrupted``, ``interrupt_at`` and
``clock_of_steps`` (steps), ``Breaking`` (an objective that is not finite).

As a program: ``faults.py serve`` is the nursery, ``faults.py break CONFIG OUT stop|skip`` a run with the breaking
objective for torchrun, ``faults.py stop CONFIG OUT ENGINE STEPS [DEVICE]`` a deterministic run that a signal stops.
"""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
import torch

from widemargin.cli.train import train as command
from widemargin.config import checkpoint as checkpoint_file
from widemargin.config.toml import from_dict, read_toml
from widemargin.core import files
from widemargin.core.files import partial_of
from widemargin.errors import InputError
from widemargin.evaluation import accuracy
from widemargin.objectives import OBJECTIVES, Standard
from widemargin.recipes import find_recipe
from widemargin.training import Stop, run_folder, train, trainer
from widemargin.training import step as step_module
from widemargin.training.step import train_step
from widemargin.types import Outcome

# Processes that are signaled or killed

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
COMMAND = """
from widemargin.cli.main import run
from widemargin.config.toml import to_toml
recipe = out.with_suffix(".toml")
recipe.write_text(to_toml(config))
code = run(["train", str(recipe), "--out", str(out)])
"""
Point = tuple[str, int, int]


class Nursery:
    """The nursery as tests see it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        pipe = subprocess.PIPE
        single = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            [sys.executable, __file__, "serve"], stdin=pipe, stdout=pipe, text=True, env=single
        )

    def run(self, config: str, out: Path, *points: Point, script: str = TRAIN) -> "Child":
        """Run the script in a child, with these points, and wait for its end."""
        self._count += 1
        left = self._folder / str(self._count)
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
    for kind, owner, name in (
        ("step", step_module, "train_step"),
        ("step", torch.optim.SGD, "step"),
        ("step", torch.Tensor, "backward"),
        ("step", trainer, "update_average"),
        ("watch", accuracy, "classified"),
        ("watch", accuracy, "classified"),
        ("between", trainer, "append_line"),
        ("between", run_folder, "save_checkpoint"),
        ("between", run_folder, "truncate_metrics"),
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


# Disks that break

SYSTEM_CALLS = ("fsync", "link", "replace", "unlink", "open")


class KilledError(BaseException):
    """The process ends here: nothing after it runs, no ``finally`` either."""


def killed_after(monkeypatch, calls: int) -> list[str]:
    """Let that many system calls happen; from then on every one of them fails, as none happens after a kill."""
    made: list[str] = []

    def counted(module, name):
        real = getattr(module, name)

        def call(*args, **kwargs):
            if len(made) >= calls:
                raise KilledError
            made.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    for name in SYSTEM_CALLS:
        counted(os, name)
    counted(Path, "open")
    counted(Path, "replace")
    counted(Path, "unlink")
    return made


def no_links(*args, **kwargs):
    raise OSError(errno.EPERM, "Operation not permitted")


@contextmanager
def files_no_larger_than(size: int):
    """The kernel's own refusal: a write beyond the limit fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def full_disk(*paths: Path):
    """The kernel's own ENOSPC: what is written to these files goes to /dev/full."""
    for path in paths:
        partial_of(path).symlink_to("/dev/full")
    yield


@contextmanager
def failing_flush(monkeypatch):
    """A disk that takes the bytes and then says that it is full."""

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        yield


def contents(folder: Path) -> dict[str, bytes]:
    """What is in the files of a folder, byte for byte."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# Steps that are interrupted, counted or not finite


def interrupt_at(monkeypatch, step):
    """KeyboardInterrupt in the middle of the given step (counted from 1) of this call."""
    calls = iter(range(1, 1000))

    def taken(*args, **options):
        values = train_step(*args, **options)
        if next(calls) == step:
            raise KeyboardInterrupt
        return values

    monkeypatch.setattr(step_module, "train_step", taken)


def interrupted(config, out: Path, *, step: int, **options) -> None:
    """Train until a KeyboardInterrupt in the middle of the given step."""
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(patch, step)
        with pytest.raises(KeyboardInterrupt):
            train(config, out=out, **options)


def clock_of_steps(monkeypatch):
    """A clock that shows the number of steps done, so that max_seconds=5 means five steps."""
    now = [0]

    def counted(*args, **options):
        now[0] += 1
        return train_step(*args, **options)

    monkeypatch.setattr(step_module, "train_step", counted)
    monkeypatch.setattr("time.monotonic", lambda: now[0])


@dataclass(frozen=True, kw_only=True)
class Breaking(Standard):
    """Cross-entropy, but in one epoch what ``how`` says becomes ``value`` wherever the label is ``label``."""

    epoch: int = 1
    label: int = 3
    how: str = "loss"
    value: str = "nan"

    def phase(self, epoch):
        return int(epoch == self.epoch)

    def __call__(self, nets, x, y, *, epoch, generator=None):
        outcome = super().__call__(nets, x, y, epoch=epoch, generator=generator)
        if epoch != self.epoch:
            return outcome
        hit, bad = y == self.label, float(self.value)
        if self.how == "gradient":  # a finite loss whose gradient is none
            zeros = torch.zeros_like(outcome.loss)
            zeros[hit] = (outcome.loss[hit] * 0).abs().sqrt()
            return Outcome(loss=outcome.loss + zeros, logits=outcome.logits)
        if self.how == "term":
            return Outcome(outcome.loss, outcome.logits, terms={"odd": torch.where(hit, bad, 0.0)})
        return Outcome(outcome.loss * torch.where(hit, bad, 1.0), outcome.logits)


def breaking(**settings) -> str:
    """The setting that chooses it."""
    table = {"kind": "breaking", **settings}
    return f"objective={{{', '.join(f'{key}={json.dumps(value)}' for key, value in table.items())}}}"


# Programs


def break_run(config: str, out: str, choice: str) -> None:
    OBJECTIVES["breaking"] = Breaking
    try:
        train(read_toml(Path(config)), out=Path(out), on_nonfinite=choice, device="cpu")
    except InputError as error:
        print(f"refused: {error}", flush=True)


def stop_run(config: str, out: str, engine: str, steps: str, device: str = "cuda") -> None:
    stop, taken, set_learning_rate = Stop(), count(1), trainer.set_learning_rate

    def counted(*arguments: object) -> None:
        set_learning_rate(*arguments)
        if next(taken) == int(steps):
            stop.received = signal.SIGTERM

    trainer.set_learning_rate = counted
    options = {"engine": engine, "stop": stop, "deterministic": True}
    train(find_recipe(config).config, out=Path(out), device=device, **options)


if __name__ == "__main__":
    {"serve": serve, "break": break_run, "stop": stop_run}[sys.argv[1]](*sys.argv[2:])
