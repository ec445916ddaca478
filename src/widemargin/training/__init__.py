"""Training: one step, one run, resumable."""

from widemargin.training.run import RunResult, train
from widemargin.training.setup import Splits
from widemargin.training.step import Moment, train_step

__all__ = ["Moment", "RunResult", "Splits", "train", "train_step"]
