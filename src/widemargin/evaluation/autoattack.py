"""AutoAttack, standard version, part after part on the survivors: equal to the official loop, with attribution.

Each part attacks only the examples still classified correctly, from the original image, in batches; random numbers
depend on (seed, examples in the batch), so verdicts equal the official ones for the same seed, shard and batch size.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.evaluation.backend import part_attack

Advance = Callable[[int], None]


def break_survivors(
    model: nn.Module, x: Tensor, y: Tensor, survivors: Tensor, *, reference: Any, part: str, batch_size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each batch of survivors: (positions that this part broke, their adversarial images)."""
    with torch.no_grad():
        for positions in survivors.nonzero()[:, 0].split(batch_size):
            images, labels = x[positions].clone(), y[positions].clone()
            x_adv = part_attack(reference, part).perturb(images, labels)
            broken = model(x_adv).argmax(1) != labels
            yield positions[broken], x_adv[broken].detach()
