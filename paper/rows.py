"""The rows of the paper's tables, handed in by the caller, and a recipe's name in words.

``st-lsoftmax-wd0.01`` is ST + L-Softmax, weight decay 0.01.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paper.tree import CollectedJob
from widemargin.config.checkpoint import CONFIG
from widemargin.core.records import Fields
from widemargin.report.compare import Reference


@dataclass(frozen=True)
class PaperRow:
    """A recipe with its published results (percent; margins as mean and standard deviation) and its settings."""

    recipe: str
    results: Mapping[str, Any]
    reference: Reference

    @property
    def short(self) -> str:
        """The recipe's name within its table."""
        return self.recipe.split("/")[-1]


@dataclass(frozen=True)
class PaperTable:
    """``name`` is what ``widemargin reproduce`` takes."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[PaperRow]

    def label(self, row: PaperRow) -> str:
        """What the row is called: its short name, if all rows of the table have their own."""
        return row.short if len({other.short for other in self.rows}) == len(self.rows) else row.recipe


KINDS = ("st", "at", "trades", "mart", "lbgat")
"""The order of their rows in a picture."""
_ADDED = {"lsoftmax": "L-Softmax", "approximate": "approximate"}
_SAID = {"averaged": "averaged weights", "clean": "at clean images", "m4": "m = 4"}


def kind_of(recipe: str) -> str:
    """How it trains: the first word of its name."""
    return recipe.split("/")[-1].split("-")[0]


def method_title(recipe: str) -> str:
    """``ST + approximate EMR``: what it trains with, without the weight decay."""
    kind, *words = recipe.split("/")[-1].split("-")
    added = [_ADDED.get(word, word.upper()) for word in words if not word.startswith("wd") and word not in _SAID]
    joined = " + ".join([kind.upper(), *added]).replace("approximate + ", "approximate ")
    return ", ".join([joined, *(_SAID[word] for word in words if word in _SAID)])


def decay_title(job: CollectedJob) -> str:
    """``weight decay 0.01``: what its run says."""
    decay = Fields(job.run.folder / CONFIG, job.run.config).table("optimizer").number("weight_decay") or 0.0
    return f"weight decay {plain_number(decay)}" if decay else "no weight decay"


def plain_number(value: float) -> str:
    """Without an exponent: 0.0001 and not 1e-04."""
    return f"{value:.10f}".rstrip("0").rstrip(".")


def row_order(job: CollectedJob) -> tuple[int, int, str]:
    """Where a row stands in a picture: by how it trains, baselines first, EMR last."""
    kind, words = kind_of(job.recipe), job.recipe.split("/")[-1].split("-")[1:]
    added = [word for word in words if not word.startswith("wd") and word not in _SAID]
    rank = 2 if "emr" in added else 1 if added else 0
    return KINDS.index(kind) if kind in KINDS else len(KINDS), rank, job.recipe
