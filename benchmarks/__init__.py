"""How fast a training step is here: measured, counted, and held against the machine and a loop written by hand."""

from benchmarks.case import EMR_KINDS, HEAD_NAMES, OBJECTIVE_NAMES, Case, find_model
from benchmarks.measure import Measured, measure
from benchmarks.paper import PaperRow, PaperTable, paper_table

__all__ = [
    "EMR_KINDS",
    "HEAD_NAMES",
    "OBJECTIVE_NAMES",
    "Case",
    "Measured",
    "PaperRow",
    "PaperTable",
    "find_model",
    "measure",
    "paper_table",
]
