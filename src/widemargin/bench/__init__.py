"""How fast a training step is here: measured, counted, and held against the machine and a loop written by hand."""

from widemargin.bench.case import EMR_KINDS, HEAD_NAMES, OBJECTIVE_NAMES, Case, find_model
from widemargin.bench.measure import Measured, measure
from widemargin.bench.paper import PaperRow, PaperTable, paper_table

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
