"""Train image classifiers whose decision boundary is far from the data, measure how far, and test it under attack."""

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from widemargin.errors import InputError, WidemarginWarning

__version__ = "0.1.0"

if TYPE_CHECKING:
    from widemargin.attacks.pgd import FGSM, PGD
    from widemargin.certificates.margin import certified_margin
    from widemargin.evaluation.compare_folders import compare
    from widemargin.evaluation.evaluator import evaluate
    from widemargin.evaluation.model_check import ModelCheck, check
    from widemargin.evaluation.report import Report
    from widemargin.evaluation.target import load
    from widemargin.margins import MarginSummary, effective_margin, summarize
    from widemargin.models.classifier import Normalize
    from widemargin.models.normalization import pixels
    from widemargin.regularizers.emr import ApproximateEMR, ExactEMR, StochasticEMR
    from widemargin.training.setup import Splits
    from widemargin.training.trainer import train

_PLACES = {
    "certified_margin": "certificates",
    "FGSM": "attacks",
    "PGD": "attacks",
    "Report": "evaluation",
    "ModelCheck": "evaluation",
    "check": "evaluation",
    "compare": "evaluation",
    "evaluate": "evaluation",
    "load": "evaluation",
    "MarginSummary": "margins",
    "effective_margin": "margins",
    "summarize": "margins",
    "Normalize": "models",
    "pixels": "models",
    "Splits": "training",
    "train": "training",
    "ApproximateEMR": "regularizers",
    "ExactEMR": "regularizers",
    "StochasticEMR": "regularizers",
}


def _on_first_use(name: str) -> Any:
    """Public names and modules on first use: what needs no torch, such as the command's help, does not wait for it."""
    if name in _PLACES:
        return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    if name.isidentifier() and not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not TYPE_CHECKING:  # to a checker it would make any name one of ours
    __getattr__ = _on_first_use


def __dir__() -> list[str]:
    modules = (module.name for module in iter_modules(__path__) if not module.name.startswith("_"))
    return sorted({*(name for name in globals() if name.startswith("__")), *modules, *__all__})


__all__ = [
    "FGSM",
    "PGD",
    "ApproximateEMR",
    "ExactEMR",
    "InputError",
    "MarginSummary",
    "ModelCheck",
    "Normalize",
    "Report",
    "Splits",
    "StochasticEMR",
    "WidemarginWarning",
    "__version__",
    "certified_margin",
    "check",
    "compare",
    "effective_margin",
    "evaluate",
    "load",
    "pixels",
    "summarize",
    "train",
]
