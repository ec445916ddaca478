"""A run folder: what was asked for (``config.toml``) and what each epoch measured (``metrics.jsonl``)."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from widemargin.errors import InputError
from widemargin.records import read_text
from widemargin.reports.inputs.checkpoint_file import read_checksum
from widemargin.reports.inputs.fields import Fields, read_lines

CONFIG, METRICS = "config.toml", "metrics.jsonl"
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
    label: str = ""

    @property
    def planned(self) -> int | None:
        """How many epochs it is to have."""
        return Fields(self.folder / CONFIG, self.config).whole("epochs")

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
        return [kept for kept in ("best", "last") if (self.folder / f"{kept}.safetensors").is_file()]

    def checksums(self) -> list[str]:
        """Those that the checkpoints kept carry; read from the disk each time."""
        found = [read_checksum(self.folder / f"{kept}.safetensors") for kept in self.checkpoints]
        return [checksum for checksum in found if checksum]

    def curve(self, key: str) -> list[tuple[float, float]]:
        """(epoch, value) wherever the value was measured."""
        return [(epoch["epoch"], epoch[key]) for epoch in self.epochs if key in epoch]


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run: its metrics, or a configuration of ours."""
    if (folder / METRICS).is_file():
        return True
    return (folder / CONFIG).is_file() and {"epochs", "objective", "optimizer"} <= _read_config(folder).keys()


def read_run(folder: Path) -> Run:
    """Read what there is of a run."""
    config = _read_config(folder) if (folder / CONFIG).is_file() else {}
    lines, cut_off = read_lines(folder / METRICS) if (folder / METRICS).is_file() else ([], False)
    epochs = [_epoch(folder / METRICS, number, line) for number, line in enumerate(lines, start=1)]
    for number, (before, epoch) in enumerate(pairwise(epochs), start=2):
        if epoch["epoch"] <= before["epoch"]:
            raise InputError(
                f"{folder / METRICS}: line {number} is of epoch {epoch['epoch']:g}, after one of epoch "
                f"{before['epoch']:g}; train on this folder again, which puts the file in order, or put back a copy"
            )
    alarms = [
        RunAlarm(int(epoch["epoch"]), alarm)
        for number, (line, epoch) in enumerate(zip(lines, epochs, strict=True), start=1)
        for alarm in Fields(folder / METRICS, line, f"line {number}: ").texts("alarms")
    ]
    name = Fields(folder / CONFIG, config).text("name", folder.name)
    return Run(folder=folder, name=name, config=config, epochs=epochs, alarms=alarms, cut_off=cut_off)


def _epoch(path: Path, number: int, line: dict[str, Any]) -> Epoch:
    numbers = {key: float(value) for key, value in line.items() if type(value) in (int, float) and isfinite(value)}
    if "epoch" not in numbers:
        raise InputError(f"{path}: line {number} has no epoch; is it a metrics file?")
    return numbers


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_text(folder / CONFIG))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{folder / CONFIG} is not valid TOML: {error}") from None
