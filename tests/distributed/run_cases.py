"""Whole runs, for one process and for two, and what two must agree about."""

import signal
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from faults import interrupted
from widemargin import InputError
from widemargin.config import RunConfig
from widemargin.config.checkpoint import load_checkpoint
from widemargin.config.toml import from_dict, with_overrides
from widemargin.distributed.group import Processes
from widemargin.training import Stop, run_folder, train
from widemargin.training import watch as watch_module
from widemargin.training.setup import load_splits, make_state
from widemargin.training.state import check_same_weights

TINY = """
name = "tiny"
epochs = 2
batch_size = 40
data = { name = "mnist-embedded", train_limit = 150, test_limit = 60, held_out = 40, augmentation = "crop-flip" }
model = { kind = "mlp", hidden = [16] }
emr = { kind = "stochastic", weight = 0.1, at = "adversarial" }
optimizer = { lr = 0.1, momentum = 0.9, weight_decay = 1e-3 }
watch = { attack = { kind = "pgd", eps = 0.1, step_size = 0.05, steps = 2 }, margin_samples = 50 }
averaging = { decay = 0.9 }
[objective]
kind = "adversarial"
attack = { kind = "pgd", eps = 0.1, step_size = 0.05, steps = 2, random_start = "uniform" }
"""
STEPS = 4
"""In an epoch."""


def tiny(*settings: str) -> RunConfig:
    """The configuration, with what a user would --set."""
    return with_overrides(from_dict(tomllib.loads(TINY)), settings)


@contextmanager
def small_batches_to_measure() -> Iterator[None]:
    """So small that every process has some."""
    usual = watch_module.batch_size
    watch_module.batch_size = lambda *_: 16
    try:
        yield
    finally:
        watch_module.batch_size = usual


def whole_run(
    out: str, device: str = "cpu", settings: tuple[str, ...] = (), *, rank: int = 0, processes: int = 1
) -> dict[str, Any]:
    """Train to the end, or go on with what is in the folder."""
    del rank, processes
    with small_batches_to_measure():
        result = train(tiny(*settings), out=Path(out), device=device)
    return {"finished": result.finished, "metrics": result.metrics}


def begun_run(out: str, *, rank: int = 0, processes: int = 1) -> dict[str, Any]:
    """A run that a kill ends in its seventh step, with a checkpoint after every second step of an epoch."""
    del rank, processes
    with small_batches_to_measure():
        interrupted(tiny(), Path(out), step=STEPS + 3, device="cpu", checkpoint_every=2)
    return {}


def refused(run: Callable[[], Any]) -> str:
    """What it is refused with."""
    try:
        run()
    except InputError as error:
        return str(error)
    return "not refused"


def refusals(out: str, *, rank: int = 0, processes: int = 1) -> dict[str, str]:
    """What one process refuses, all do."""
    folder, last = Path(out), rank == processes - 1
    said = {}
    said["device"] = refused(lambda: train(tiny(), out=folder / "a", device="cuda" if last else "cpu"))
    said["gpu number"] = refused(lambda: train(tiny(), out=folder / "a", device="cuda:1"))
    (folder / "b").mkdir(exist_ok=True)
    (folder / "b" / "somebody.txt").write_text("here")
    mine = folder / "b" if rank == 0 else folder / "c"
    said["folder"] = refused(lambda: train(tiny(), out=mine, device="cpu"))
    saves = run_folder.save_checkpoint

    def full(*_: Any) -> None:
        raise InputError("the disk is full")

    run_folder.save_checkpoint = full
    said["disk"] = refused(lambda: train(tiny(), out=folder / "d", device="cpu"))
    run_folder.save_checkpoint = saves
    rate = ("optimizer.lr=1e30", "objective={kind='standard'}", "emr=none")
    said["not finite"] = refused(lambda: train(tiny(*rate), out=folder / "e", device="cpu"))
    said["weights"] = refused(lambda: _drifted(rank, processes))
    return said


def _drifted(rank: int, processes: int) -> None:
    config = tiny()
    state = make_state(config, load_splits(config.data, seed=0, data_dir=None, device="cpu").train)  # type: ignore[arg-type]
    next(state.nets.model.parameters()).data[0, 0] += rank * 1e-6
    check_same_weights(state, Processes(rank, processes))


def norms(out: str, *, rank: int = 0, processes: int = 1) -> dict[str, Any]:
    """What the checkpoints of short runs with and without synchronized batch norm say about it."""
    del rank, processes
    tables = {}
    cnn = ("data.name=cifar10-embedded", "model={kind='resnet18', width=2}")
    for name, settings, sync_bn in (("shared", cnn, None), ("own", cnn, False), ("none", (), False)):
        config = tiny("epochs=1", "data.train_limit=40", "watch.margins=[]", *settings)
        train(config, out=Path(out) / name, device="cpu", sync_bn=sync_bn)
        tables[name] = load_checkpoint(Path(out) / name / "last.safetensors").description.versions
    return {name: table.get("batch_norm") for name, table in tables.items()}


def stops(out: str, *, rank: int = 0, processes: int = 1) -> dict[str, Any]:
    """Time that is out, or a signal, in the last process alone."""
    last, folder = rank == processes - 1, Path(out)
    late = train(tiny(), out=folder / "late", device="cpu", max_seconds=0 if last else 1e9)
    stop = Stop()
    stop.received = signal.SIGTERM if last else None
    asked = train(tiny(), out=folder / "asked", device="cpu", stop=stop)
    skipped = train(
        tiny("optimizer.lr=1e30", "epochs=1", "watch.margins=[]"),
        out=folder / "skipped",
        device="cpu",
        on_nonfinite="skip",
    )
    return {
        "late": (late.finished, late.epoch),
        "asked": (asked.finished, asked.epoch),
        "skipped": [line.get("skipped_steps") for line in skipped.metrics],
    }
