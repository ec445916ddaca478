"""Training: one step, one run, resumable."""

from widemargin.training.replay import Replayed, replay
from widemargin.training.run import RunResult, train
from widemargin.training.setup import Splits
from widemargin.training.signals import Stop
from widemargin.training.step import Moment, train_step

__all__ = ["Moment", "Replayed", "RunResult", "Splits", "Stop", "replay", "train", "train_step"]
