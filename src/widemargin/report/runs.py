"""A run folder as it lies on the disk: what was asked for, and what each epoch measured so far.

A run may be under way or cut off, and its files may be anybody's: what is missing is left out, what is wrong is refused
in one line, and a number that no chart could show is left out as a NaN is.
"""

import math
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from widemargin.config.checkpoint import BEST, CONFIG, LAST, METRICS, read_checksum
from widemargin.core.records import ENTRIES, LARGEST, MIB, Fields, Lines, attempted, read_text, sound
from widemargin.errors import InputError

ALARMS = 10_000
Epoch = Mapping[str, float]


@dataclass(frozen=True)
class RunAlarm:
    """A sign that training went wrong, by its name, and the epoch that raised it."""

    epoch: int
    name: str


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run, finished or not; ``label`` is its name on the page."""

    folder: Path
    name: str
    config: Mapping[str, Any]
    epochs: Sequence[Epoch]
    """The finite numbers of each epoch measured so far."""
    alarms: Sequence[RunAlarm] = ()
    cut_off: bool = False
    unread: bool = False
    """Whether there are metrics that could not be read: then nobody knows how far it is."""
    planned: int | None = None
    """How many epochs it is to have."""
    seed: int = 0
    data: str = ""
    label: str = ""

    @property
    def done(self) -> int:
        """The last epoch measured."""
        return int(self.epochs[-1]["epoch"]) if self.epochs else 0

    @property
    def lost(self) -> int:
        """How many epochs before the last one have no line: they were damaged."""
        return max(0, self.done - len(self.epochs))

    @property
    def may_stop_early(self) -> bool:
        """Whether it may end before the planned epochs and be finished all the same."""
        return "stopping" in self.config

    @property
    def finished(self) -> bool:
        """Whether every planned epoch is there; a run that may stop early cannot be told from its files."""
        return self.planned is not None and self.done >= self.planned

    @property
    def seconds(self) -> float:
        """Time spent on training."""
        return sum(epoch.get("seconds", 0.0) for epoch in self.epochs)

    @property
    def checkpoints(self) -> list[str]:
        """Which weights are kept."""
        return [Path(name).stem for name in (BEST, LAST) if (self.folder / name).is_file()]

    def checksums(self) -> list[str]:
        """Those that the checkpoints kept carry; read from the disk each time."""
        found = (read_checksum(self.folder / name) for name in (BEST, LAST))
        return [checksum for checksum in found if checksum]

    def curve(self, key: str) -> list[tuple[float, float]]:
        """(epoch, value) wherever the value was measured."""
        return [(epoch["epoch"], epoch[key]) for epoch in self.epochs if key in epoch]


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run: its metrics, or a configuration of ours."""
    if (folder / METRICS).is_file():
        return True
    return (folder / CONFIG).is_file() and {"epochs", "objective", "optimizer"} <= read_config(folder).keys()


def read_run(folder: Path, faults: list[str] | None = None) -> Run:
    """Read what there is of a run."""
    nameless = Run(folder=folder, name=folder.name, config={}, epochs=())
    run = attempted(_configured, folder, faults) if (folder / CONFIG).is_file() else nameless
    run = nameless if run is None else run
    if not (folder / METRICS).is_file():
        return run
    return attempted(partial(_measured, run=run), folder / METRICS, faults) or replace(run, unread=True)


def _configured(folder: Path) -> Run:
    """What is asked for, and nothing done yet."""
    config = read_config(folder)
    fields = Fields(folder / CONFIG, config)
    fields.table("evaluation")
    return Run(
        folder=folder,
        name=fields.text("name", folder.name),
        config=config,
        epochs=(),
        planned=fields.count("epochs"),
        seed=fields.whole("seed") or 0,
        data=fields.table("data").text("name"),
    )


def _measured(path: Path, run: Run) -> Run:
    """The run with its epochs, each later than the one before."""
    lines, epochs, alarms = Lines(path), list[Epoch](), list[RunAlarm]()
    for number, line in enumerate(lines, start=1):
        if number > ENTRIES:
            raise InputError(f"{path} has more than {ENTRIES:,} lines; is it a metrics file?")
        epoch, before = _epoch(path, number, line), epochs[-1]["epoch"] if epochs else -math.inf
        if epoch["epoch"] <= before:
            raise InputError(
                f"{path}: line {number} is of epoch {epoch['epoch']:g}, after one of epoch {before:g}; train on this "
                "folder again, which puts the file in order, or put back a copy"
            )
        epochs.append(epoch)
        names = Fields(path, line, f"line {number}: ").texts("alarms")
        alarms += [RunAlarm(int(epoch["epoch"]), name) for name in names]
        if len(alarms) > ALARMS:
            raise InputError(f"{path} holds more than {ALARMS:,} alarms; was it damaged?")
    return replace(run, epochs=epochs, alarms=alarms, cut_off=lines.cut_off)


SHARES = ("_clean", "_robust", "_accuracy")


def _epoch(path: Path, number: int, line: dict[str, Any]) -> Epoch:
    """Its numbers; one that no chart could show is left out as a NaN is."""
    numbers = {
        sys.intern(key): float(value)
        for key, value in line.items()
        if type(value) in (int, float) and abs(value) <= LARGEST and (not key.endswith(SHARES) or 0 <= value <= 100)
    }
    if "epoch" not in numbers:
        raise InputError(f"{path}: line {number} has no epoch; is it a metrics file?")
    return numbers


def read_config(folder: Path) -> dict[str, Any]:
    """``config.toml``, whatever it holds."""
    path = folder / CONFIG
    try:
        content: dict[str, Any] = sound(path, tomllib.loads(read_text(path, MIB)))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}") from None
    except InputError:
        raise
    except (ValueError, RecursionError):
        raise InputError(f"{path} is not valid TOML: nested too deeply, or a number too long") from None
    return content
