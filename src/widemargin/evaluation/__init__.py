"""Judging a trained model."""

from widemargin.evaluation.accuracy import classified, percent, verdicts
from widemargin.evaluation.margins import MeasuredMargins, measure_margins
from widemargin.evaluation.target import Target, load_target

__all__ = ["MeasuredMargins", "Target", "classified", "load_target", "measure_margins", "percent", "verdicts"]
