"""Is the label still the largest logit? Per example, clean or under attack, in evaluation mode and plain float32.

Reduced precision would move verdicts, so it is not used here. For our own networks, whose work is the same for every
batch, a GPU replays the same kernels (``engine.Replayed``): the same verdicts, without the launches.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from widemargin import randomness
from widemargin.attacks import FGSM, PGD
from widemargin.data import ImageSet, in_order
from widemargin.engine import Replayed
from widemargin.evaluation.processes import Processes
from widemargin.models import Classifier
from widemargin.modes import evaluating
from widemargin.precision import full_float32
from widemargin.types import Attack

Advance = Callable[[int], None]
ALONE = Processes()


def classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(B,) bool: classified correctly."""
    with torch.no_grad(), evaluating(model):
        return predicted(model(x), y)


def predicted(logits: Tensor, y: Tensor) -> Tensor:
    """(B,) bool: the label has the largest logit; never where a logit is no number."""
    return (logits.argmax(1) == y) & ~logits.isnan().any(1)


def verdicts(
    model: nn.Module,
    data: ImageSet,
    attack: Attack | None = None,
    *,
    batch_size: int = 500,
    seed: int = 0,
    advance: Advance | None = None,
    group: Processes = ALONE,
) -> Tensor:
    """(N,) bool on the CPU: still classified correctly after the attack (or clean, without one)."""
    parts: dict[int, Tensor] = {}
    judge = _judge(model, attack)
    with full_float32(), group.agreeing():
        for number, (x, y) in enumerate(in_order(data, batch_size)):
            if not group.mine(number):
                continue
            parts[number] = judge(x, y, randomness.derived(seed, "evaluate", number))
            if advance is not None:
                advance(len(y))
    found = group.together({number: part.cpu() for number, part in parts.items()})
    return torch.cat(list(found.values()))


def _judge(model: nn.Module, attack: Attack | None) -> Callable[[Tensor, Tensor, torch.Generator], Tensor]:
    """(x, y, generator) -> (B,) bool; replayed where the work is the same for every batch."""
    if attack is None:
        return lambda x, y, generator: classified(model, x, y)  # noqa: ARG005 - one signature for all
    draws = not isinstance(attack, FGSM) and (not isinstance(attack, PGD) or bool(attack.random_start))
    if isinstance(model, Classifier) and not draws:
        replayed = Replayed(lambda x, y: classified(model, attack(model, x, y), y))
        return lambda x, y, generator: replayed(x, y)  # noqa: ARG005
    return lambda x, y, generator: classified(model, attack(model, x, y, generator=generator), y)


def percent(verdicts: Tensor) -> float:
    """The share of True, in percent."""
    return 100.0 * verdicts.double().mean().item()
