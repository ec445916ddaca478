"""Weights & Biases: a run in the project ``WANDB_PROJECT``, else "widemargin"; ``WANDB_MODE=offline`` needs no network.

The run's id, and how far it was logged, are in ``wandb.json`` in the run folder: a run that goes on appends to the same
one. Offline, each call leaves a folder of its own with that id, and ``wandb sync --append`` puts them together.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb
from torch import Tensor

from widemargin.core.files import write_text_atomic


class WandB:
    """A ``Tracker`` and ``ShowsPictures``."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._run: Any = None
        self._waiting: dict[str, Any] = {}
        self._known: dict[str, Any] = {"last": 0}

    def begin(self, config: Mapping[str, Any], name: str) -> None:
        """Begin the run, or go on with it."""
        if self._file.is_file():
            self._known = json.loads(self._file.read_text(encoding="utf-8"))
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "widemargin"),
            name=name,
            config=dict(config),
            id=self._known.get("id"),
            resume="allow",
            dir=str(self._folder),
        )
        self._known["id"] = self._run.id
        self._remember()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """One point of each curve, and what is to be shown beside."""
        if self._run is not None and step > self._known["last"]:
            self._run.log({**metrics, **self._waiting}, step=step)
            self._known["last"] = step
            self._remember()
        self._waiting = {}

    def histogram(self, name: str, values: Tensor, step: int) -> None:
        """How the values are spread."""
        del step
        self._waiting[name] = wandb.Histogram(values.tolist())

    def image(self, name: str, image: Tensor, step: int) -> None:
        """A picture."""
        del step
        self._waiting[name] = wandb.Image(image.permute(1, 2, 0).numpy())

    def finish(self) -> None:
        """Upload what is left."""
        if self._run is not None:
            self._run.finish()
        self._run = None

    @property
    def _file(self) -> Path:
        return self._folder / "wandb.json"

    def _remember(self) -> None:
        write_text_atomic(self._file, json.dumps(self._known) + "\n")
