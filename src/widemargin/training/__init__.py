"""Training: one step, one run, resumable."""

from widemargin.core.signals import Stop
from widemargin.training.context import StepReport
from widemargin.training.nonfinite_step import ReplayedStep, replay
from widemargin.training.setup import Splits
from widemargin.training.step import StepContext, train_step
from widemargin.training.trainer import RunResult, train

__all__ = ["ReplayedStep", "RunResult", "Splits", "StepContext", "StepReport", "Stop", "replay", "train", "train_step"]
