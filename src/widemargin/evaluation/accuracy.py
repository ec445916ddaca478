"""Is the label still the largest logit? Per example, clean or under attack, in evaluation mode and plain float32.

Verdicts are always computed in float32, since less precision would change some. The attack may search in TF32, which is
faster. For our own networks, whose work is the same for every batch, a GPU replays the kernels of the attack
(``engine.Replayed``): the same images, without the launches.
"""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from widemargin import randomness
from widemargin.attacks import FGSM, PGD
from widemargin.data import ImageSet, in_order
from widemargin.engine import Replayed
from widemargin.evaluation.processes import Processes
from widemargin.evaluation.searched import searched
from widemargin.models import Classifier
from widemargin.modes import evaluating
from widemargin.precision import allowing_tf32, full_float32
from widemargin.types import Attack

Advance = Callable[[int], None]
OnBatch = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""Of images, labels and random numbers."""
ALONE = Processes()


def classified(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(B,) bool: classified correctly."""
    with torch.no_grad(), evaluating(model):
        return predicted(model(x), y)


def predicted(logits: Tensor, y: Tensor) -> Tensor:
    """(B,) bool: the label has the largest logit; never where there is no prediction."""
    return (logits.argmax(1) == y) & decided(logits)


def decided(logits: Tensor) -> Tensor:
    """(B,) bool: the logits make a prediction. A NaN or +inf among them makes none; -inf rules out a class, not all."""
    return logits.amax(1).isfinite()


def verdicts(
    model: nn.Module,
    data: ImageSet,
    attack: Attack | None = None,
    *,
    batch_size: int = 500,
    seed: int = 0,
    advance: Advance | None = None,
    group: Processes = ALONE,
    tf32: bool = False,
) -> Tensor:
    """(N,) bool on the CPU: still classified correctly after the attack (or clean, without one).

    With ``tf32`` the attack searches in TF32 on a GPU; what it finds is judged in float32 all the same.
    """
    find = _finder(model, attack, tf32=tf32)
    parts: dict[int, Tensor] = {}
    with full_float32(), group.agreeing():
        for number, (x, y) in enumerate(in_order(data, batch_size)):
            if not group.mine(number):
                continue
            with allowing_tf32() if tf32 else nullcontext():
                x_adv = find(x, y, randomness.derived(seed, "evaluate", number))
            parts[number] = classified(model, x_adv, y)
            if advance is not None:
                advance(len(y))
    found = group.together({number: part.cpu() for number, part in parts.items()})
    return torch.cat(list(found.values()))


def _finder(model: nn.Module, attack: Attack | None, *, tf32: bool) -> OnBatch:
    """(x, y, generator) -> the images to be judged."""
    if attack is None:
        return lambda x, _, __: x
    return _search(searched(model, tf32=tf32), attack)


def _search(model: nn.Module, attack: Attack) -> OnBatch:
    """(x, y, generator) -> adversarial images; replayed where the work is the same for every batch."""
    draws = not isinstance(attack, FGSM) and (not isinstance(attack, PGD) or bool(attack.random_start))
    if draws or not isinstance(model, Classifier):
        return lambda x, y, generator: attack(model, x, y, generator=generator)
    replayed = Replayed(lambda x, y: attack(model, x, y))
    return lambda x, y, _: replayed(x, y)


def percent(verdicts: Tensor) -> float:
    """The share of True, in percent."""
    return 100.0 * verdicts.double().mean().item()
