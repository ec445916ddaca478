"""Is the label still the largest logit? Per example, clean or under attack, in evaluation mode and plain float32."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from widemargin import randomness
from widemargin.data import ImageSet, in_order
from widemargin.modes import evaluating
from widemargin.precision import full_float32
from widemargin.types import Attack

Advance = Callable[[int], None]


def classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(B,) bool: classified correctly."""
    with torch.no_grad(), evaluating(model):
        verdicts: Tensor = model(x).argmax(1) == y
    return verdicts


def verdicts(
    model: nn.Module,
    data: ImageSet,
    attack: Attack | None = None,
    *,
    batch_size: int = 500,
    seed: int = 0,
    advance: Advance | None = None,
) -> Tensor:
    """(N,) bool on the CPU: still classified correctly after the attack (or clean, without one)."""
    parts = []
    with full_float32():
        for number, (x, y) in enumerate(in_order(data, batch_size)):
            generator = randomness.derived(seed, "evaluate", number)
            point = x if attack is None else attack(model, x, y, generator=generator)
            parts.append(classified(model, point, y))
            if advance is not None:
                advance(len(y))
    return torch.cat(parts).cpu()


def percent(verdicts: Tensor) -> float:
    """The share of True, in percent."""
    return 100.0 * verdicts.double().mean().item()
