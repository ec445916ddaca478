"""Judging a trained model."""

from widemargin.evaluation.accuracy import classified, percent, verdicts
from widemargin.evaluation.evaluator import evaluate
from widemargin.evaluation.margins import MeasuredMargins, measure_margins
from widemargin.evaluation.report import Report, Subject
from widemargin.evaluation.target import Target, load, load_target

__all__ = [
    "MeasuredMargins",
    "Report",
    "Subject",
    "Target",
    "classified",
    "evaluate",
    "load",
    "load_target",
    "measure_margins",
    "percent",
    "verdicts",
]
