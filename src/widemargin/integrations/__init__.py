"""Adapters to other people's tools, a file each, which imports its library: nothing here is imported before it is used.

Trackers: ``tensorboard``, ``wandb``, ``mlflow``. Training loops: ``lightning``, ``transformers``. Sharing: ``hub``,
``onnx``. Clusters: ``slurm``, ``ray``. What each was tested with is in docs/integrations.md.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from widemargin.errors import InputError

if TYPE_CHECKING:
    from widemargin.types import Tracker  # which brings torch, for which a job's watcher on a node need not wait

TRACKERS = {"tensorboard": "TensorBoard", "wandb": "WandB", "mlflow": "MLflow"}
"""The module here, which is also what ``--log`` takes and the extra to install, and the class in it."""


def make_tracker(name: str, folder: str | Path) -> "Tracker":
    """The tracker of that name for the run in that folder."""
    if name not in TRACKERS:
        raise InputError(f"--log must be one of {', '.join(TRACKERS)}, got {name!r}")
    try:
        module = import_module(f"{__name__}.{name}")
    except ImportError as error:
        raise missing(f"--log {name}", name, error) from None
    tracker: Tracker = getattr(module, TRACKERS[name])(folder)
    return tracker


def missing(owner: str, extra: str, error: ImportError) -> InputError:
    """What to say where a library is not installed."""
    return InputError(f"{owner} cannot import its library: {error}; install it with: pip install 'widemargin[{extra}]'")
