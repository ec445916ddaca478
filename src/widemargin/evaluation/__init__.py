"""Judging a trained model."""

from widemargin.evaluation.accuracy import MeasuredMargins, classified, measure_margins, percent, verdicts
from widemargin.evaluation.compare_folders import compare
from widemargin.evaluation.evaluator import evaluate
from widemargin.evaluation.folder import ModelInfo
from widemargin.evaluation.model_check import ModelCheck, check
from widemargin.evaluation.report import Report
from widemargin.evaluation.target import Target, load, load_target

__all__ = [
    "MeasuredMargins",
    "ModelCheck",
    "ModelInfo",
    "Report",
    "Target",
    "check",
    "classified",
    "compare",
    "evaluate",
    "load",
    "load_target",
    "measure_margins",
    "percent",
    "verdicts",
]
