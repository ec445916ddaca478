"""Train image classifiers whose decision boundary is far from the data, measure how far, and prove it."""

from typing import TYPE_CHECKING, Any

from widemargin.attacks import FGSM, PGD
from widemargin.errors import InputError, WidemarginWarning
from widemargin.margins import MarginSummary, effective_margin, summarize
from widemargin.regularizers import ApproximateEMR, ExactEMR, StochasticEMR

__version__ = "0.1.0"


if TYPE_CHECKING:
    from widemargin.evaluation import Report, evaluate


def __getattr__(name: str) -> Any:
    """The evaluator on first use: ``import widemargin`` stays light for those who only want the two lines."""
    if name in ("evaluate", "Report"):
        from widemargin import evaluation

        return getattr(evaluation, name)
    raise AttributeError(f"module 'widemargin' has no attribute {name!r}")


__all__ = [
    "FGSM",
    "PGD",
    "ApproximateEMR",
    "ExactEMR",
    "InputError",
    "MarginSummary",
    "Report",
    "StochasticEMR",
    "WidemarginWarning",
    "__version__",
    "effective_margin",
    "evaluate",
    "summarize",
]
