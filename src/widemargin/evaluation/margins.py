"""Effective margins of a data set: clean, or at the images an attack finds."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from widemargin.engine import Replayed
from widemargin.errors import InputError
from widemargin.evaluation.accuracy import Advance, classified
from widemargin.margins import MarginSummary, effective_margin, summarize
from widemargin.models import Classifier
from widemargin.modes import frozen
from widemargin.precision import full_float32
from widemargin.types import Norm


@dataclass(frozen=True)
class MeasuredMargins:
    """The margin of each example and whether it is classified correctly, both (N,) on the CPU."""

    margins: Tensor
    correct: Tensor

    def over_all(self) -> MarginSummary:
        """Summary over all examples."""
        return summarize(self.margins)

    def over_correct(self) -> MarginSummary:
        """Summary over the correctly classified ones, as the paper's tables have it."""
        return summarize(self.margins[self.correct])


def _measure(model: nn.Module, norm: Norm, x: Tensor, y: Tensor) -> Tensor:
    margins: Tensor = effective_margin(model, x, y, norm)
    return margins


def measure_margins(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], *, norm: Norm = "l2", advance: Advance | None = None
) -> MeasuredMargins:
    """Measure the margins of every batch."""
    margins, correct = [], []
    measure: Callable[[Tensor, Tensor], Tensor] = partial(_measure, model, norm)
    if isinstance(model, Classifier):
        measure = Replayed(measure)
    with full_float32(), frozen(model):
        for x, y in batches:
            margins.append(measure(x, y))
            correct.append(classified(model, x, y))
            if advance is not None:
                advance(len(y))
    if not margins:
        raise InputError("measure_margins: the data is empty; give at least one batch")
    return MeasuredMargins(torch.cat(margins).cpu(), torch.cat(correct).cpu())
