"""Train image classifiers whose decision boundary is far from the data, measure how far, and prove it."""

from widemargin.attacks import FGSM, PGD
from widemargin.errors import InputError, WidemarginWarning
from widemargin.margins import MarginSummary, effective_margin, summarize
from widemargin.regularizers import ApproximateEMR, ExactEMR, StochasticEMR

__version__ = "0.1.0"

__all__ = [
    "FGSM",
    "PGD",
    "ApproximateEMR",
    "ExactEMR",
    "InputError",
    "MarginSummary",
    "StochasticEMR",
    "WidemarginWarning",
    "__version__",
    "effective_margin",
    "summarize",
]
