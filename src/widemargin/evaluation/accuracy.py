"""Verdicts and effective margins of a data set, per example, in evaluation mode: clean, or at what an attack finds.

A verdict says whether the label is the largest logit. It is always computed in float32, since less precision would
change some; the attack may search in TF32, which is faster. For our own networks, whose work is the same for every
batch, a GPU replays the kernels of the attack (``engine.cuda_graphs``): the same images, without the launches.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor, nn

from widemargin.attacks.pgd import FGSM, PGD
from widemargin.core import randomness
from widemargin.core.checks import logits_of
from widemargin.core.modes import evaluating, frozen
from widemargin.core.precision import allowing_tf32, full_float32
from widemargin.data.batches import Images, in_order
from widemargin.data.unpacking import unpack
from widemargin.distributed.group import SINGLE_PROCESS, Processes
from widemargin.engine.cuda_graphs import GraphedFunction
from widemargin.errors import InputError
from widemargin.evaluation.tf32_search import search_model
from widemargin.losses import predicted
from widemargin.margins import MANY_CLASSES, MarginSummary, effective_margin, margins_by_candidates, summarize
from widemargin.models.classifier import Classifier
from widemargin.types import Attack, Norm

Advance = Callable[[int], None]
OnBatch = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""Of images, labels and random numbers."""


def classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(B,) bool: classified correctly."""
    with torch.no_grad(), evaluating(model):
        return predicted(logits_of(model(x)), y)


def verdicts(
    model: nn.Module,
    data: Images,
    attack: Attack | None = None,
    *,
    batch_size: int = 500,
    seed: int = 0,
    advance: Advance | None = None,
    group: Processes = SINGLE_PROCESS,
    tf32: bool = False,
) -> Tensor:
    """(N,) bool on the CPU: still classified correctly after the attack (or clean, without one).

    With ``tf32`` the attack searches in TF32 on a GPU; what it finds is judged in float32 all the same.
    """
    adversary = _adversary(model, attack, tf32=tf32)
    parts: dict[int, Tensor] = {}
    with full_float32(), group.sync_errors():
        mine = in_order(data, batch_size, start=group.rank, every=group.count)
        for number, (x, y) in zip(count(group.rank, group.count), mine, strict=False):
            with allowing_tf32() if tf32 else nullcontext():
                x_adv = adversary(x, y, randomness.derived(seed, "evaluate", number))
            parts[number] = classified(model, x_adv, y)
            if advance is not None:
                advance(len(y))
    found = group.all_gather({number: part.cpu() for number, part in parts.items()})
    return torch.cat(list(found.values()))


def _adversary(model: nn.Module, attack: Attack | None, *, tf32: bool) -> OnBatch:
    """(x, y, generator) -> the images to be judged; replayed where the work is the same for every batch."""
    if attack is None:
        return lambda x, _, __: x
    searched = search_model(model, tf32=tf32)
    draws = not isinstance(attack, FGSM | PGD) or attack.draws
    if draws or not isinstance(searched, Classifier):
        return lambda x, y, generator: attack(searched, x, y, generator=generator)
    replayed = GraphedFunction(lambda x, y: attack(searched, x, y))
    return lambda x, y, _: replayed(x, y)


def percent(verdicts: Tensor) -> float:
    """The share of True, in percent."""
    return 100.0 * verdicts.double().mean().item()


@dataclass(frozen=True)
class MeasuredMargins:
    """The margin of each example, whether it is classified correctly and whether the margin is proven, on the CPU."""

    margins: Tensor
    correct: Tensor
    proven: Tensor | None = None
    """(N,) bool; None: all are (``margins.margins_by_candidates``)."""

    def over_all(self) -> MarginSummary:
        """Summary over all examples."""
        return summarize(self.margins)

    def over_correct(self) -> MarginSummary:
        """Summary over the correctly classified ones, as the paper's tables have it."""
        return summarize(self.margins[self.correct])


def measure_margins(
    model: nn.Module, batches: Iterable[object], *, norm: Norm = "l2", advance: Advance | None = None
) -> MeasuredMargins:
    """Margins of every batch, of any form that ``data.unpacking`` knows; by candidates if classes are many."""
    margins, correct, proven = [], [], []
    graphed: GraphedFunction | None = None
    if isinstance(model, Classifier) and model.num_classes <= MANY_CLASSES:
        graphed = GraphedFunction(lambda x, y: effective_margin(model, x, y, norm))
    with full_float32(), frozen(model):
        for batch in batches:
            x, y = unpack("measure_margins", batch)
            if graphed is None:
                found = margins_by_candidates(model, x, y, norm)
                margins.append(found.margins)
                proven.append(found.proven)
            else:
                margins.append(graphed(x, y))
            correct.append(classified(model, x, y))
            if advance is not None:
                advance(len(y))
    if not margins:
        raise InputError("measure_margins: the data is empty; give at least one batch")
    flags = torch.cat(proven).cpu() if proven else None
    return MeasuredMargins(
        torch.cat(margins).cpu(), torch.cat(correct).cpu(), None if flags is None or bool(flags.all()) else flags
    )
