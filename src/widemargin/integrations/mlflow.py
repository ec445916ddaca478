"""MLflow: a run in the experiment ``MLFLOW_EXPERIMENT_NAME``, else "widemargin", on ``MLFLOW_TRACKING_URI``.

Without that address MLflow has its own default in the current folder. The run's id is in ``mlflow.json`` in the run
folder: a run that goes on appends to the same one.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from widemargin.core.files import write_text_atomic

LAST = "epoch"
"""The metric that every line has."""


class MLflow:
    """A ``Tracker``; the configuration becomes parameters with dotted names."""

    def __init__(self, folder: str | Path) -> None:
        self._file = Path(folder) / "mlflow.json"
        self._client: Any = None
        self._id, self._last = "", 0

    def begin(self, config: Mapping[str, Any], name: str) -> None:
        """Begin the run, or go on with it."""
        self._client = mlflow.MlflowClient()
        if self._file.is_file():
            self._id = json.loads(self._file.read_text(encoding="utf-8"))["id"]
            self._last = max((point.step for point in self._client.get_metric_history(self._id, LAST)), default=0)
            self._client.update_run(self._id, status="RUNNING")
            return
        self._id = self._client.create_run(self._experiment(), run_name=name).info.run_id
        write_text_atomic(self._file, json.dumps({"id": self._id}) + "\n")
        params = [Param(key, str(value)) for key, value in _flat(config)]
        for start in range(0, len(params), 100):  # so many at a time
            self._client.log_batch(self._id, params=params[start : start + 100])

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """One point of each curve."""
        if step > self._last:
            now = int(1000 * time.time())
            self._client.log_batch(self._id, [Metric(name, value, now, step) for name, value in metrics.items()])
            self._last = step

    def finish(self) -> None:
        """The run may go on later, which begins it again."""
        self._client.set_terminated(self._id)

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "widemargin")
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name))
        except MlflowException:  # another process was first
            return str(self._client.get_experiment_by_name(name).experiment_id)


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
