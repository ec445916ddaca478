"""AutoAttack, standard version, part after part on the survivors: equal to the official loop, with attribution.

Each part attacks only the examples still classified correctly, from the original image, in batches; random numbers
depend on (seed, examples in the batch), so verdicts equal the official ones for the same seed, shard and batch size.

With TF32 the search is faster on a GPU and other than in float32. Whatever it finds counts only if it is adversarial in
float32 too, if need be after a push (``pushed``); what is not goes on as a survivor.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from widemargin.evaluation.accuracy import decided, predicted
from widemargin.evaluation.backend import attacked
from widemargin.evaluation.pushed import pushed
from widemargin.precision import allowing_tf32
from widemargin.threat import Threat


@dataclass(frozen=True)
class Broken:
    """What a part broke: positions, those where the model gives no prediction, and how many finds did not hold."""

    positions: list[int]
    undecided: list[int]
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
    tf32: Threat | None = None,
) -> Broken:
    """What a part breaks of the survivors, batch by batch; called in float32.

    ``reference`` has the network that is searched on, the model or a copy; ``model`` judges what is found. With
    ``tf32``, the threat model of the reference, it searches in TF32.
    """
    broken: list[int] = []
    undecided: list[int] = []
    refuted = 0
    left = survivors.nonzero()[:, 0]
    with torch.no_grad():
        for positions in left.split(batch_size) if len(left) else ():
            images, labels = x[positions], y[positions]
            if tf32 is None:
                x_adv = attacked(reference, part, images, labels)
                claimed = torch.zeros_like(labels, dtype=torch.bool)
            else:
                x_adv, claimed = _searched_in_tf32(model, images, labels, reference, part, tf32)
            logits = model(x_adv)
            fooled = ~predicted(logits, labels)
            broken += positions[fooled].tolist()
            undecided += positions[~decided(logits)].tolist()
            refuted += int((claimed & ~fooled).sum())
    return Broken(broken, undecided, refuted)


def _searched_in_tf32(
    model: nn.Module, x: Tensor, y: Tensor, reference: Any, part: str, threat: Threat
) -> tuple[Tensor, Tensor]:
    """(images, where the search took them to be adversarial); those short of float32's boundary are pushed on.

    Parts leave an image as it was unless they found something, and nothing needs to be found where it is wrong already.
    """
    with allowing_tf32():
        x_adv = attacked(reference, part, x, y)
        claimed = (x_adv != x).flatten(1).any(1) | ~predicted(reference.model(x_adv), y)
    short = claimed & predicted(model(x_adv), y)
    x_adv[short] = pushed(model, x[short], x_adv[short], y[short], threat)
    return x_adv, claimed
