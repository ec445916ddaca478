"""AutoAttack, standard version, part after part on the survivors: equal to the official loop, with attribution.

Each part attacks only the examples still classified correctly, from the original image, in batches; random numbers
depend on (seed, examples in the batch), so verdicts equal the official ones for the same seed, shard and batch size.

With TF32 the search is faster on a GPU and other than in float32. Whatever it finds counts only if it is adversarial in
float32 too; what is not goes on as a survivor.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.evaluation.accuracy import predicted
from widemargin.evaluation.backend import part_attack
from widemargin.precision import allowing_tf32


@dataclass(frozen=True)
class Broken:
    """What a part broke in a batch: positions, adversarial images, and how many of its finds did not hold."""

    positions: Tensor
    images: Tensor
    refuted: int


def break_survivors(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    survivors: Tensor,
    *,
    reference: Any,
    part: str,
    batch_size: int,
    tf32: bool = False,
) -> Iterator[Broken]:
    """What a part breaks in each batch of survivors; called in float32, and with ``tf32`` it searches in TF32.

    ``reference`` has the network that is searched on, the model or a copy; ``model`` judges what is found.
    """
    with torch.no_grad():
        for positions in survivors.nonzero()[:, 0].split(batch_size):
            images, labels = x[positions].clone(), y[positions].clone()
            with allowing_tf32() if tf32 else nullcontext():
                x_adv = part_attack(reference, part).perturb(images, labels)
                found = ~predicted(reference.model(x_adv), labels) if tf32 else None
            broken = ~predicted(model(x_adv), labels)
            refuted = 0 if found is None else int((found & ~broken).sum())
            yield Broken(positions[broken], x_adv[broken].detach(), refuted)
